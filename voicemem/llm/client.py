"""Every request to an LLM: which addresses it may reach, how long to wait, and how a streamed answer is split.

The bytes of an answer are handed on unchanged.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress

from aiohttp.abc import AbstractResolver
from msgspec import Struct

from voicemem.errors import LlmFailed
from voicemem.llm.endpoints import LlmEndpoint
from voicemem.llm.transport import LlmResponse, LlmTransport
from voicemem.protocol.sse import DONE, Decoder, TooLong
from voicemem.protocol.types import JsonObject
from voicemem.security.address_guard import Network, connectors

MAX_ANSWER_BYTES, MAX_EVENT_BYTES = 4 * 1024 * 1024, 1024 * 1024
"""The size of an answer in one piece, and of one event of a stream."""
MAX_STREAM_BYTES, MAX_EVENTS = 64 * 1024 * 1024, 300_000
"""The size of a whole stream: the longest reply, a character at a time, with what servers write around each."""
SLICE_BYTES, EVENTS_AT_ONCE = 16 * 1024, 50
"""How much of a stream is read before other work gets its turn."""
KEEPALIVE_S = 30.0
"""A phone call has a turn every few seconds, and connecting to an LLM takes long."""
DRAIN_S = 0.1
"""Time to read what follows the end of a stream, so that its connection can be reused."""


class Timeouts(Struct, frozen=True):
    """Times to wait, in seconds: for a connection, for the next bytes of an answer, and for all of it."""

    connect_s: float = 5.0
    read_s: float = 30.0
    total_s: float = 300.0


class LlmClient:
    """Sends requests to LLMs until it is closed.

    It has two pools of connections: one that reaches public addresses only, for URLs that came through the API, and
    one for the operator's own. `allowed` are networks that count as public; `extra_headers` go with every request.
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
        self.transports: dict[bool, LlmTransport] = {}
        """By whether the address guard applies."""

    async def close(self) -> None:
        """Drop all connections; may be called twice."""
        while self.transports:
            await self.transports.popitem()[1].close()

    async def complete(
        self,
        endpoint: LlmEndpoint,
        body: JsonObject | None,
        max_bytes: int = MAX_ANSWER_BYTES,
        total_s: float | None = None,
    ) -> bytes:
        """The whole answer to a body that asks for no stream, or to a GET, unchanged. Raises `LlmFailed`."""
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
        """The data of each server-sent event of the answer, `[DONE]` included. Raises `LlmFailed`.

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
        """The answer, its body not yet read. Raises `LlmFailed`."""
        if not self.transports:
            for public_only, connector in connectors(self.allowed, self.resolver, KEEPALIVE_S).items():
                self.transports[public_only] = LlmTransport(connector, self.timeouts.connect_s, self.timeouts.read_s)
        return await self.transports[endpoint.public_only].send(endpoint, body, self.extra_headers(), total_s)


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
                if len(whole) > SLICE_BYTES // 4:  # much has come, and there may be more without waiting
                    await asyncio.sleep(0)
    except TooLong:
        raise LlmFailed("too_long") from None
    for event in decoder.close():
        if event.data is not None:
            yield event.data
