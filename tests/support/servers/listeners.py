"""Servers that are not voicemem: silent, slow, rude, or of another kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing, suppress
from ssl import SSLContext
from typing import Any

from aiohttp import web

from voicemem.config.service import Address

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def listener(handle: Handler, tls: SSLContext | None = None) -> AsyncIterator[str]:
    """A server that treats each connection so; HOST:PORT. Connections end with the block."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError):
            await handle(reader, writer)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept, read, and never answer."""
    while await reader.read(1024):
        pass


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An answer over HTTP that never ends, of which there is always a little more."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b" ")
        await asyncio.sleep(0.01)


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End a connection once something was sent over it."""
    await reader.read(1024)


async def speak_another_protocol(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer, but not with HTTP or TLS."""
    await reader.read(1024)
    writer.write(b"SSH-2.0-hello\r\n\r\n")
    await writer.drain()


@asynccontextmanager
async def box_that_forbids_websockets() -> AsyncIterator[Address]:
    """A middle box whose answers are not voicemem's."""

    async def forbid(request: web.Request) -> web.Response:
        return web.Response(status=403, text="<h1>Web sockets are not allowed here</h1>")

    box = web.Application()
    box.router.add_get("/{path:.*}", forbid)
    runner = web.AppRunner(box)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield Address("127.0.0.1", runner.addresses[0][1])
    finally:
        await runner.cleanup()
