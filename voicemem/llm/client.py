"""Every call of an LLM: whom it may reach, how long is waited, and how its answer is taken apart.

The bytes of an answer are handed on as they came.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.abc import AbstractResolver
from msgspec import Struct

from voicemem.errors import LlmFailed
from voicemem.llm.targets import Target
from voicemem.protocol.types import JsonObject
from voicemem.security.address_guard import Network, guarded_connector

if TYPE_CHECKING:
    from voicemem.llm.transport import Client, Response

DONE = b"[DONE]"
MOST_BYTES = 4 * 1024 * 1024
"""Of an answer in one piece, and of one event of a stream."""
KEEPALIVE_S = 30.0
"""A call has a turn every few seconds, and the way to an LLM is long."""
DRAIN_S = 0.1
"""For what stands behind the end of a stream, after which its connection can be used again."""


class Patience(Struct, frozen=True):
    """How long is waited, in seconds: for a connection, and for the next bytes of an answer."""

    connect_s: float = 5.0
    read_s: float = 30.0


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
        self.clients: dict[bool, Client] = {}
        """By whether the guard stands before them."""
        self.opening = asyncio.Lock()

    async def open(self) -> None:
        """Make ready for the first call, which otherwise does so; no connection is made yet."""
        async with self.opening:
            if self.clients:
                return
            module = await asyncio.to_thread(importlib.import_module, "voicemem.llm.transport")
            guarded = guarded_connector(allowed=self.allowed, resolver=self.resolver, keepalive_s=KEEPALIVE_S)
            free = aiohttp.TCPConnector(resolver=self.resolver, limit=0, keepalive_timeout=KEEPALIVE_S)
            for guard, connector in ((True, guarded), (False, free)):
                self.clients[guard] = module.Client(connector, self.patience.connect_s, self.patience.read_s)

    async def close(self) -> None:
        """Drops all connections; may be called twice."""
        while self.clients:
            await self.clients.popitem()[1].close()

    async def complete(self, target: Target, body: JsonObject) -> bytes:
        """The whole answer to a body that asks for no stream, as it came. Raises `LlmFailed`."""
        response = await self.post(target, body)
        try:
            answer = bytearray()
            async for piece in response.pieces():
                answer += piece
                check_size(answer)
            return bytes(answer)
        finally:
            await response.close()

    async def stream(self, target: Target, body: JsonObject) -> AsyncGenerator[bytes, None]:
        """The data of each server-sent event of the answer as it came, the last `[DONE]` included. Raises `LlmFailed`.

        An answer that ends without `[DONE]` may have been cut off.
        """
        response = await self.post(target, body)
        try:
            pieces = response.pieces()
            async with aclosing(events(pieces)) as told:
                async for data in told:
                    yield data
                    if data == DONE:
                        break
            with suppress(TimeoutError, LlmFailed):  # it is complete anyway
                async with asyncio.timeout(DRAIN_S):
                    async for _ in pieces:
                        pass
        finally:
            await response.close()

    async def post(self, target: Target, body: JsonObject) -> Response:
        """An answer, its body unread. Raises `LlmFailed`."""
        if not self.clients:
            await self.open()
        return await self.clients[target.guarded].post(target, body, self.more_headers())


async def events(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
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
