"""Every request to an LLM: which addresses it may reach, how long to wait, and how a streamed answer is split.

The bytes of an answer are handed on unchanged.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING

from aiohttp.abc import AbstractResolver
from msgspec import Struct

from voicemem.errors import LlmFailed
from voicemem.llm.endpoints import LlmEndpoint
from voicemem.protocol.sse import DONE, Decoder, TooLong
from voicemem.protocol.types import JsonObject
from voicemem.security.address_guard import Network, connectors

if TYPE_CHECKING:
    from voicemem.llm.transport import LlmResponse, OpenAiTransport

MAX_ANSWER_BYTES, MAX_EVENT_BYTES = 4 * 1024 * 1024, 1024 * 1024
"""Of an answer in one piece, and of one event of a stream."""
MAX_STREAM_BYTES, MAX_EVENTS = 64 * 1024 * 1024, 300_000
"""Of a whole stream: a reply of the greatest length, a character at a time, with what servers write around each."""
SLICE_BYTES, EVENTS_AT_ONCE = 16 * 1024, 50
"""Of a stream, so much is read before others get their turn."""
KEEPALIVE_S = 30.0
"""A phone call has a turn every few seconds, and connecting to an LLM takes long."""
DRAIN_S = 0.1
"""Time to read what follows the end of a stream, so that its connection can be reused."""


class Timeouts(Struct, frozen=True):
    """How long to wait, in seconds: for a connection, for the next bytes of an answer, and for all of it."""

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
        self.clients: dict[bool, OpenAiTransport] = {}
        """By whether the address guard applies."""
        self.open_lock = asyncio.Lock()

    async def open(self) -> None:
        """Load the client ahead of the first request, which would otherwise do it; no connection is made yet."""
        async with self.open_lock:
            if self.clients:
                return
            module = await asyncio.to_thread(importlib.import_module, "voicemem.llm.transport")
            for public_only, connector in connectors(self.allowed, self.resolver, KEEPALIVE_S).items():
                transport = module.OpenAiTransport(connector, self.timeouts.connect_s, self.timeouts.read_s)
                self.clients[public_only] = transport

    async def close(self) -> None:
        """Drop all connections; may be called twice."""
        while self.clients:
            await self.clients.popitem()[1].close()

    async def complete(
        self,
        endpoint: LlmEndpoint,
        body: JsonObject | None,
        max_bytes: int = MAX_ANSWER_BYTES,
        total_s: float | None = None,
    ) -> bytes:
        """The whole answer to a body that asks for no stream, or to a GET, unchanged. Raises `LlmFailed`."""
        deadline = Deadline(self.timeouts.total_s if total_s is None else total_s)
        response = await self.post(endpoint, body, deadline)
        try:
            answer = bytearray()
            async for piece in deadline.bound(response.pieces()):
                answer += piece
                if len(answer) > max_bytes:
                    raise LlmFailed("too_long")
            return bytes(answer)
        finally:
            await response.close()

    async def stream(self, endpoint: LlmEndpoint, body: JsonObject) -> AsyncGenerator[bytes, None]:
        """The data of each server-sent event of the answer, `[DONE]` included. Raises `LlmFailed`.

        An answer that ends without `[DONE]` may have been cut off.
        """
        deadline = Deadline(self.timeouts.total_s)
        response = await self.post(endpoint, body, deadline)
        try:
            pieces = deadline.bound(response.pieces())
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
            await response.close()

    async def post(self, endpoint: LlmEndpoint, body: JsonObject | None, deadline: Deadline) -> LlmResponse:
        """The answer, its body not yet read. Raises `LlmFailed`."""
        if not self.clients:
            await self.open()
        async with deadline.timeout():
            return await self.clients[endpoint.public_only].post(endpoint, body, self.extra_headers())


class Deadline:
    """When a request must be over, however steadily its answer comes."""

    def __init__(self, seconds: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.at = self.loop.time() + seconds

    @asynccontextmanager
    async def timeout(self) -> AsyncIterator[None]:
        """End what is awaited in the block at the deadline. Raises `LlmFailed`."""
        try:
            async with asyncio.timeout_at(self.at):
                yield
        except TimeoutError:
            raise LlmFailed("timeout") from None

    async def bound(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the pieces until the deadline. Raises `LlmFailed`."""
        while True:
            try:
                async with asyncio.timeout_at(self.at):  # not around the `yield`: it would end what the reader does
                    piece = await anext(pieces, None)
            except TimeoutError:
                raise LlmFailed("timeout") from None
            if piece is None:
                return
            if self.loop.time() > self.at:  # everything came at once, so nothing was waited for
                raise LlmFailed("timeout")
            yield piece


async def read_sse_data(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the data of server-sent events. Raises `LlmFailed`."""
    decoder = Decoder(MAX_EVENT_BYTES)
    size = count = 0
    try:
        async with aclosing(slices(pieces)) as sliced:
            async for piece in sliced:
                size += len(piece)
                if size > MAX_STREAM_BYTES:
                    raise LlmFailed("too_long")
                for event in decoder.feed(piece):
                    count += 1
                    if count > MAX_EVENTS:
                        raise LlmFailed("too_long")
                    if event.data is not None:
                        yield event.data
                    if count % EVENTS_AT_ONCE == 0:
                        await asyncio.sleep(0)
    except TooLong:
        raise LlmFailed("too_long") from None
    for event in decoder.close():
        if event.data is not None:
            yield event.data


async def slices(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield what comes in slices of `SLICE_BYTES`; others get their turn between them."""
    async for piece in pieces:
        for start in range(0, len(piece), SLICE_BYTES):
            yield piece[start : start + SLICE_BYTES]
            if len(piece) > SLICE_BYTES // 4:  # much has come, and there may be more without waiting
                await asyncio.sleep(0)
