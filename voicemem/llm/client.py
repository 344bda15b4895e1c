"""The client for LLMs: allowed addresses, timeouts, failures, and the splitting of streams.

The bytes of an answer are passed on unchanged. No request is sent twice (a caller on the phone cannot wait), and no
setting is read from the environment.
"""

import asyncio
import io
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from http import HTTPStatus

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver
from msgspec import Struct

from voicemem.errors import LlmFailed
from voicemem.llm.endpoints import LlmEndpoint
from voicemem.protocol.sse import DONE, Decoder, TooLong
from voicemem.protocol.types import JsonObject
from voicemem.security.address_guard import Network, connectors, direct_session, error_word, send_request

MAX_ANSWER_BYTES, MAX_EVENT_BYTES = 4 * 1024 * 1024, 1024 * 1024
"""The most bytes of an unstreamed answer, and of one event of a stream."""
MAX_STREAM_BYTES, MAX_EVENTS = 64 * 1024 * 1024, 300_000
"""The most bytes and events of a stream: the longest reply, a character at a time, with the rest of each event."""
SLICE_BYTES, EVENTS_AT_ONCE = 16 * 1024, 50
"""How much of a stream is read before other tasks get their turn."""
KEEPALIVE_S = 30.0
"""How long idle connections stay open: a call has a turn every few seconds, and connecting to an LLM takes long."""
DRAIN_S = 0.1
"""The time to read the rest after the end of a stream, so that its connection can be reused."""
PIECE_BYTES = 64 * 1024
"""A longer body is sent in pieces, since one large write would block the event loop."""
RESERVED_HEADERS = frozenset(
    (
        *("connection", "content-encoding", "content-length", "expect", "host", "keep-alive"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)
"""Headers that a session cannot set; the same holds for `Authorization` if it gives a key."""
OWN_WORDS = {"reset": "dropped", "bad_answer": "invalid_answer"}


class Timeouts(Struct, frozen=True):
    """Timeouts in seconds: for a connection, for the next bytes of an answer, and for the whole answer."""

    connect_s: float = 5.0
    read_s: float = 30.0
    total_s: float = 300.0


class LlmResponse:
    def __init__(self, answer: aiohttp.ClientResponse, deadline: float) -> None:
        self.answer = answer
        self.deadline = deadline
        """By the clock of the event loop."""

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of the body as they arrive. Raises `LlmFailed`."""
        loop = asyncio.get_running_loop()
        try:
            async for piece in self.answer.content.iter_any():
                if loop.time() > self.deadline:  # even if bytes are there already
                    raise LlmFailed("timeout")
                yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise failure(error) from None

    def close(self) -> None:
        """Close the connection, unless the whole body was read."""
        self.answer.close()


class LlmClient:
    """Sends requests to LLMs until it is closed.

    It has two pools of connections: one that reaches only public addresses, for URLs from the API, and one for the
    operator's own. `allowed` are networks that count as public; `extra_headers` go with every request.
    """

    def __init__(
        self,
        *,
        allowed: Sequence[Network] = (),
        timeouts: Timeouts | None = None,
        resolver: AbstractResolver | None = None,
        extra_headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.allowed = tuple(allowed)
        self.timeouts = timeouts or Timeouts()
        self.resolver = resolver
        self.extra_headers = extra_headers
        self.sessions: dict[bool, aiohttp.ClientSession] = {}
        """By whether the address guard applies."""

    async def close(self) -> None:
        """Drop all connections; may be called twice."""
        while self.sessions:
            await self.sessions.popitem()[1].close()

    async def complete(
        self,
        endpoint: LlmEndpoint,
        body: JsonObject | None,
        max_bytes: int = MAX_ANSWER_BYTES,
        total_s: float | None = None,
    ) -> bytes:
        """Return the whole answer to a body without streaming, or to a GET, unchanged. Raises `LlmFailed`."""
        response = await self.send(endpoint, body, self.timeouts.total_s if total_s is None else total_s)
        try:
            answer = bytearray()
            async for piece in response.pieces():
                answer += piece
                if len(answer) > max_bytes:
                    raise LlmFailed("too_long")
            return bytes(answer)
        finally:
            response.close()

    async def stream(self, endpoint: LlmEndpoint, body: JsonObject) -> AsyncGenerator[bytes, None]:
        """Yield the data of each server-sent event of the answer, `[DONE]` included. Raises `LlmFailed`.

        An answer that ends without `[DONE]` may have been cut off.
        """
        response = await self.send(endpoint, body, self.timeouts.total_s)
        try:
            pieces = response.pieces()
            async with aclosing(read_sse_data(pieces)) as data_events:
                async for data in data_events:
                    yield data
                    if data == DONE:
                        break
            with suppress(TimeoutError, LlmFailed):  # the answer is complete anyway
                async with asyncio.timeout(DRAIN_S):
                    async for _ in pieces:
                        pass
        finally:
            response.close()

    async def send(self, endpoint: LlmEndpoint, body: JsonObject | None, total_s: float) -> LlmResponse:
        """Return the answer to a body, or to a GET without one, before its content is read. Raises `LlmFailed`.

        `total_s` limits the whole answer, however steadily it comes.
        """
        if not self.sessions:  # connectors have no limit, so no request waits for a connection
            for public_only, connector in connectors(self.allowed, self.resolver, KEEPALIVE_S).items():
                self.sessions[public_only] = direct_session(connector, aiohttp.ClientTimeout())
        headers = request_headers(endpoint, self.extra_headers())
        if not all(value.isascii() for value in headers.values()):
            raise LlmFailed("invalid_key")
        content = None if body is None else msgspec.json.encode(body)
        times = self.timeouts
        timeout = aiohttp.ClientTimeout(total=total_s, connect=times.connect_s, sock_read=times.read_s)
        deadline = asyncio.get_running_loop().time() + total_s
        session, method = self.sessions[endpoint.public_only], "GET" if content is None else "POST"

        def in_pieces() -> io.BytesIO | bytes | None:
            return io.BytesIO(content) if content is not None and len(content) > PIECE_BYTES else content

        try:
            answer = await send_request(
                session, method, endpoint.request_url, in_pieces, headers=headers, timeout=timeout
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise failure(error) from None
        return checked(answer, deadline)


async def read_sse_data(
    pieces: AsyncIterator[bytes], most_bytes: int = MAX_STREAM_BYTES, most_events: int = MAX_EVENTS
) -> AsyncGenerator[bytes, None]:
    """Yield the data of server-sent events. Raises `LlmFailed`."""
    decoder = Decoder(MAX_EVENT_BYTES)
    size = count = 0
    try:
        async for whole in pieces:
            for start in range(0, len(whole), SLICE_BYTES):
                piece = whole[start : start + SLICE_BYTES]
                size += len(piece)
                if size > most_bytes:
                    raise LlmFailed("too_long")
                for event in decoder.feed(piece):
                    count += 1
                    if count > most_events:
                        raise LlmFailed("too_long")
                    if event.data is not None:
                        yield event.data
                    if count % EVENTS_AT_ONCE == 0:
                        await asyncio.sleep(0)
                if len(whole) > SLICE_BYTES // 4:  # more may be there without waiting
                    await asyncio.sleep(0)
    except TooLong:
        raise LlmFailed("too_long") from None
    for event in decoder.close():
        if event.data is not None:
            yield event.data


def checked(answer: aiohttp.ClientResponse, deadline: float) -> LlmResponse:
    """Return an answer whose body can be read. Raises `LlmFailed`."""
    if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
        answer.close()  # the text of an error may be long, and is never shown
        raise LlmFailed(answer.status)
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        answer.close()  # not requested, and a few bytes could unpack to megabytes
        raise LlmFailed("invalid_answer")
    return LlmResponse(answer, deadline)


def request_headers(endpoint: LlmEndpoint, extra_headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of one request. Ours override the session's."""
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
    return {name: value for name, value in endpoint.headers.items() if name.lower() not in taken} | ours


def failure(error: Exception) -> LlmFailed:
    word = error_word(error)
    return LlmFailed(OWN_WORDS.get(word, word))
