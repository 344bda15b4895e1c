"""A small TCP proxy in front of several nodes, as simple as a load balancer can be."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from voicemem.config.service import Address

CHUNK_BYTES = 64 * 1024


class Proxy:
    """Passes each connection on to the node that has the fewest; one that does not answer is left out."""

    def __init__(self, targets: Sequence[Address]) -> None:
        self.targets = targets
        self.address = Address("127.0.0.1", 0)
        self.open: Counter[Address] = Counter()
        """How many connections each node has."""
        self.newest: Address | None = None
        """The node of the connection that came last."""
        self.server: asyncio.Server | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self.server = await asyncio.start_server(self.accept, self.address.host, self.address.port)
        self.address = Address("127.0.0.1", self.server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self.server is not None:
            self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self.pass_on(reader, writer)
        except asyncio.CancelledError:
            pass  # the proxy stops; asyncio's streams would log it as an error
        finally:
            self.tasks.discard(task)
            writer.close()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for target in sorted(self.targets, key=self.rank):
            try:
                from_node, to_node = await asyncio.open_connection(*target)
            except OSError:
                continue
            self.newest = target
            self.open[target] += 1
            try:
                await asyncio.gather(copy(reader, to_node), copy(from_node, writer))
            finally:
                self.open[target] -= 1
                to_node.close()
            return

    def rank(self, target: Address) -> tuple[int, bool]:
        """The fewest connections first; among equals not the same node twice."""
        return self.open[target], target == self.newest


async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Pass on one direction, and then its end."""
    with suppress(OSError):
        while data := await source.read(CHUNK_BYTES):
            sink.write(data)
            await sink.drain()
    sink.close()
