"""One connection of the load generator, and the counters that all connections share."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import cast

import msgspec
from msgspec import Struct

from bench.harness.load import calls
from bench.harness.load.frames import CLOSE, NORMAL, PING, PONG, TEXT, UPGRADE, client_frame, server_frame

READY_AHEAD = 4_000
"""Events made before the start; more are made if a connection gets that far."""


class Plan(Struct, kw_only=True):
    host: str
    port: int
    path: str
    connections: int
    seconds: float
    warm_up: float
    frame: int
    """Events per frame."""
    window: int
    rate: float
    """Events per second and connection; 0 for as fast as they are acknowledged."""
    smooth: bool = False
    """With a rate: each event is sent at its time; otherwise those of a millisecond come together, in a burst."""
    server_pid: int
    first: int = 0
    """Number of the first session: the others follow."""
    database_pids: list[int] = []
    """First processes of database servers, if there are any: their time is measured too."""


class Answer(Struct):
    type: str
    seq: int | None = None
    code: str | None = None


ANSWER = msgspec.json.Decoder(Answer)


class Frames:
    """One call as frames ready to be written, made as needed."""

    def __init__(self, variant: int, size: int) -> None:
        self.events = calls.encoded(variant)
        self.size = size
        self.made: list[bytes] = []
        self.make(READY_AHEAD // size)

    def make(self, number: int) -> None:
        for _ in range(number):
            pieces = [next(self.events) for _ in range(self.size)]
            self.made.append(client_frame(b"[" + b",".join(pieces) + b"]" if self.size > 1 else pieces[0]))

    def take(self, begin: int, end: int) -> bytes:
        if end > len(self.made):
            self.make(max(1000 // self.size, end - len(self.made)))
        return b"".join(self.made[begin:end])


class Tally:
    """Counters that all connections share."""

    def __init__(self) -> None:
        self.measuring = False
        self.samples: list[tuple[float, int]] = []
        """Seconds from send to ack, and the number of events."""
        self.late: list[tuple[float, int]] = []
        self.acks = 0
        self.errors: list[str] = []

    def note(self, latency: float, events: int) -> None:
        if self.measuring:
            self.samples.append((latency, events))


class Client(asyncio.Protocol):
    """One connection with one session, from the upgrade to the last ack."""

    transport: asyncio.Transport

    def __init__(self, plan: Plan, session_id: str, frames: Frames, tally: Tally) -> None:
        self.plan = plan
        self.session_id = session_id
        self.frames = frames
        self.tally = tally
        self.upgraded = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self.leaving = False
        self.rest = b""
        self.sent = 0
        self.acked = 0
        self.times: deque[tuple[int, float]] = deque()
        """The last seq and the time of each write."""
        self.sending = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own has no common base
        self.transport.write(UPGRADE.format(path=self.plan.path, host=self.plan.host, port=self.plan.port).encode())

    def data_received(self, data: bytes) -> None:
        data = self.rest + data
        at = 0 if self.upgraded else self.upgrade(data)
        while self.upgraded and (frame := server_frame(data, at)) is not None:
            at = frame.end
            self.hear(frame.opcode, frame.payload)
        self.rest = data[at:]

    def upgrade(self, data: bytes) -> int:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return 0
        if not data.startswith(b"HTTP/1.1 101"):
            self.fail(data.split(b"\r\n")[0].decode())
        self.upgraded = True
        opening = {"type": "session.open", "session_id": self.session_id}
        self.transport.write(client_frame(msgspec.json.encode(opening)))
        return end + 4

    def hear(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self.transport.write(client_frame(payload, PONG))
        if opcode == CLOSE and not self.leaving:
            self.fail(f"closed {payload[2:].decode()}")
        if opcode != TEXT:
            return
        answer = ANSWER.decode(payload)
        if answer.type == "error":
            self.fail(answer.code or "error")
        if answer.type == "session.ready" and not self.ready.done():
            self.ready.set_result(None)
        if answer.type == "ack" and answer.seq is not None:
            self.take_ack(answer.seq)

    def take_ack(self, seq: int) -> None:
        now = time.perf_counter()
        if self.tally.measuring:
            self.tally.acks += 1
        while self.times and self.acked < seq:
            last, sent_at = self.times[0]
            upto = min(last, seq)
            self.tally.note(now - sent_at, upto - self.acked)
            self.acked = upto
            if upto == last:
                self.times.popleft()
        self.fill()

    def fill(self) -> None:
        """Send as much as the window has room for."""
        room = (self.plan.window - (self.sent - self.acked)) // self.plan.frame
        if self.sending and not self.plan.rate and room > 0:
            self.send(room)

    def send(self, frames: int) -> None:
        begin = self.sent // self.plan.frame
        data = self.frames.take(begin, begin + frames)
        self.sent += frames * self.plan.frame
        self.times.append((self.sent, time.perf_counter()))
        self.transport.write(data)

    def fail(self, why: str) -> None:
        self.tally.errors.append(why)
        self.sending = False
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(why))

    def leave(self) -> None:
        """Send a close frame; the server closes the connection."""
        self.leaving = True
        self.transport.write(client_frame(NORMAL, CLOSE))

    def connection_lost(self, error: Exception | None) -> None:
        self.gone.set()
        if not self.leaving:
            self.fail("connection lost")
