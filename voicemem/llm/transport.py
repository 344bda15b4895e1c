"""OpenAI's package as the client of every LLM, over aiohttp connections that obey the address guard.

Importing this takes half a second and 20 MiB, so `llm.client` does it before the first LLM request. The package builds
the request and reads its outcome. It neither retries (a caller on the phone cannot wait) nor reads settings from the
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
import msgspec
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, AsyncStream, Omit, OpenAIError

from voicemem.errors import LlmFailed
from voicemem.llm.endpoints import LlmEndpoint
from voicemem.protocol.types import JsonObject
from voicemem.security.address_guard import AddressNotAllowedError, direct_session

LOG = logging.getLogger("voicemem.llm")
RESERVED_HEADERS = frozenset(
    (
        *("connection", "content-encoding", "content-length", "expect", "host", "keep-alive"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)
"""Headers that a session cannot set; the same holds for `Authorization` if it gives a key."""
NAMED_ERRORS = aiohttp.ClientSSLError, aiohttp.ClientConnectorDNSError
ERROR_WORDS: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...] = (
    (aiohttp.ClientSSLError, "tls"),
    (aiohttp.ClientConnectorDNSError, "dns"),
    (AddressNotAllowedError, "address_not_allowed"),
    (TimeoutError, "timeout"),
    (ConnectionRefusedError, "refused"),
    ((ConnectionError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError), "dropped"),
    (OSError, "unreachable"),
    ((aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, UnicodeError), "invalid_url"),
    (aiohttp.ClientResponseError, "invalid_answer"),
)


class ConnectionFailed(httpx2.TransportError):
    """A connection failed; `why` is the stable short word for the reason."""

    def __init__(self, error: Exception) -> None:
        super().__init__(type(error).__name__)
        cause = error
        if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, NAMED_ERRORS):
            cause = error.os_error
        self.why = next((name for kinds, name in ERROR_WORDS if isinstance(cause, kinds)), "error")


class OpenAiTransport:
    """Sends requests to LLMs over one connector, which it owns."""

    def __init__(self, connector: aiohttp.TCPConnector, connect_s: float, read_s: float) -> None:
        transport = AiohttpTransport(connector, connect_s, read_s)
        http = httpx2.AsyncClient(transport=transport, trust_env=False, follow_redirects=False)
        self.openai = AsyncOpenAI(api_key="each request has its own", http_client=http, max_retries=0, timeout=None)

    async def close(self) -> None:
        await self.openai.close()

    async def post(
        self, endpoint: LlmEndpoint, body: JsonObject | None, extra_headers: Mapping[str, str]
    ) -> LlmResponse:
        """The answer to a body, or to a GET without one; its own body is not yet read. Raises `LlmFailed`."""
        options: Any = {"headers": request_headers(self.openai, endpoint, extra_headers), "follow_redirects": False}
        streamed: Any = {"cast_to": httpx2.Response, "options": options, "stream": True, "stream_cls": AsyncStream[Any]}
        try:
            if body is None:
                response = await self.openai.get(endpoint.request_url, **streamed)
            else:
                response = await self.openai.post(endpoint.request_url, content=msgspec.json.encode(body), **streamed)
        except APIStatusError as error:
            await error.response.aclose()
            raise LlmFailed(error.status_code) from None
        except UnicodeError:
            raise LlmFailed("invalid_key") from None
        except (OpenAIError, httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise failure(error) from None
        answer = cast(httpx2.Response, response)
        if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
            # We ask for no other, and a few bytes of one could unpack to as many megabytes.
            await answer.aclose()
            raise LlmFailed("invalid_answer")
        return LlmResponse(answer)


class LlmResponse:
    """The body of an answer."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, piece by piece as it arrives. Raises `LlmFailed`."""
        try:
            async for piece in self.response.aiter_raw():
                yield piece
        except ConnectionFailed as error:
            raise failure(error) from None

    async def close(self) -> None:
        """Close the connection, unless the whole body was read."""
        await self.response.aclose()


def request_headers(
    client: AsyncOpenAI, endpoint: LlmEndpoint, extra_headers: Mapping[str, str]
) -> dict[str, str | Omit]:
    """The headers of one request. Ours win over the session's.

    The package's own headers are omitted: they describe this machine.
    """
    headers: dict[str, str | Omit] = {name: Omit() for name in client.default_headers}
    headers |= {"X-Stainless-Retry-Count": Omit(), "X-Stainless-Read-Timeout": Omit(), "Authorization": Omit()}
    ours = {
        **extra_headers,
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "User-Agent": "voicemem",
    }
    if endpoint.api_key:
        ours["Authorization"] = f"Bearer {endpoint.api_key}"
    taken = {name.lower() for name in ours} | RESERVED_HEADERS
    configured = {name: value for name, value in endpoint.headers.items() if name.lower() not in taken}
    known = {name.lower(): name for name in headers}
    for name, value in {**configured, **ours}.items():
        headers[known.get(name.lower(), name)] = value
    return headers


def failure(error: Exception) -> LlmFailed:
    """The failure to report for an error of the package or of a connection."""
    cause = error.__cause__ if isinstance(error, APIConnectionError) else error
    if isinstance(cause, ConnectionFailed):
        return LlmFailed(cause.why)
    if isinstance(cause, httpx2.TimeoutException):
        return LlmFailed("timeout")
    LOG.warning("An LLM request failed with %s", type(cause).__qualname__)
    return LlmFailed("error")


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """Carries the package's requests over aiohttp, with a connector of ours."""

    def __init__(self, connector: aiohttp.TCPConnector, connect_s: float, read_s: float) -> None:
        # The connector has no limit, so no request waits for a free connection: `connect` bounds the way to the server.
        timeout = aiohttp.ClientTimeout(total=None, connect=connect_s, sock_read=read_s)
        self.session = direct_session(connector, timeout)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. Raises `ConnectionFailed`."""
        content = await request.aread()
        while True:
            context = SimpleNamespace(reused=False)
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
                # The server may have closed an idle connection just as it was reused: only a fresh one decides. Each
                # failure takes one idle connection out of the pool, so the loop ends after the last of them.
                if isinstance(error, aiohttp.ClientConnectorError) or not context.reused:
                    raise ConnectionFailed(error) from error
            except (aiohttp.ClientError, OSError, UnicodeError, ValueError) as error:
                raise ConnectionFailed(error) from error
            else:
                return httpx2.Response(
                    answer.status, headers=answer.raw_headers, stream=ResponseStream(answer), request=request
                )

    async def aclose(self) -> None:
        await self.session.close()


class ResponseStream(httpx2.AsyncByteStream):
    """The body of an answer, piece by piece as it arrives."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            return  # the package would read the whole text of an error, however long, and it is never shown
        try:
            async for piece in self.answer.content.iter_any():
                yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionFailed(error) from error

    async def aclose(self) -> None:
        self.answer.close()  # after a complete read this does nothing: the connection is back in the pool
