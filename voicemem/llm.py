"""Every call of an LLM, through the `openai` package, over connections that obey the address guard.

The package makes the request and reads its outcome; the bytes of an answer come from its response, since they are to go
on as they came. It neither tries again (a caller on the phone cannot wait) nor reads its settings from the environment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import httpx2
from aiohttp.abc import AbstractResolver
from msgspec import Struct
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, AsyncStream, Omit, OpenAIError

from voicemem.errors import LlmFailed
from voicemem.events import Fields
from voicemem.outbound import AddressNotAllowedError, Network, guarded_connector
from voicemem.targets import Target

LOG = logging.getLogger(__name__)
DONE = b"[DONE]"
MOST_BYTES = 4 * 1024 * 1024
"""Of an answer in one piece, and of one event of a stream."""
KEEPALIVE_S = 30.0
"""A call has a turn every few seconds, and the way to an LLM is long."""
DRAIN_S = 0.1
"""For what stands behind the end of a stream, after which its connection can be used again."""
OURS = frozenset(
    (
        *("connection", "content-encoding", "content-length", "expect", "host", "keep-alive"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)
"""Headers that a session cannot set; nor `Authorization`, when it gives a key."""


class Patience(Struct, frozen=True):
    """How long is waited, in seconds: for a connection, and for the next bytes of an answer."""

    connect_s: float = 5.0
    read_s: float = 30.0


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


class LanguageModels:
    """Calls LLMs until it is closed; two pools of connections, since what may be called differs.

    `allowed` are networks that count as public; `more_headers` gives what goes with every call.
    """

    def __init__(
        self,
        *,
        allowed: Sequence[Network] = (),
        patience: Patience | None = None,
        resolver: AbstractResolver | None = None,
        more_headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.allowed = tuple(allowed)
        self.patience = patience or Patience()
        self.resolver = resolver
        self.more_headers = more_headers
        self.clients: dict[bool, AsyncOpenAI] = {}
        """By whether the guard stands before them."""

    async def open(self) -> None:
        """Needs a running event loop; no connection is made yet."""
        guarded = guarded_connector(allowed=self.allowed, resolver=self.resolver, keepalive_s=KEEPALIVE_S)
        free = aiohttp.TCPConnector(resolver=self.resolver, limit=0, keepalive_timeout=KEEPALIVE_S)
        self.clients = {True: client_of(guarded, self.patience), False: client_of(free, self.patience)}

    async def close(self) -> None:
        """Drops all connections; may be called twice."""
        while self.clients:
            await self.clients.popitem()[1].close()

    async def complete(self, target: Target, body: Fields) -> bytes:
        """The whole answer to a body that asks for no stream, as it came. Raises `LlmFailed`."""
        response = await self.post(target, body)
        try:
            answer = bytearray()
            async for piece in response.aiter_bytes():
                answer += piece
                check_size(answer)
            return bytes(answer)
        except (Broken, httpx2.DecodingError) as error:
            raise failure(error) from None
        finally:
            await response.aclose()

    async def stream(self, target: Target, body: Fields) -> AsyncGenerator[bytes, None]:
        """The data of each server-sent event of the answer as it came, the last `[DONE]` included. Raises `LlmFailed`.

        An answer that ends without `[DONE]` may have been cut off.
        """
        response = await self.post(target, body)
        try:
            async for data in events(response.aiter_bytes()):
                yield data
                if data == DONE:
                    await drain(response)
                    return
        except (Broken, httpx2.DecodingError) as error:
            raise failure(error) from None
        finally:
            await response.aclose()

    async def post(self, target: Target, body: Fields) -> httpx2.Response:
        """The response, its body unread. Raises `LlmFailed`."""
        client = self.clients[target.guarded]
        headers = headers_for(client, target, self.more_headers())
        try:
            response = await client.post(
                target.endpoint,
                cast_to=httpx2.Response,
                body=body,
                options={"headers": headers, "follow_redirects": False},
                stream=True,
                stream_cls=AsyncStream[Any],
            )
        except APIStatusError as error:
            await error.response.aclose()
            raise LlmFailed(error.status_code) from None
        except (OpenAIError, httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise failure(error) from None
        return cast(httpx2.Response, response)


def client_of(connector: aiohttp.TCPConnector, patience: Patience) -> AsyncOpenAI:
    http = httpx2.AsyncClient(transport=Transport(connector, patience), trust_env=False, follow_redirects=False)
    return AsyncOpenAI(api_key="each call has its own", http_client=http, max_retries=0, timeout=None)


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


async def events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of server-sent events (https://html.spec.whatwg.org, 9.2), by bytes: JSON may hold other line ends."""
    waiting, lines = b"", []
    async for piece in pieces:
        *whole, waiting = (waiting + piece).split(b"\n")
        check_size(waiting)
        for line in whole:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                lines.append(line.removeprefix(b"data:").removeprefix(b" "))
                check_size(*lines)
            elif not line and lines:
                yield b"\n".join(lines)
                lines = []
    if lines and not waiting:  # the blank line at the very end is often forgotten
        yield b"\n".join(lines)


def check_size(*texts: bytes | bytearray) -> None:
    if sum(map(len, texts)) > MOST_BYTES:
        raise LlmFailed("too_long")


async def drain(response: httpx2.Response) -> None:
    """Read what is left, for a moment."""
    try:
        async with asyncio.timeout(DRAIN_S):
            async for _ in response.stream:  # type: ignore[union-attr]
                pass
    except (TimeoutError, Broken, httpx2.StreamConsumed):
        pass  # it is complete anyway


class Transport(httpx2.AsyncBaseTransport):
    """The way of the package's requests: aiohttp, with a connector of ours."""

    def __init__(self, connector: aiohttp.TCPConnector, patience: Patience) -> None:
        async def note_reuse(
            _: aiohttp.ClientSession, context: SimpleNamespace, __: aiohttp.TraceConnectionReuseconnParams
        ) -> None:
            context.trace_request_ctx["reused"] = True

        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(note_reuse)
        # Without a limit of its own the connector never makes anybody wait, so that `connect` is the way to the server.
        timeout = aiohttp.ClientTimeout(total=None, connect=patience.connect_s, sock_read=patience.read_s)
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
                    data=content,
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
