"""A TCP proxy that misbehaves as networks do, with the toxics of toxiproxy.

`async with Proxy(target) as proxy:` listens on `proxy.address` and passes bytes on to `target`, which may be changed
while it runs (a server that comes back on another port). `proxy.to_server` and `proxy.to_client` say what goes wrong
in each direction, from the next bytes on; `cut`, `reset`, `down` and `up` act at once.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from voicemem.config.service import Address

CHUNK_BYTES = 64 * 1024
IN_FLIGHT = 64
"""Chunks that latency keeps under way; then the sender is held back, as by a full pipe."""


@dataclass(slots=True)
class Toxics:
    """What goes wrong in one direction; as it is made, nothing does."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    """At most so much more latency, by chance; the order of the bytes stays."""
    bytes_per_s: float | None = None
    """Bandwidth."""
    slice_bytes: int | None = None
    """Pass the bytes on in segments of this size."""
    limit_bytes: int | None = None
    """End each connection once so many bytes of it have passed, also in the middle of a message."""
    limit_once: bool = False
    """Only the first connection that reaches the limit is ended; then there is none any more."""
    reset_at_limit: bool = False
    """End it there with a RST instead of a FIN."""
    swallow: bool = False
    """Half-open: bytes vanish, no end is passed on, the connection stays (toxiproxy's `timeout`)."""
    timeout_s: float | None = None
    """End a connection so long after `swallow` took its first bytes."""
    slow_close_s: float = 0.0
    """Hold back the end of a connection."""


@dataclass(eq=False)
class ProxiedConnection:
    """One connection: both of its ends, and what has passed in each direction (bytes)."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    passed: dict[str, int] = field(default_factory=lambda: {"to_server": 0, "to_client": 0})
    swallowing: set[str] = field(default_factory=set)

    def cut(self) -> None:
        """FIN to both."""
        for end in (self.client, self.server):
            end.close()

    def reset(self) -> None:
        """RST to both."""
        for end in (self.client, self.server):
            with suppress(OSError):  # it is closed already
                taken: socket.socket = end.get_extra_info("socket")
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.transport.abort()


class NetworkProxy:
    """Passes connections on, from `address` to `target`."""

    def __init__(self, target: Address) -> None:
        self.target = target
        self.address = Address("127.0.0.1", 0)
        self.to_server = Toxics()
        self.to_client = Toxics()
        self.passing: set[ProxiedConnection] = set()
        self.connecting: set[asyncio.StreamWriter] = set()
        """Connections for which none to the target has come about yet."""
        self.accepted = 0
        """Connections so far."""
        self.server: asyncio.Server | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.down()
        for writer in self.connecting:
            writer.transport.abort()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted is closed in the loop's next turn

    async def up(self) -> None:
        """Listen, on the same port as before."""
        self.server = await asyncio.start_server(self.accept, self.address.host, self.address.port)
        self.address = Address("127.0.0.1", self.server.sockets[0].getsockname()[1])

    async def down(self) -> None:
        """Refuse connections, and reset those that there are."""
        if self.server is not None:
            self.server.close()
        self.reset()

    def cut(self) -> None:
        """End all connections with a FIN."""
        for one in [*self.passing]:
            one.cut()

    def reset(self) -> None:
        """End all connections with a RST."""
        for one in [*self.passing]:
            one.reset()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.connecting.add(writer)
        try:
            from_server, server = await asyncio.open_connection(self.target.host, self.target.port)
        except OSError:
            writer.transport.abort()
            return
        finally:
            self.connecting.discard(writer)
        one = ProxiedConnection(writer, server)
        self.passing.add(one)
        directions = (("to_server", reader, server), ("to_client", from_server, writer))
        tasks = [asyncio.create_task(self.carry(one, *direction)) for direction in directions]
        self.tasks.update(tasks)
        await asyncio.wait(tasks)
        self.tasks.difference_update(tasks)
        self.passing.discard(one)
        one.cut()

    async def carry(
        self, one: ProxiedConnection, way: str, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        """One direction, until its source ends."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(IN_FLIGHT)
        delivering = asyncio.create_task(self.deliver(one, way, under_way, sink))
        try:
            while not delivering.done():
                with suppress(OSError):
                    if data := await source.read(CHUNK_BYTES):
                        await under_way.put((self.due(way), data))
                        continue
                await under_way.put((self.due(way), b""))
                break
            await delivering
        finally:
            delivering.cancel()

    def due(self, way: str) -> float:
        toxics: Toxics = getattr(self, way)
        return asyncio.get_running_loop().time() + toxics.latency_s + random.uniform(0, toxics.jitter_s)

    async def deliver(
        self,
        one: ProxiedConnection,
        way: str,
        under_way: asyncio.Queue[tuple[float, bytes]],
        sink: asyncio.StreamWriter,
    ) -> None:
        toxics: Toxics = getattr(self, way)
        loop = asyncio.get_running_loop()
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if toxics.swallow or way in one.swallowing:  # what has lost bytes can never be a whole stream again
                self.swallow(one, way, toxics.timeout_s)
                continue
            with suppress(OSError):
                if data and await self.write(one, way, data, sink):
                    continue
            await asyncio.sleep(toxics.slow_close_s)
            sink.close()
            return

    def swallow(self, one: ProxiedConnection, way: str, timeout_s: float | None) -> None:
        if way not in one.swallowing and timeout_s is not None:
            asyncio.get_running_loop().call_later(timeout_s, one.cut)
        one.swallowing.add(way)

    async def write(self, one: ProxiedConnection, way: str, data: bytes, sink: asyncio.StreamWriter) -> bool:
        """Pass bytes on, in the pieces that the toxics make of them; whether the connection goes on."""
        toxics: Toxics = getattr(self, way)
        size = toxics.slice_bytes or len(data)
        if toxics.bytes_per_s is not None:
            size = min(size, max(1, int(toxics.bytes_per_s / 50)))
        for begin in range(0, len(data), size):
            piece = data[begin : begin + size]
            if toxics.limit_bytes is not None:
                piece = piece[: max(0, toxics.limit_bytes - one.passed[way])]
            sink.write(piece)
            await sink.drain()
            one.passed[way] += len(piece)
            if toxics.limit_bytes is not None and one.passed[way] >= toxics.limit_bytes:
                end: Callable[[], None] = one.reset if toxics.reset_at_limit else one.cut
                if toxics.limit_once:
                    toxics.limit_bytes = None
                end()
                return False
            await asyncio.sleep(len(piece) / toxics.bytes_per_s if toxics.bytes_per_s is not None else 0)
        return True
