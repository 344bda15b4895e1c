"""A lean receiver of webhooks on many ports, a process of its own, for `bench.webhooks`.

    python -m bench.harness.receiver PLAN     a `Plan` as JSON; prints where it listens, a list of URLs as JSON

It answers every POST with 200, and notes when its last byte came. `GET /count` returns how many different
webhook events have come; `GET /report` returns everything as a `Report`, and starts again.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from typing import cast

import msgspec
import uvloop
from msgspec import Struct

from voicemem.webhooks.requests import verify

END = b"\r\n\r\n"
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)
NOTICE = re.compile(rb"\r\nwebhook-id: *([^\r]*)", re.I)
SESSION = re.compile(rb'"sid":"([^"]*)"')
HEAD_OF_BODY = 300


class Plan(Struct, kw_only=True):
    hosts: list[str]
    """Addresses of this machine; the receivers are spread over them."""
    receivers: int
    secret: str
    sample: int
    """The signatures of one of this many requests are verified; 0 for none."""


class Report(Struct, kw_only=True):
    arrived: dict[str, float]
    """By session: when its webhook first came, by the clock of `time.monotonic`."""
    webhook_events: int
    """Number of different webhook events."""
    requests: int
    verified: int
    wrong: int
    """Requests of the sample with a wrong signature."""
    bodies: list[str]
    """The first body, as an example."""


class Received:
    """What all ports have received."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.forget()

    def forget(self) -> None:
        self.arrived: dict[str, float] = {}
        self.webhook_events: set[bytes] = set()
        self.requests = self.verified = self.wrong = 0
        self.bodies: list[str] = []

    def take(self, head: bytes, body: bytes) -> None:
        now = time.monotonic()
        self.requests += 1
        webhook_event, session = NOTICE.search(head), SESSION.search(body[:HEAD_OF_BODY])
        self.webhook_events.add(webhook_event[1] if webhook_event else b"")
        self.arrived.setdefault(session[1].decode() if session else "", now)
        if not self.bodies:
            self.bodies.append(body.decode())
        if self.plan.sample and self.requests % self.plan.sample == 1 % self.plan.sample:
            lines = [line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:]]
            headers = {name.strip(): value.strip() for name, _, value in lines}
            right = all(verify(headers, body, self.plan.secret, time.time()).values())
            self.verified += right
            self.wrong += not right

    def report(self) -> bytes:
        told = Report(
            arrived=self.arrived,
            webhook_events=len(self.webhook_events),
            requests=self.requests,
            verified=self.verified,
            wrong=self.wrong,
            bodies=self.bodies,
        )
        self.forget()
        return msgspec.json.encode(told)


class Connection(asyncio.Protocol):
    """One keep-alive connection."""

    transport: asyncio.Transport

    def __init__(self, received: Received) -> None:
        self.received = received
        self.data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own has no common base

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(END)) >= 0:
            head = bytes(self.data[:end])
            length = LENGTH.search(head)
            whole = end + len(END) + (int(length[1]) if length else 0)
            if len(self.data) < whole:
                return
            body = bytes(self.data[end + len(END) : whole])
            del self.data[:whole]
            self.transport.write(self.answer(head, body))

    def answer(self, head: bytes, body: bytes) -> bytes:
        told = b"{}"
        if head.startswith(b"GET /report"):
            told = self.received.report()
        elif head.startswith(b"GET"):
            told = str(len(self.received.webhook_events)).encode()
        else:
            self.received.take(head, body)
        return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(told) + told


async def main(plan: Plan) -> None:
    received, loop = Received(plan), asyncio.get_running_loop()
    urls = []
    for number in range(plan.receivers):
        host = plan.hosts[number % len(plan.hosts)]
        server = await loop.create_server(lambda: Connection(received), host, 0, backlog=1_000)
        urls.append(f"http://{host}:{server.sockets[0].getsockname()[1]}/hook")
    print(msgspec.json.encode(urls).decode(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=Plan)))
