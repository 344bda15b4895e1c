"""The load generator, a process of its own: connections that stream calls and count what is acknowledged.

    python -m bench.harness.load.generator PLAN     a `Plan` as JSON; prints a `Loaded` as JSON

Each connection carries one session. Without a `rate` it keeps `window` events unacknowledged, and sends more as soon
as an ack makes room; with one, every event has its time, whether or not the server keeps up.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import uvloop
from msgspec import Struct

from bench.harness.load.client import Client, Frames, Plan, Tally
from bench.harness.report import percentile

VARIANTS = 4
"""Number of different calls; connections share them."""
OPENING = 50
"""Connections that are opened at the same time."""
OPEN_S = 30.0
BURST_S, SMOOTH_S = 0.001, 0.000_05
"""Between two looks at what is due. The loop's own clock has milliseconds, so a thread wakes it for smooth arrivals."""
DRAIN_S = 30.0
"""Seconds to wait after the end for the acks of what was sent."""


class Loaded(Struct, kw_only=True):
    """Measured between the warm-up and the end; `acked` and `sent` count from the first event."""

    seconds: float
    events: int
    acks: int
    p50_ms: float
    p99_ms: float
    server_cpu_s: float | None
    server_rss_mib: float | None
    generator_cpu_s: float
    database_cpu_s: float
    """Of all processes of the database servers."""
    late_p99_ms: float
    """How late the generator itself was, with a rate."""
    event_bytes: float
    sent: int
    acked: dict[str, int]
    """By session."""
    errors: list[str]


async def run(plan: Plan) -> Loaded:
    """Open everything, send for a while, then wait for the acks of everything sent."""
    tally = Tally()
    frames = [Frames(variant, plan.frame) for variant in range(VARIANTS)]
    clients = await asyncio.wait_for(connected(plan, frames, tally), OPEN_S)
    gc.collect()
    gc.freeze()
    begin = time.perf_counter()
    for client in clients:
        client.sending = True
        client.fill()
    sending = asyncio.create_task(pace(clients, plan, tally))
    await asyncio.sleep(plan.warm_up)
    stored = sum(map(tree_cpu_s, plan.database_pids))
    before, tally.measuring, measured_from = usage(plan.server_pid), True, time.perf_counter()
    await asyncio.sleep(max(0.0, begin + plan.warm_up + plan.seconds - time.perf_counter()))
    after, tally.measuring, measured_to = usage(plan.server_pid), False, time.perf_counter()
    stored = sum(map(tree_cpu_s, plan.database_pids)) - stored
    sending.cancel()
    for client in clients:
        client.sending = False
    await drained(clients, tally)
    for client in clients:
        client.leave()
    await asyncio.wait_for(asyncio.gather(*(client.gone.wait() for client in clients)), DRAIN_S)
    return loaded(clients, tally, measured_to - measured_from, before, after, stored)


async def connected(plan: Plan, frames: Sequence[Frames], tally: Tally) -> list[Client]:
    """Make all connections, and open their sessions."""
    places = asyncio.Semaphore(OPENING)
    loop = asyncio.get_running_loop()

    async def one(number: int) -> Client:
        client = Client(plan, f"bench-{plan.first + number:05}", frames[number % len(frames)], tally)
        async with places:
            await loop.create_connection(lambda: client, plan.host, plan.port)
            await client.ready
        return client

    return await asyncio.gather(*(one(number) for number in range(plan.connections)))


async def pace(clients: Sequence[Client], plan: Plan, tally: Tally) -> None:
    """Send at a rate: one event after the other, spread evenly over connections and time."""
    if not plan.rate:
        return
    per_second, begin, sent = plan.rate * len(clients), time.perf_counter(), 0
    ticks = Ticks() if plan.smooth else None
    try:
        while True:
            now = time.perf_counter()
            due = int((now - begin) * per_second)
            if due > sent and tally.measuring:
                tally.late.append((now - begin - sent / per_second, 1))
            for number in range(sent, due):
                clients[number % len(clients)].send(1)
            sent = due
            await (asyncio.sleep(BURST_S) if ticks is None else ticks.next())
    finally:
        if ticks is not None:
            ticks.stopped = True


class Ticks:
    """A thread that wakes the event loop more often than its own timers could."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.ticked = asyncio.Event()
        self.stopped = False
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            while not self.stopped:
                time.sleep(SMOOTH_S)
                if not self.ticked.is_set():
                    self.loop.call_soon_threadsafe(self.ticked.set)

    async def next(self) -> None:
        await self.ticked.wait()
        self.ticked.clear()


async def drained(clients: Sequence[Client], tally: Tally) -> None:
    deadline = time.perf_counter() + DRAIN_S
    while any(client.acked < client.sent for client in clients) and not tally.errors:
        if time.perf_counter() > deadline:
            tally.errors.append("not everything was acknowledged in time")
        await asyncio.sleep(0.01)


class Usage(Struct):
    server_cpu: float | None
    server_rss: float | None
    own_cpu: float


def usage(pid: int) -> Usage:
    """CPU seconds and memory of the server, where they are known, and this process's CPU seconds."""
    try:
        # After the name in brackets, user and system time are the 12th and 13th field, resident pages the 22nd.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return Usage(None, None, time.process_time())
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return Usage(cpu, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20, time.process_time())


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process, of its children, and of those that have ended."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if stat.parent.name == str(pid):
            ticks += sum(map(int, fields[11:15]))  # its own, and of children that it has waited for
        elif fields[1] == str(pid):
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def loaded(
    clients: Sequence[Client], tally: Tally, took: float, before: Usage, after: Usage, database_cpu_s: float
) -> Loaded:
    cpu = None
    if before.server_cpu is not None and after.server_cpu is not None:
        cpu = after.server_cpu - before.server_cpu
    longest = max(clients, key=lambda client: client.sent)
    data = longest.frames.take(0, longest.sent // longest.plan.frame)
    return Loaded(
        seconds=took,
        events=sum(events for _, events in tally.samples),
        acks=tally.acks,
        p50_ms=percentile(tally.samples, 0.5) * 1000,
        p99_ms=percentile(tally.samples, 0.99) * 1000,
        server_cpu_s=cpu,
        server_rss_mib=after.server_rss,
        generator_cpu_s=after.own_cpu - before.own_cpu,
        database_cpu_s=database_cpu_s,
        late_p99_ms=percentile(tally.late, 0.99) * 1000,
        event_bytes=len(data) / max(1, longest.sent),
        sent=sum(client.sent for client in clients),
        acked={client.session_id: client.acked for client in clients},
        errors=sorted(set(tally.errors)),
    )


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(run(msgspec.json.decode(sys.argv[1], type=Plan)))))
