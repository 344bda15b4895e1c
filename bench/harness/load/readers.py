"""The load generator of `bench.history`, a process of its own: connections that read as fast as they are answered.

python -m bench.harness.load.readers PLAN     a `Plan` as JSON; prints a `Read` as JSON
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time

import msgspec
import uvloop
from msgspec import Struct

from bench.harness.load import http_client, websocket
from bench.harness.load.generator import usage
from bench.harness.report import percentile


class Ingest(Struct):
    """Port that takes events."""

    host: str
    port: int
    path: str


class Plan(Struct, kw_only=True):
    port: int
    path: str
    """`{number}` stands for the number of the connection."""
    status: int
    """Status of a right answer."""
    headers: list[str]
    """Whole header lines, for each connection in turn."""
    connections: int
    seconds: float
    warm_up: float
    server_pid: int
    changing: Ingest | None = None
    """If given, an event is acknowledged in the connection's session before each read, which must then show it."""
    changed: str = ""
    """The event; `{seq}` stands for its number."""


class Read(Struct, kw_only=True):
    """Measured between the warm-up and the end."""

    seconds: float
    requests: int
    p50_ms: float
    p99_ms: float
    server_cpu_s: float
    body_bytes: int
    """Size of the last answer."""
    errors: list[str]


class Tally:
    """Counters that all connections share."""

    def __init__(self) -> None:
        self.running = True
        self.measuring = False
        self.samples: list[tuple[float, int]] = []
        self.body_bytes = 0
        self.errors: set[str] = set()


async def read(plan: Plan, number: int, tally: Tally) -> None:
    """One connection: a read, its answer, the next read."""
    caller = await http_client.connect("127.0.0.1", plan.port)
    headers = plan.headers[number] if plan.headers else ""
    text = http_client.request(f"127.0.0.1:{plan.port}", plan.path.replace("{number}", str(number)), headers=headers)
    line = await opened(plan, number)
    seq = 0 if line is None else line.next_seq
    while tally.running:
        if line is not None:
            line.send(plan.changed.replace("{seq}", str(seq)).encode(), seq)
            await line.until(seq)
            seq += 1
        begin = time.perf_counter()
        answer = await caller.call(text)
        if tally.measuring:
            tally.samples.append((time.perf_counter() - begin, 1))
        if answer.status != plan.status:
            tally.errors.add(f"answered {answer.status}")
        if line is not None and f"number {seq - 1}.".encode() not in answer.body:
            tally.errors.add("a read did not show what was acknowledged before it")
        tally.body_bytes = len(answer.body)
    caller.transport.close()
    if line is not None:
        line.websocket.leave()


async def opened(plan: Plan, number: int) -> websocket.Line | None:
    if plan.changing is None:
        return None
    connection = await websocket.connect(plan.changing.host, plan.changing.port, plan.changing.path)
    line = connection.line(f"bench-{number}")
    await line.open({})
    return line


async def run(plan: Plan) -> Read:
    tally = Tally()
    async with asyncio.TaskGroup() as group:
        for number in range(plan.connections):
            group.create_task(read(plan, number, tally))
        gc.collect()
        gc.freeze()
        await asyncio.sleep(plan.warm_up)
        before, tally.measuring, begin = usage(plan.server_pid), True, time.perf_counter()
        await asyncio.sleep(plan.seconds)
        after, tally.measuring, end = usage(plan.server_pid), False, time.perf_counter()
        tally.running = False
    return Read(
        seconds=end - begin,
        requests=len(tally.samples),
        p50_ms=percentile(tally.samples, 0.5) * 1000,
        p99_ms=percentile(tally.samples, 0.99) * 1000,
        server_cpu_s=(after.server_cpu or 0.0) - (before.server_cpu or 0.0),
        body_bytes=tally.body_bytes,
        errors=sorted(tally.errors),
    )


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(run(msgspec.json.decode(sys.argv[1], type=Plan)))))
