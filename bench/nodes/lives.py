"""A node is killed, and its producers go on at another; a node starts beside one that has many open sessions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import psycopg
import uvloop

from bench.harness.load import crowd, websocket
from bench.harness.load.crowds import crowd as running_crowd
from bench.harness.load.websocket import Line
from bench.harness.report import Measured, at_most, percentile
from bench.harness.servers import Server, command, started, stop
from bench.nodes.stage import database, nodes
from bench.restart import POLL_S, READY_S, free_port, is_ready

PRODUCERS = 100
"""That come back, and as many that do not."""
CONNECTIONS = 100
SELECT_HEARD = "select count(*) from streams where kind = 'session' and state = 'running' and silent_since_ms is null"
LONGEST_S = 60.0


class Killed(NamedTuple):
    """Seconds from each producer's connecting again to its first ack; from the kill until all others are silent."""

    back_s: list[tuple[float, int]]
    silent_s: float


def event(seq: int) -> bytes:
    return msgspec.json.encode({"type": "llm.delta", "seq": seq, "turn_id": 1, "text": "word "})


async def connect(server: Server, names: Sequence[str]) -> list[Line]:
    """A connection and a session each, with one event that is acknowledged."""

    async def one(name: str) -> Line:
        line = (await websocket.connect(server.host, server.port, server.path)).line(name)
        await line.open({})
        line.send(event(line.next_seq), line.next_seq)
        await line.until(line.next_seq)
        return line

    return await asyncio.gather(*map(one, names))


async def kill(url: str, one: Server, other: Server) -> Killed:
    """Kill a node with sessions of which half come back at the other."""
    names = [f"back-{number}" for number in range(PRODUCERS)]
    await connect(one, [*names, *(f"gone-{number}" for number in range(PRODUCERS))])
    one.process.kill()
    killed, back = time.perf_counter(), list[tuple[float, int]]()

    async def come_back(name: str) -> None:
        began = time.perf_counter()
        await connect(other, [name])
        back.append((time.perf_counter() - began, 1))

    await asyncio.gather(*map(come_back, names))
    with psycopg.connect(url, autocommit=True) as connection:
        while (heard := connection.execute(SELECT_HEARD).fetchone()) != (PRODUCERS,):
            if time.perf_counter() > killed + LONGEST_S:
                raise RuntimeError(f"The sessions of a killed node did not fall silent: {heard}.")
            await asyncio.sleep(0.1)
    return Killed(back, time.perf_counter() - killed)


def start_s(store: str) -> float:
    """Seconds from the start of a process to its first 200 of `/readyz`."""
    port = free_port()
    module, *arguments = command("voicemem", store)
    arguments[arguments.index("--rest") + 1] = f"127.0.0.1:{port}"
    begin = time.perf_counter()
    with started(module, *arguments) as process:
        while not is_ready(port):
            if process.poll() is not None or time.perf_counter() > begin + READY_S:
                raise RuntimeError("The node did not become ready.")
            time.sleep(POLL_S)
        took = time.perf_counter() - begin
        stop(process)
    return took


def start_beside(store: str, live: Server, sessions: int, runs: int) -> list[float]:
    """Start a node while another has so many sessions open."""
    plan = crowd.Plan(
        host=live.host,
        port=live.port,
        path=live.path,
        sessions=sessions,
        connections=min(CONNECTIONS, sessions),
        turns=1,
        server_pid=live.process.pid,
    )
    with running_crowd(plan):
        took = [start_s(store) for _ in range(runs)]
        with psycopg.connect(store, autocommit=True) as connection:
            if connection.execute(SELECT_HEARD).fetchone() != (sessions,):
                raise RuntimeError("A node that started has changed sessions of another.")
    return took


def measure_lives(connections: int, seconds: float, runs: int) -> tuple[list[Measured], list[list[float]]]:
    rows: list[list[float]] = []
    with database() as servers:
        for _ in range(runs):
            url = servers.empty()
            with nodes(url, 2) as (one, other):
                killed = uvloop.run(kill(url, one, other))
            rows.append([percentile(killed.back_s, share) for share in (0.5, 1.0)] + [killed.silent_s])
        url = servers.empty()
        with nodes(url, 1) as (live,):
            empty = min(start_s(url) for _ in range(runs))
            beside = min(start_beside(url, live, connections, runs))
    back, slowest, silent = (min(row[place] for row in rows) for place in range(3))
    return [
        Measured("back_p50_s", "a producer of a killed node acknowledged elsewhere, p50", back, "s"),
        Measured("back_max_s", f"the last of {PRODUCERS} at once", slowest, "s", None, at_most(slowest, 1)),
        Measured("silent_s", "the killed node's other sessions are silent", silent, "s", None, at_most(silent, 12)),
        Measured(
            "start_s", f"a node starts beside {connections} open sessions", beside, "s", empty, at_most(beside, 2)
        ),
    ], rows
