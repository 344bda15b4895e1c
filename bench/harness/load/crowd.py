"""Many sessions at once: the load generator of `bench.sessions`, `bench.restart` and `bench.webhooks`, its own process.

    python -m bench.harness.load.crowd PLAN     a `Plan` as JSON

It opens the sessions, sends each the beginning of a call (or what is missing of it), waits for the acks, and prints a
`Filled` as JSON. Then it executes each line of its standard input, and prints
the result:

    rate SECONDS EVENTS_PER_SECOND    single events, evenly spread over all sessions: a `Paced`
    end NUMBER GAP_SECONDS            that many sessions end, at once or with a pause after each: an `Ended`

It exits at the end of its input.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec
import uvloop
from msgspec import Struct

from bench.harness.load import calls, websocket
from bench.harness.load.generator import usage
from bench.harness.load.websocket import Line
from bench.harness.report import percentile

VARIANTS = 4
FILLING = 100
"""Sessions that are filled, and connections that are made, at the same time."""
CHUNK = 128
"""Events per frame while filling."""
AHEAD = 2_000
"""Events of a call that are kept for sending after it was filled."""
TICK_S = 0.001
OPENS, SESSION = b'{"type":', b'{"session_id":"%s","type":'


class Plan(Struct, kw_only=True):
    host: str
    port: int
    path: str
    sessions: int
    connections: int
    """Connections; the sessions are spread over them evenly."""
    turns: int
    """Turns of each session, sent before `Filled`."""
    name: str = "bench"
    """What the ids of the sessions begin with."""
    long_sessions: int = 0
    """How many of the first sessions are longer."""
    long_turns: int = 0
    settings: list[dict[str, Any]] = []
    """Configurations, used for the sessions in turn."""
    server_pid: int


class Filled(Struct, kw_only=True):
    seconds: float
    events: int
    server_rss_mib: float


class Paced(Struct, kw_only=True):
    events: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    server_cpu_s: float
    server_rss_mib: float
    late_p99_ms: float


class Ended(Struct, kw_only=True):
    """When the ends were written, and when the last was acknowledged, by the clock of `time.monotonic`."""

    sent: dict[str, float]
    acked: float


class Sender:
    """One session, and how far its call has come."""

    def __init__(self, line: Line, call: Sequence[bytes], shared: bool) -> None:
        self.line = line
        self.call = call
        self.at = line.next_seq - 1
        self.prefix = SESSION.replace(b"%s", line.session_id.encode()) if shared else OPENS

    async def fill(self, events: int) -> None:
        while self.at < events:
            pieces = self.call[self.at : min(self.at + CHUNK, events)]
            self.at += len(pieces)
            self.line.send(b"[" + b",".join(pieces).replace(OPENS, self.prefix) + b"]", self.at)
            await self.line.until(self.at)

    def send(self) -> None:
        event = self.call[self.at]
        self.at += 1
        self.line.send(event.replace(OPENS, self.prefix, 1), self.at)

    def end(self) -> bytes:
        self.at += 1
        return self.prefix + b'"session.end","seq":%d}' % self.at


class Crowd:
    """All sessions."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.senders: list[Sender] = []
        self.samples: list[tuple[float, int]] = []
        events = [len(calls.turns(plan.turns, variant)) for variant in range(VARIANTS)]
        longer = [len(calls.turns(plan.long_turns, variant)) for variant in range(VARIANTS)]
        self.events = (events, longer)
        longest = max(*events, *longer) + AHEAD
        self.calls = [list(islice(calls.encoded(variant), longest)) for variant in range(VARIANTS)]

    def size(self, number: int) -> int:
        """Number of events of a filled session."""
        return self.events[number < self.plan.long_sessions][number % VARIANTS]

    async def open(self) -> None:
        """All connections and sessions."""
        plan = self.plan
        places = asyncio.Semaphore(FILLING)
        per_connection = -(-plan.sessions // plan.connections)

        async def one(first: int) -> list[Sender]:
            senders = []
            async with places:
                connection = await websocket.connect(plan.host, plan.port, plan.path)
                for number in range(first, min(first + per_connection, plan.sessions)):
                    line = connection.line(f"{plan.name}-{number:05}", self.note)
                    settings = plan.settings[number % len(plan.settings)] if plan.settings else {}
                    await line.open(settings)
                    senders.append(Sender(line, self.calls[number % VARIANTS], per_connection > 1))
            return senders

        opened = await asyncio.gather(*(one(first) for first in range(0, plan.sessions, per_connection)))
        self.senders = [sender for of_one in opened for sender in of_one]

    def note(self, seconds: float) -> None:
        self.samples.append((seconds, 1))

    async def fill(self) -> Filled:
        begin, before = time.perf_counter(), sum(sender.at for sender in self.senders)
        places = asyncio.Semaphore(FILLING)

        async def one(number: int, sender: Sender) -> None:
            async with places:
                await sender.fill(self.size(number))

        await asyncio.gather(*(one(number, sender) for number, sender in enumerate(self.senders)))
        took = time.perf_counter() - begin
        events = sum(sender.at for sender in self.senders) - before
        return Filled(seconds=took, events=events, server_rss_mib=usage(self.plan.server_pid).server_rss or 0.0)

    async def pace(self, seconds: float, rate: float) -> Paced:
        """Send single events, one session after the other, whether or not the server keeps up."""
        self.samples.clear()
        late: list[tuple[float, int]] = []
        before, begin, sent = usage(self.plan.server_pid), time.perf_counter(), 0
        while (now := time.perf_counter()) < begin + seconds:
            due = int((now - begin) * rate)
            if due > sent:
                late.append((now - begin - sent / rate, 1))
            for number in range(sent, due):
                self.senders[number % len(self.senders)].send()
            sent = due
            await asyncio.sleep(TICK_S)
        await asyncio.gather(*(sender.line.until(sender.at) for sender in self.senders if sender.line.times))
        after = usage(self.plan.server_pid)
        return Paced(
            events=len(self.samples),
            p50_ms=percentile(self.samples, 0.5) * 1000,
            p99_ms=percentile(self.samples, 0.99) * 1000,
            worst_ms=max(self.samples, default=(0.0, 1))[0] * 1000,
            server_cpu_s=(after.server_cpu or 0.0) - (before.server_cpu or 0.0),
            server_rss_mib=after.server_rss or 0.0,
            late_p99_ms=percentile(late, 0.99) * 1000,
        )

    async def end(self, number: int, gap: float) -> Ended:
        """End the next sessions; without a gap, all of one connection in one frame."""
        ending, self.senders = self.senders[:number], self.senders[number:]
        sent: dict[str, float] = {}
        for group in [[one] for one in ending] if gap else by_connection(ending):
            frame = b"[" + b",".join(sender.end() for sender in group) + b"]"
            sent |= dict.fromkeys((sender.line.session_id for sender in group), time.monotonic())
            group[0].line.websocket.send(frame)
            if gap:
                await asyncio.sleep(gap)
        await asyncio.gather(*(sender.line.until(sender.at) for sender in ending))
        return Ended(sent=sent, acked=time.monotonic())

    def leave(self) -> None:
        for connection in {sender.line.websocket for sender in self.senders}:
            connection.leave()


def by_connection(senders: Sequence[Sender]) -> list[list[Sender]]:
    groups: dict[websocket.Websocket, list[Sender]] = {}
    for sender in senders:
        groups.setdefault(sender.line.websocket, []).append(sender)
    return list(groups.values())


def tell(value: Struct) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


async def main(plan: Plan) -> None:
    crowd = Crowd(plan)
    await crowd.open()
    gc.collect()
    gc.freeze()
    tell(await crowd.fill())
    while words := (await asyncio.to_thread(sys.stdin.readline)).split():
        if words[0] == "rate":
            tell(await crowd.pace(float(words[1]), float(words[2])))
        else:
            tell(await crowd.end(int(words[1]), float(words[2])))
    crowd.leave()
    await asyncio.sleep(0.1)


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=Plan)))
