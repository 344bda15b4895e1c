"""Readers of tails who do not read: they cost little, hold up no one, are cut off, and go on where they were."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress

from tests.support.callers.rest import RestClient
from tests.support.callers.tail_reader import ONE, SEVERAL, entries, open_tail
from tests.support.events import final
from tests.support.services import ANY_PORT, Serve
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.server.http.connections import Deadlines, listen
from voicemem.sessions.tails.tail import SMALL_PAGE

DEADLINES = Deadlines(30, 30, 30, 0.5)
TEXT = "x" * 50_000
EVENTS = 200
MOST_BYTES = 1024 * 1024
"""Of 10 MB that are to be told."""


async def asked(app: App, path: str) -> tuple[asyncio.Server, socket.socket]:
    """A connection with little room that has asked for a tail, on a port with a deadline for readers."""
    server = await listen(app.runner, ANY_PORT, DEADLINES, connections=app.rest_connections)
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    narrow.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(narrow, server.sockets[0].getsockname())
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    await loop.sock_sendall(narrow, head.encode())
    return server, narrow


def waiting(app: App) -> int:
    """Bytes that wait for readers."""
    server = app.runner.server
    assert server is not None
    transports = [connection.transport for connection in server.connections]
    return sum(one.get_write_buffer_size() for one in transports if isinstance(one, asyncio.Transport))


async def test_a_reader_that_does_not_read_is_cut_off_and_goes_on(serve: Serve) -> None:
    """It costs little while it does not read, is cut off, and gets the rest, all of it once, when it comes back."""
    app = await serve()
    api = RestClient(app)
    await api.create()
    without_tails = len(app.services.recorder.feed.listeners)
    for path in (ONE, SEVERAL):
        server, narrow = await asked(app, path)
        try:
            most = 0
            for _ in range(0, EVENTS, 20):
                await api.send(*(final(1, TEXT) for _ in range(20)))
                most = max(most, waiting(app))
            await eventually(
                True, lambda: asyncio.sleep(0, len(app.services.recorder.feed.listeners) == without_tails), 30
            )
            assert 0 < most < MOST_BYTES
            said = await read(narrow)
        finally:
            narrow.close()
            server.close()
        places = re.findall(rb"id: (\S+)\nevent: entry\ndata: .*\n\n", said)
        position = int(places[-1].rpartition(b"-")[2])
        last = (await api.session())["position"]
        assert position < last
        async with open_tail(api, path, places[-1].decode()) as tail:
            assert [("s", at) for at in range(position + 1, last + 1)] == entries(await tail.some(last - position))


async def read(narrow: socket.socket) -> bytes:
    """What had arrived by the time that the connection was cut."""
    said = b""
    with suppress(ConnectionResetError):
        while piece := await asyncio.get_running_loop().sock_recv(narrow, 65_536):
            said += piece
    return said


async def test_large_pages_are_read_in_turns(serve: Serve) -> None:
    """A tail that is far behind waits for its turn; what is said in a call is sent at once meanwhile."""
    app = await serve()
    api = RestClient(app)
    await api.create()
    turn = app.services.tails.sources.page_lock
    async with open_tail(api, ONE) as near, turn:
        await api.send(final(1, "hello"))
        assert [("s", 1)] == entries(await near.some(1))
        await api.send(*(final(2 + number, "more") for number in range(SMALL_PAGE)))
        assert SMALL_PAGE == len(await near.some(SMALL_PAGE))
        async with open_tail(api, ONE, None) as far:
            coming = asyncio.ensure_future(far.some(1 + SMALL_PAGE))
            await api.send(final(SMALL_PAGE + 2, "last"))
            assert 1 == len(await near.some(1))
            assert not coming.done()
            turn.release()
            assert 1 + SMALL_PAGE == len(await coming)
            await turn.acquire()
