"""OpenAI's package as the client of every LLM, over connections of aiohttp that obey the address guard.

Importing this takes half a second and 20 MiB, so `llm` does so when the first LLM is called. The package makes the
request and reads its outcome. It neither tries again (a caller on the phone cannot wait), nor reads settings from the
environment.
"""

from __future__ import annotations

import io
import logging
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import httpx2
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, AsyncStream, Omit, OpenAIError

from voicemem.errors import LlmFailed
from voicemem.llm.targets import Target
from voicemem.protocol.types import JsonObject
from voicemem.security.address_guard import AddressNotAllowedError

LOG = logging.getLogger(__name__)
OURS = frozenset(
    (
        *("connection", "content-encoding", "content-length", "expect", "host", "keep-alive"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)
"""Headers that a session cannot set; nor `Authorization`, when it gives a key."""
WORDS: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...] = (
    (AddressNotAllowedError, "address_not_allowed"),
    (TimeoutError, "timeout"),
    (ConnectionRefusedError, "refused"),
    ((ConnectionError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError), "dropped"),
    (OSError, "unreachable"),
    ((aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, UnicodeError), "invalid_url"),
    (aiohttp.ClientResponseError, "invalid_answer"),
)


class Broken(httpx2.TransportError):
    """A connection failed; `why` is the word for it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(type(error).__name__)
        self.why = word(error)


def word(error: Exception) -> str:
    """The stable short word for what went wrong."""
    if isinstance(error, aiohttp.ClientSSLError):
        return "tls"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "dns"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return next((name for kinds, name in WORDS if isinstance(cause, kinds)), "error")


class Client:
    """Asks LLMs for completions over the connections of one connector, which it owns."""

    def __init__(self, connector: aiohttp.TCPConnector, connect_s: float, read_s: float) -> None:
        transport = Transport(connector, connect_s, read_s)
        http = httpx2.AsyncClient(transport=transport, trust_env=False, follow_redirects=False)
        self.openai = AsyncOpenAI(api_key="each call has its own", http_client=http, max_retries=0, timeout=None)

    async def close(self) -> None:
        await self.openai.close()

    async def post(self, target: Target, body: JsonObject, more: Mapping[str, str]) -> Response:
        """An answer, its body unread; `more` are headers that go along. Raises `LlmFailed`."""
        try:
            response = await self.openai.post(
                target.endpoint,
                cast_to=httpx2.Response,
                body=body,
                options={"headers": headers_for(self.openai, target, more), "follow_redirects": False},
                stream=True,
                stream_cls=AsyncStream[Any],
            )
        except APIStatusError as error:
            await error.response.aclose()
            raise LlmFailed(error.status_code) from None
        except UnicodeError:
            raise LlmFailed("invalid_key") from None
        except (OpenAIError, httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise failure(error) from None
        return Response(cast(httpx2.Response, response))


class Response:
    """The body of an answer."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response

    async def pieces(self) -> AsyncIterator[bytes]:
        """As they come. Raises `LlmFailed`."""
        try:
            async for piece in self.response.aiter_bytes():
                yield piece
        except (Broken, httpx2.DecodingError) as error:
            raise failure(error) from None

    async def close(self) -> None:
        """Hang up, unless all of it was read."""
        await self.response.aclose()


def headers_for(client: AsyncOpenAI, target: Target, more: Mapping[str, str]) -> dict[str, str | Omit]:
    """The headers of one call: ours win. What the package adds of itself or the environment is nobody's business."""
    headers: dict[str, str | Omit] = {name: Omit() for name in client.default_headers}
    headers |= {"X-Stainless-Retry-Count": Omit(), "X-Stainless-Read-Timeout": Omit(), "Authorization": Omit()}
    ours = {
        **more,
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "User-Agent": "voicemem",
    }
    if target.api_key:
        ours["Authorization"] = f"Bearer {target.api_key}"
    taken = {name.lower() for name in ours} | OURS
    given = {name: value for name, value in target.headers.items() if name.lower() not in taken}
    known = {name.lower(): name for name in headers}
    for name, value in {**given, **ours}.items():
        headers[known.get(name.lower(), name)] = value
    return headers


def failure(error: Exception) -> LlmFailed:
    """What is told of an error of the package or of a connection."""
    cause = error.__cause__ if isinstance(error, APIConnectionError) else error
    if isinstance(cause, Broken):
        return LlmFailed(cause.why)
    if isinstance(cause, httpx2.TimeoutException):
        return LlmFailed("timeout")
    if isinstance(cause, httpx2.DecodingError):
        return LlmFailed("invalid_answer")
    LOG.warning("A call of an LLM was ended by %s", type(cause).__qualname__)
    return LlmFailed("error")


class Transport(httpx2.AsyncBaseTransport):
    """The way of the package's requests: aiohttp, with a connector of ours."""

    def __init__(self, connector: aiohttp.TCPConnector, connect_s: float, read_s: float) -> None:
        async def note_reuse(
            _: aiohttp.ClientSession, context: SimpleNamespace, __: aiohttp.TraceConnectionReuseconnParams
        ) -> None:
            context.trace_request_ctx["reused"] = True

        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(note_reuse)
        # Without a limit of its own the connector never makes anybody wait, so that `connect` is the way to the server.
        timeout = aiohttp.ClientTimeout(total=None, connect=connect_s, sock_read=read_s)
        self.session = aiohttp.ClientSession(
            connector=connector,
            trust_env=False,  # a proxy would connect for us, past the guard
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=timeout,
            auto_decompress=False,
            trace_configs=[trace],
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises `Broken`."""
        content = await request.aread()
        while True:
            context = {"reused": False}
            try:
                answer = await self.session.request(
                    request.method,
                    str(request.url),
                    data=io.BytesIO(content),  # in pieces: one large write would hold up the event loop
                    headers=list(request.headers.multi_items()),
                    allow_redirects=False,
                    trace_request_ctx=context,
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                # The server may have closed an idle connection just as it was used again: only a fresh one decides.
                if isinstance(error, aiohttp.ClientConnectorError) or not context["reused"]:
                    raise Broken(error) from error
            except (aiohttp.ClientError, OSError, UnicodeError, ValueError) as error:
                raise Broken(error) from error
            else:
                return httpx2.Response(
                    answer.status, headers=answer.raw_headers, stream=Pieces(answer), request=request
                )

    async def aclose(self) -> None:
        await self.session.close()


class Pieces(httpx2.AsyncByteStream):
    """The body of an answer, as its pieces come."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            return  # the package would read all of an error's text, however long, and nobody is told it
        try:
            async for piece in self.answer.content.iter_any():
                yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise Broken(error) from error

    async def aclose(self) -> None:
        self.answer.close()  # one that was read to its end has given its connection back before
