"""Load on one process with SQLite and on nodes with PostgreSQL, in turns: events a second, acks, CPU of an event."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from statistics import mean

import msgspec
from msgspec import Struct

from bench.harness.load import calls
from bench.harness.load.client import Plan
from bench.harness.load.generator import VARIANTS, Loaded
from bench.harness.report import number
from bench.harness.servers import ROOT, Server, journal, positions
from bench.nodes.stage import Database, held_snapshot, nodes, sqlite_store

SPARE_S = 90.0
HEADING = ("run", "events/s", "p50 ms", "p99 ms", "nodes µs", "database µs", "load µs", "all µs", "late p99 ms", "held")
SQLITE, ONE, TWO, SNAPSHOT, STANDBY = "sqlite", "one node", "two nodes", "a snapshot held", "a standby"


class Load(Struct, kw_only=True):
    """What the generators send."""

    connections: int
    window: int = 256
    rate: float = 0.0
    seconds: float


class Run(Struct, kw_only=True):
    """One load; `verified` says that the store held exactly what was acknowledged."""

    name: str
    parts: list[Loaded]
    """Of each node."""
    verified: bool

    @property
    def events(self) -> int:
        return sum(part.events for part in self.parts)

    @property
    def events_s(self) -> float:
        return sum(part.events / part.seconds for part in self.parts)

    @property
    def p50_ms(self) -> float:
        return max(part.p50_ms for part in self.parts)

    @property
    def p99_ms(self) -> float:
        return max(part.p99_ms for part in self.parts)

    @property
    def costs(self) -> list[float]:
        """CPU µs of an event: of the nodes, the database, the load generators, and all."""
        nodes = sum(part.server_cpu_s or 0.0 for part in self.parts)
        database = mean(part.database_cpu_s for part in self.parts)
        load = sum(part.generator_cpu_s for part in self.parts)
        return [spent / max(1, self.events) * 1e6 for spent in (nodes, database, load, nodes + database + load)]

    @property
    def cells(self) -> tuple[str, ...]:
        late = max(part.late_p99_ms for part in self.parts)
        figures = [self.events_s, self.p50_ms, self.p99_ms, *self.costs, late]
        return (self.name, *map(number, figures), "exact" if self.verified else "WRONG")


def run(name: str, load: Load, database: Database) -> Run:
    """One run on an empty store of its own."""
    with contextlib.ExitStack() as stack:
        if name == SQLITE:
            store, pids = stack.enter_context(sqlite_store()), []
        else:
            store, pids = database.empty(), database.pids
        servers = stack.enter_context(nodes(store, 2 if name == TWO else 1))
        if name == SNAPSHOT:
            stack.enter_context(held_snapshot(store))
        parts = generate(servers, load, pids)
        acked = {session: seq for part in parts for session, seq in part.acked.items()}
        held = positions(servers[-1].rest or "")
        same = all(first_calls_are_whole(servers[-1].rest or "", part) for part in parts)
    errors = sorted({error for part in parts for error in part.errors})
    for error in errors:
        print(f"{name}: {error}", file=sys.stderr)
    return Run(name=name, parts=parts, verified=held == acked and same and not errors)


def generate(servers: Sequence[Server], load: Load, database_pids: Sequence[int]) -> list[Loaded]:
    """A generator for each node, all at the same time."""
    each = load.connections // len(servers)
    running = [
        generator(
            Plan(
                host=server.host,
                port=server.port,
                path=server.path,
                connections=each,
                seconds=load.seconds,
                warm_up=min(1.0, load.seconds / 5),
                frame=1,
                window=load.window,
                rate=load.rate,
                server_pid=server.process.pid,
                first=place * each,
                database_pids=[*database_pids],
            )
        )
        for place, server in enumerate(servers)
    ]
    outputs = [process.communicate(timeout=load.seconds + SPARE_S)[0] for process in running]
    return [msgspec.json.decode(output, type=Loaded) for output in outputs]


def generator(plan: Plan) -> subprocess.Popen[bytes]:
    encoded = msgspec.json.encode(plan).decode()
    command = [sys.executable, "-m", "bench.harness.load.generator", encoded]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


def first_calls_are_whole(rest: str, loaded: Loaded) -> bool:
    """Whether the journals of a node's first sessions hold exactly the events that were sent, in order."""
    sessions = list(islice(loaded.acked.items(), VARIANTS))
    return all(
        journal(rest, session) == [json.loads(event) for event in calls.first(acked, variant)]
        for variant, (session, acked) in enumerate(sessions)
    )
