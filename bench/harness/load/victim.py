"""One call whose acks are watched, a process of its own: how long do the others hold it up?

    python -m bench.harness.load.victim HOST PORT PATH     prints `open`; at the end of its input, `Ack`s as JSON

It sends an event every `EVERY_S`, whether or not those before it are acknowledged, so the longest ack is as long as
whatever held it up. Where it may, it is a real-time process: it waits for no processor, so what it measures is the
server's.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from contextlib import suppress
from typing import NamedTuple

import msgspec

from bench.harness.load import calls
from bench.harness.load.frames import PING, PONG, TEXT, UPGRADE, client_frame, server_frame
from bench.harness.load.websocket import TOLD

EVERY_S = 0.002
SESSION_ID = "victim"


class Ack(NamedTuple):
    """An event: when it was sent, by the clock of `time.monotonic`, and the ms until its ack."""

    sent_s: float
    ms: float


class Victim:
    def __init__(self, host: str, port: int, path: str) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(UPGRADE.format(path=path, host=host, port=port).encode())
        self.events = calls.encoded()
        self.sent: list[float] = []
        self.acks: list[Ack] = []
        self.data = b""
        while b"\r\n\r\n" not in self.data:
            self.data += self.socket.recv(4096)
        self.data = self.data.partition(b"\r\n\r\n")[2]
        opening = {"type": "session.open", "session_id": SESSION_ID, "session": {"idle_timeout": 0}}
        self.socket.sendall(client_frame(msgspec.json.encode(opening)))
        self.is_open = False
        while not self.is_open:
            self.take()

    def take(self) -> None:
        """Take what has come. Raises `ConnectionError`."""
        received = self.socket.recv(65_536)
        if not received:
            raise ConnectionError("the server has closed the connection")
        now, at = time.monotonic(), 0
        self.data += received
        while (frame := server_frame(self.data, at)) is not None:
            at = frame.end
            if frame.opcode == PING:
                self.socket.sendall(client_frame(frame.payload, PONG))
            elif frame.opcode == TEXT:
                told = TOLD.decode(frame.payload)
                self.is_open = self.is_open or told.type == "session.ready"
                if told.type == "error":
                    raise ConnectionError(told.code)
                if told.type == "ack" and told.seq is not None:
                    first = len(self.acks)
                    self.acks += [Ack(sent, (now - sent) * 1000) for sent in self.sent[first : told.seq]]
        self.data = self.data[at:]

    def run(self) -> None:
        """Send and listen until the input ends, and everything is acknowledged."""
        due, over = time.monotonic(), False
        while not over or len(self.acks) < len(self.sent):
            wait_s = max(0.0, due - time.monotonic())
            watched = [self.socket] if over else [self.socket, sys.stdin]
            ready, *_ = select.select(watched, [], [], wait_s)
            over = over or sys.stdin in ready
            if self.socket in ready:
                self.take()
            if not over and time.monotonic() >= due:
                self.sent.append(time.monotonic())
                self.socket.sendall(client_frame(next(self.events)))
                due = max(due + EVERY_S, self.sent[-1])


if __name__ == "__main__":
    host, port, path = sys.argv[1:]
    with suppress(AttributeError, PermissionError):  # not everywhere, nor for everyone
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    victim = Victim(host, int(port), path)
    print("open", flush=True)
    victim.run()
    print(msgspec.json.encode(victim.acks).decode(), flush=True)
