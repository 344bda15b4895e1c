"""One websocket connection of a load generator, and its sessions."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import msgspec
from msgspec import Struct

from bench.harness.load.frames import CLOSE, NORMAL, PING, PONG, TEXT, UPGRADE, client_frame, server_frame

Noted = Callable[[float], None]


class Told(Struct):
    """The fields of a server's frame that matter here."""

    type: str
    session_id: str | None = None
    seq: int | None = None
    next_seq: int | None = None
    code: str | None = None


TOLD = msgspec.json.Decoder(Told)


class Line:
    """One session on a connection; `note` gets the seconds from send to ack of single events."""

    def __init__(self, websocket: Websocket, session_id: str, note: Noted | None = None) -> None:
        self.websocket = websocket
        self.session_id = session_id
        self.note = note
        self.next_seq = 1
        """The next seq, as the server reported."""
        self.acked = 0
        self.times: deque[tuple[int, float]] = deque()
        self.waiting: tuple[int, asyncio.Future[None]] | None = None

    def open(self, settings: dict[str, Any]) -> asyncio.Future[None]:
        """Open the session, and wait for its `session.ready`. Raises `ConnectionError`."""
        opening = {"type": "session.open", "session_id": self.session_id, "session": settings}
        self.waiting = (0, asyncio.get_running_loop().create_future())
        self.websocket.send(msgspec.json.encode(opening))
        return self.waiting[1]

    def send(self, payload: bytes, last_seq: int) -> None:
        """Send a frame whose last event has this seq. Raises `ConnectionError` if the connection is lost."""
        if self.websocket.error is not None:
            raise ConnectionError(self.websocket.error)
        self.times.append((last_seq, time.perf_counter()))
        self.websocket.send(payload)

    def until(self, seq: int) -> asyncio.Future[None]:
        """Wait until everything up to this seq is acknowledged."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting = (seq, future)
        if self.acked >= seq:
            future.set_result(None)
        elif self.websocket.error is not None:
            self.fail(self.websocket.error)
        return future

    def hear(self, told: Told) -> None:
        if told.type == "ack" and told.seq is not None:
            self.acked = max(self.acked, told.seq)
            now = time.perf_counter()
            while self.times and self.times[0][0] <= self.acked:
                _, sent_at = self.times.popleft()
                if self.note is not None:
                    self.note(now - sent_at)
        elif told.type == "error":
            self.fail(told.code or "error")
        elif told.type == "session.ready":
            self.next_seq = told.next_seq or 1
        else:
            return
        if self.waiting is not None and self.acked >= self.waiting[0] and not self.waiting[1].done():
            self.waiting[1].set_result(None)

    def fail(self, why: str) -> None:
        if self.waiting is not None and not self.waiting[1].done():
            self.waiting[1].set_exception(ConnectionError(why))


class Websocket(asyncio.Protocol):
    """The connection itself; frames without a session are for its only one."""

    transport: asyncio.Transport

    def __init__(self, host: str, port: int, path: str) -> None:
        self.address = (host, port, path)
        self.lines: dict[str, Line] = {}
        self.upgraded = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self.error: str | None = None
        self.leaving = False
        self.rest = b""

    def line(self, session_id: str, note: Noted | None = None) -> Line:
        self.lines[session_id] = Line(self, session_id, note)
        return self.lines[session_id]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        host, port, path = self.address
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own has no common base
        self.transport.write(UPGRADE.format(path=path, host=host, port=port).encode())

    def data_received(self, data: bytes) -> None:
        data = self.rest + data
        at = 0 if self.upgraded.done() else self.upgrade(data)
        while self.upgraded.done() and (frame := server_frame(data, at)) is not None:
            at = frame.end
            self.hear(frame.opcode, frame.payload)
        self.rest = data[at:]

    def upgrade(self, data: bytes) -> int:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return 0
        if data.startswith(b"HTTP/1.1 101"):
            self.upgraded.set_result(None)
        else:
            self.upgraded.set_exception(ConnectionError(data.split(b"\r\n")[0].decode()))
        return end + 4

    def hear(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self.transport.write(client_frame(payload, PONG))
        elif opcode == CLOSE:
            if not self.leaving:  # otherwise the server waits for an answer
                self.transport.write(client_frame(payload, CLOSE))
            self.fail(f"closed {payload[2:].decode()}")
        elif opcode == TEXT:
            told = TOLD.decode(payload)
            line = self.lines.get(told.session_id or "") or next(iter(self.lines.values()))
            line.hear(told)

    def send(self, payload: bytes) -> None:
        self.transport.write(client_frame(payload))

    def fail(self, why: str) -> None:
        if self.leaving or self.error is not None:
            return
        self.error = why
        if not self.upgraded.done():
            self.upgraded.set_exception(ConnectionError(why))
        for line in self.lines.values():
            line.fail(why)

    def leave(self) -> None:
        """Send a close frame; the server closes the connection."""
        self.leaving = True
        self.transport.write(client_frame(NORMAL, CLOSE))

    def connection_lost(self, error: Exception | None) -> None:
        self.fail("connection lost")
        self.gone.set()


async def connect(host: str, port: int, path: str) -> Websocket:
    """Connect and upgrade. Raises `ConnectionError`, `OSError`."""
    loop = asyncio.get_running_loop()
    _, websocket = await loop.create_connection(lambda: Websocket(host, port, path), host, port)
    await websocket.upgraded
    return websocket
