"""Slow callers of the REST API are cut off, and hold up no one meanwhile; each deadline by itself, the others long."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from tests.support.both_ways import serve as serve
from tests.support.callers.raw_http import handshake_head
from tests.support.callers.raw_websocket import TEXT, websocket_frame
from tests.support.callers.rest import RestClient
from tests.support.events import final
from tests.support.services import ANY_PORT, Serve
from voicemem.app import App
from voicemem.server.http.connections import (
    DEADLINES,
    ConnectionLimits,
    Deadlines,
    PortConnections,
    ingest_limits,
    listen,
    max_files,
    rest_limits,
)

SOON = 0.2
LONG = Deadlines(30, 30, 30, 30, 30)
"""Longer than any of these tests waits."""
TIMEOUT_S = 10.0
NO_SESSION = b"GET /v1/sessions/none HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEAD = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/sessions/s/events HTTP/1.1\r\nHost: localhost\r\n"


class Peer(NamedTuple):
    """A connection to the REST port."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def end(self) -> bytes:
        """What the service says until it hangs up."""
        said = b""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while piece := await self.reader.read(65_536):
                    said += piece
        except ConnectionResetError:
            pass
        return said

    async def drip(self, text: bytes, pause_s: float = SOON / 4) -> bytes:
        """Send a byte now and then, for ever; what the service says until it hangs up."""

        async def dripping() -> None:
            while True:
                for byte in text:
                    self.writer.write(bytes([byte]))
                    await asyncio.sleep(pause_s)

        task = asyncio.create_task(dripping())
        try:
            return await self.end()
        finally:
            task.cancel()
            await asyncio.wait({task})


@asynccontextmanager
async def connected(port: int, receive_buffer: int | None = None) -> AsyncIterator[Peer]:
    """A connection, with as little room for what comes as is asked for."""
    narrow = socket.socket()
    if receive_buffer is not None:
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    narrow.setblocking(False)
    await asyncio.get_running_loop().sock_connect(narrow, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=narrow, limit=4096)
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()


@pytest.fixture
async def app(serve: Serve) -> App:
    app = await serve()
    await RestClient(app).create()
    return app


Port = Callable[..., Awaitable[int]]


@pytest.fixture
async def port(app: App) -> AsyncIterator[Port]:
    """Another port of the running service, with deadlines of its own."""
    servers: list[asyncio.Server] = []

    async def opened(limits: ConnectionLimits | None = None, **deadlines: float) -> int:
        connections = PortConnections(limits or rest_limits(), app.rest_connections.count_refused)
        server = await listen(app.runner, ANY_PORT, LONG._replace(**deadlines), connections=connections)
        servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    yield opened
    for server in servers:
        server.close()


# Requests


async def test_77_a_silent_connection_is_closed(port: Port) -> None:
    """Who connects and says nothing is cut off, without an answer."""
    async with connected(await port(head=SOON)) as peer:
        assert b"" == await peer.end()


@pytest.mark.parametrize("half", [b"G", b"GET /livez", HEAD, HEAD + b"X: 1\r\n", b"\r\n\r\n"])
async def test_78_half_a_head_is_not_waited_for(port: Port, half: bytes) -> None:
    """A head that stops anywhere is cut off."""
    async with connected(await port(head=SOON)) as peer:
        peer.writer.write(half)
        assert b"" == await peer.end()


async def test_79_a_dripping_head_gains_nothing(port: Port) -> None:
    """The deadline is for the whole head; a byte now and then does not move it."""
    async with connected(await port(head=SOON)) as peer:
        peer.writer.write(HEAD)
        assert b"" == await peer.drip(b"X-Drip: drop\r\n")


async def test_79_a_dripping_second_head_gains_nothing(port: Port) -> None:
    """After an answer the whole of the next head must come before the connection counts as idle."""
    async with connected(await port(idle=SOON)) as peer:
        peer.writer.write(HEAD + b"\r\n" + HEAD)
        said = await peer.drip(b"X-Drip: drop\r\n")
        assert [1] == [said.count(b"HTTP/1.1 200")]


async def test_an_idle_connection_is_closed(port: Port) -> None:
    """A connection that was used and is no more does not stay for ever."""
    async with connected(await port(idle=SOON)) as peer:
        peer.writer.write(HEAD + b"\r\n")
        assert (await peer.end()).startswith(b"HTTP/1.1 200")


async def test_a_used_connection_stays(port: Port) -> None:
    """The first head's deadline ends with the first head, and each answer begins the idle time again."""
    async with connected(await port(head=SOON, idle=1.5)) as peer:
        for _ in range(5):
            peer.writer.write(HEAD + b"\r\n")
            await peer.reader.readuntil(b'{"status":"ok"}')
            await asyncio.sleep(2 * SOON)


@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 1000\r\n\r\n[", b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n["],
    ids=["length", "chunked"],
)
async def test_80_a_dripping_body_is_given_up(app: App, port: Port, framing: bytes) -> None:
    """The deadline is for the whole body; who drips is told so, and nothing is stored."""
    async with connected(await port(linger=SOON, body=SOON)) as peer:
        peer.writer.write(POST + framing)
        said = await peer.drip(b" ")
    assert said.startswith(b"HTTP/1.1 408")
    assert b"Connection: close" in said
    assert "timeout" == json.loads(said.partition(b"\r\n\r\n")[2])["reason"]
    assert [] == await RestClient(app).journal()


@pytest.mark.parametrize("drops", [b"1\r\nx\r\n", b"1;x=y\r\n \r\n"], ids=["chunks", "chunk extensions"])
async def test_80_dripping_chunks_are_given_up(app: App, port: Port, drops: bytes) -> None:
    """A body without an announced length has the same deadline."""
    async with connected(await port(linger=SOON, body=SOON)) as peer:
        peer.writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        assert (await peer.drip(drops, SOON / 20)).startswith(b"HTTP/1.1 408")
    assert [] == await RestClient(app).journal()


async def test_80_dripping_trailers_are_given_up(app: App, port: Port) -> None:
    """A body is whole when its trailers are."""
    async with connected(await port(linger=SOON, body=SOON)) as peer:
        peer.writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n")
        assert (await peer.drip(b"X-Drip: drop\r\n")).startswith(b"HTTP/1.1 4")
    assert [] == await RestClient(app).journal()


@pytest.mark.parametrize("request_", [b"GET /livez", b"POST /nowhere", b"POST /v1/sessions/../x", b"PUT /livez"])
async def test_80_a_body_that_nobody_wants_is_not_waited_for(port: Port, request_: bytes) -> None:
    """Where no body is read, the answer comes at once, and the connection does not stay for the rest."""
    async with connected(await port(linger=SOON)) as peer:
        peer.writer.write(request_ + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        assert (await peer.drip(b"x")).startswith(b"HTTP/1.1 ")


# Readers


async def with_long_history(app: App) -> None:
    """Make the session's history and journal longer than all buffers on the way."""
    for seq in range(1, 41):
        await RestClient(app).send(final(seq, "x" * 250_000, seq=seq))


@pytest.mark.parametrize("path", [b"history", b"events", b"context"])
async def test_who_does_not_read_an_answer_is_cut_off(app: App, port: Port, path: bytes) -> None:
    """A caller that asks for much and takes none of it loses its connection, and what waited for it is let go."""
    await with_long_history(app)
    async with connected(await port(read=SOON), receive_buffer=4096) as peer:
        peer.writer.write(b"GET /v1/sessions/s/" + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await gone(app)
        assert 200 == (await RestClient(app).get("/livez")).status


async def test_a_closed_connection_does_not_wait_for_a_reader(app: App, port: Port) -> None:
    """A connection that was idle for too long goes, also when the peer has not taken all of the last answer."""
    await RestClient(app).send(final(1, "x" * 20_000, seq=1))
    async with connected(await port(idle=1.0, read=1.2), receive_buffer=4096) as peer, asyncio.timeout(TIMEOUT_S):
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not await waiting(app):
            peer.writer.write(b"GET /v1/sessions/s/history HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.sleep(0.002)
        assert 0 < await waiting(app) < 64 * 1024
        await gone(app)


async def waiting(app: App) -> int:
    """Bytes that wait in the service until the only peer takes something."""
    assert app.runner.server is not None
    transports = [handler.transport for handler in app.runner.server.connections]
    return sum(0 if one is None else one.get_write_buffer_size() for one in transports)


async def test_a_slow_reader_gets_its_answer(app: App, port: Port) -> None:
    """Who takes a little now and then is served to the end, however long it takes."""
    await with_long_history(app)
    async with connected(await port(read=1.0), receive_buffer=65_536) as peer:
        peer.writer.write(b"GET /v1/sessions/s/history HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        for _ in range(10):
            await asyncio.sleep(SOON)
            assert await peer.reader.readexactly(900_000)
        assert (await peer.end()).endswith(b"]}\r\n0\r\n\r\n")  # the last chunk


async def gone(app: App) -> None:
    """Wait until the service, which has connections, has none left."""
    server = app.runner.server
    assert server is not None
    async with asyncio.timeout(TIMEOUT_S):
        while not server.connections:  # noqa: ASYNC110 (it happens in the service, which tells no one)
            await asyncio.sleep(0)
        while server.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.long
async def test_a_producer_that_does_not_read_is_cut_off(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on the websocket who takes no answers loses its connection after a while, and holds up no one meanwhile."""
    app = await serve()
    monkeypatch.setattr("voicemem.server.ingest.websocket.READ_TIMEOUT_S", SOON)
    async with connected(app.ingest_address.port, receive_buffer=4096) as peer:
        peer.writer.write(handshake_head(app.ingest_address))
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.writer.write(websocket_frame(TEXT, json.dumps({"type": "session.open", "session_id": "s" * 128}).encode()))
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(send_for_ever(peer), 20)


async def send_for_ever(peer: Peer) -> None:
    """Send events that are answered each by itself."""
    for seq in itertools.count(1):
        kind = b"resume" if seq % 500 == 0 else b"nope"
        peer.writer.write(websocket_frame(TEXT, b'{"type":"%s","seq":%d}' % (kind, seq)))
        await peer.writer.drain()


# Many at once


async def test_slow_callers_hold_up_nobody(app: App, port: Port) -> None:
    """While hundreds of connections drip, a caller is served; afterwards all of them are gone."""
    number = await port(head=1.0)
    peers = [await asyncio.open_connection("127.0.0.1", number) for _ in range(300)]
    for _, writer in peers:
        writer.write(HEAD)
    assert 200 == (await RestClient(app).get("/livez")).status
    await gone(app)
    for _, writer in peers:
        writer.close()


async def test_connections_beyond_the_most_are_closed(port: Port) -> None:
    """So many connections with a key and no more; the one that is idle for the longest gives way."""
    number = await port(ConnectionLimits(authenticated=2, unauthenticated=2))

    async def ask(peer: Peer) -> None:
        peer.writer.write(NO_SESSION)
        assert (await peer.reader.readuntil(b"}")).startswith(b"HTTP/1.1 404")

    async with connected(number) as first, connected(number) as second:
        for peer in (first, second, first):
            await ask(peer)
        async with connected(number) as third:
            await ask(third)
            assert b"" == await second.end()
            await ask(first)


async def test_a_connection_without_a_key_gives_way_to_a_newer_one(port: Port) -> None:
    """The oldest idle one is closed, with an answer if it has had none; who comes then is served."""
    number = await port(ConnectionLimits(authenticated=2, unauthenticated=2))
    async with connected(number) as first, connected(number) as second:
        second.writer.write(HEAD + b"\r\n")
        await second.reader.readuntil(b'{"status":"ok"}')
        async with connected(number) as third:
            assert (await first.end()).startswith(b"HTTP/1.1 503")
            third.writer.write(HEAD + b"\r\n")
            await third.reader.readuntil(b'{"status":"ok"}')
            async with connected(number) as fourth:
                assert b"" == await second.end()
                fourth.writer.write(HEAD + b"\r\n")
                await fourth.reader.readuntil(b'{"status":"ok"}')


def test_the_default_deadlines_are_the_documented_ones() -> None:
    """10 s for a head, 75 s idle, 5 s for the rest of an unwanted body, 30 s for a reader and for a body."""
    assert (10.0, 75.0, 5.0, 30.0, 30.0) == DEADLINES
    both = (ingest_limits(), rest_limits())
    assert [max_files() // 2, max_files() // 4] == [one.authenticated + one.unauthenticated for one in both]
