"""A TCP proxy that breaks what goes through it: it passes nothing for a while, or drops the answer to a commit."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Sequence
from contextlib import suppress

from bench.crash.nodes.upstream import Upstream, connect

CHUNK_BYTES = 256 * 1024
PREPARED = re.compile(rb"P....(\w*)\x00\s*(?:commit|with held as[^\x00]*insert into journal)", re.DOTALL)
"""A message `Parse` with a statement that commits: the word itself, or an append, which is a transaction of its own."""


class Link:
    """One connection through the proxy."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.near = near
        self.far = far
        self.commits = {b""}
        """Names of prepared statements that commit."""
        self.is_deaf = False
        """The next answer ends it, and does not come through."""

    def is_commit(self, data: bytes) -> bool:
        """Whether something that commits is sent."""
        names = PREPARED.findall(data)
        self.commits.update(names)
        return bool(names) or any(b"\x00" + name + b"\x00" in data for name in self.commits if name)

    def abort(self) -> None:
        for writer in (self.near, self.far):
            transport = writer.transport
            transport.abort()


class Proxy:
    """Listens on a port, and connects to one of the places that are given to it."""

    def __init__(self, port: int, upstreams: Callable[[], Sequence[Upstream]]) -> None:
        self.port = port
        self.upstreams = upstreams
        self.cuts = 0
        """How many answers to commits are still to be dropped."""
        self.cuts_made = 0
        self.passing = asyncio.Event()
        self.passing.set()
        self.links: set[Link] = set()
        self.server: asyncio.Server | None = None

    async def start(self) -> None:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port, limit=CHUNK_BYTES)

    async def stop(self) -> None:
        if self.server is not None:
            self.server.close()
        self.passing.set()
        for link in [*self.links]:
            link.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await connect(random.choice(self.upstreams()))
        except OSError:
            writer.transport.abort()
            return
        link = Link(writer, far_writer)
        self.links.add(link)
        pumps = asyncio.gather(self.pump_there(link, reader), self.pump_back(link, far_reader))
        try:
            with suppress(asyncio.CancelledError):  # asyncio would report a task that was cancelled as a fault
                await pumps
        finally:
            self.links.discard(link)
            link.abort()

    async def pump_there(self, link: Link, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self.passing.wait()
                if link.is_commit(data) and self.cuts > 0:
                    self.cuts -= 1
                    self.cuts_made += 1
                    link.is_deaf = True
                link.far.write(data)
                await link.far.drain()
            link.far.write_eof()

    async def pump_back(self, link: Link, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self.passing.wait()
                if link.is_deaf:
                    break
                link.near.write(data)
                await link.near.drain()
        link.abort()
