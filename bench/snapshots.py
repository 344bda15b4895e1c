"""What a snapshot that someone holds for minutes, as `pg_dump` does, costs the ingest on PostgreSQL.

    python -m bench.snapshots --minutes 10     exits with 1 if the rate falls below 0.9 of that without one

Two nodes serve a database each, on one PostgreSQL server of its own; in one of the databases a snapshot is held. They
take turns under the same load, so that whatever else runs on the machine slows both down. The last third counts, when
whatever the snapshot keeps has piled up for longest.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

import psycopg

from bench.harness.postgresql import Cluster
from bench.harness.report import Measured, at_least, machine, show
from bench.harness.servers import Server, serving
from bench.ingest import Options, load

GOAL = 0.9
CONNECTIONS, FRAME, WINDOW = 100, 10, 250
"""Runs of ten events, about as a recogniser and an LLM send them: what costs most is the row, not the bytes."""


def hold_snapshot(url: str) -> psycopg.Connection[tuple[object, ...]]:
    """A connection whose transaction sees the database as it is now, until it is closed."""
    connection = psycopg.connect(url)
    connection.execute("set transaction isolation level repeatable read")
    connection.execute("select count(*) from streams")
    return connection


def rate(server: Server, turn: int, seconds: float) -> float:
    """Acknowledged events a second, of sessions of this turn's own."""
    options = Options(connections=CONNECTIONS, seconds=seconds, frame=FRAME, window=WINDOW, rate=0, store="", runs=1)
    loaded = load(server, options, first=turn * CONNECTIONS)
    if loaded.errors:
        raise RuntimeError(f"The load was not taken: {loaded.errors}")
    return loaded.events / loaded.seconds


def run(cluster: Cluster, minutes: float, seconds: float) -> list[tuple[float, float]]:
    """Rates without and with a snapshot, turn by turn."""
    turns: list[tuple[float, float]] = []
    with ExitStack() as stack:
        servers = []
        for name in ("free", "held"):
            cluster.execute(f"create database {name}")
            servers.append(stack.enter_context(serving("voicemem", cluster.url(name))))
        for server in servers:
            rate(server, 0, seconds)  # everything is loaded and planned by then
        stack.enter_context(hold_snapshot(cluster.url("held")))
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until or not turns:
            free, held = (rate(server, 1 + len(turns), seconds) for server in servers)
            turns.append((free, held))
            print(f"turn {len(turns)}: {free:,.0f} events/s without, {held:,.0f} with a snapshot", flush=True)
    return turns


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.snapshots", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=10, help="how long the snapshot is held")
    parser.add_argument("--seconds", type=float, default=10, help="of load in each turn")
    options = parser.parse_args(arguments)
    cluster = Cluster()
    try:
        facts = machine(cluster.folder)
        turns = run(cluster, options.minutes, options.seconds)
    finally:
        cluster.remove()
    last = turns[-max(1, len(turns) // 3) :]
    free, held = (statistics.median(rates) for rates in zip(*last, strict=True))
    ratio = statistics.median(with_one / without for without, with_one in last)
    figures = [
        Measured("held_events_s", "acknowledged under a snapshot", held, "events/s", free, None),
        Measured("ratio", "with / without", ratio, "x", None, at_least(ratio, GOAL)),
    ]
    show("snapshots", facts, figures, options=vars(options), turns=len(turns))
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
