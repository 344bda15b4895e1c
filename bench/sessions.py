"""The cost of many live sessions: the server's memory, and the latency of an ack among them.

    python -m bench.sessions [--sessions 10000] [--turns 10] [--connections N] [--rate 2000] [--seconds 5]

Each session gets a call of ten turns, so twenty messages, and stays open. Acks are measured once these are folded: what
a fill of 100,000s of events a second leaves to be folded is no cost of the events that follow. Without `--connections`,
two layouts are measured: one connection for each session, and a hundred sessions on each. The baseline is the bare loop
with as many connections.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from bench.harness.load.crowd import Filled, Paced, Plan
from bench.harness.load.crowds import Crowd, crowd
from bench.harness.load.generator import usage
from bench.harness.report import Measured, at_most, disk_folder, machine, number, show, table
from bench.harness.servers import Server, get, raise_file_limit, serving
from voicemem.config.service import SQLITE_PREFIX
from voicemem.sessions.read_models.cache import MAX_LAG

SPARE_FILES = 500
SHARED = 100
"""Sessions per connection, in the second measurement."""
GOAL_MB, GOAL_KIB = 400, 25
GOAL_SESSIONS, GOAL_TURNS = 10_000, 10
KIB, MB = 1024, 1_000_000
FOLDED_S = 120.0
"""The longest time until all is folded."""


class Options(Struct, kw_only=True):
    sessions: int
    turns: int
    connections: list[int]
    rate: float
    seconds: float


class Run(NamedTuple):
    """One server with so many connections; `empty_mib` is its memory before they opened, `folded_s` how many seconds
    after the last ack all was folded."""

    server: str
    connections: int
    empty_mib: float
    filled: Filled
    folded_s: float
    paced: Paced


def options_of(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m bench.sessions", description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10_000, help="live sessions (10000)")
    parser.add_argument("--turns", type=int, default=10, help="turns of each session, two messages each (10)")
    parser.add_argument("--connections", type=int, help="connections that share the sessions (measures both layouts)")
    parser.add_argument("--rate", type=float, default=2_000.0, help="events per second, all sessions together (2000)")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds measured at that rate (5)")
    given = parser.parse_args(arguments)
    spread = [given.connections] if given.connections else [given.sessions, -(-given.sessions // SHARED)]
    return Options(
        sessions=given.sessions, turns=given.turns, connections=spread, rate=given.rate, seconds=given.seconds
    )


def one_run(name: str, connections: int, folder: Path, options: Options) -> Run:
    with serving(name, f"{SQLITE_PREFIX}{folder}/bench.db") as server:
        empty = usage(server.process.pid).server_rss or 0.0
        bare = name == "bare"  # it has no sessions: each connection counts as one, and it keeps nothing of it
        plan = Plan(
            host=server.host,
            port=server.port,
            path=server.path,
            sessions=connections if bare else options.sessions,
            connections=connections,
            turns=0 if bare else options.turns,
            server_pid=server.process.pid,
        )
        with crowd(plan) as sessions:
            folded_s = 0.0 if bare else wait_until_folded(server)
            paced = sessions.pace(options.seconds, options.rate)
            if not bare:
                check(server, sessions, options)
            return Run(name, connections, empty, sessions.filled, folded_s, paced)


def wait_until_folded(server: Server) -> float:
    """Wait until no session is further behind its journal than a packed one may be; returns how many seconds."""
    begin = time.monotonic()
    while (took := time.monotonic() - begin) < FOLDED_S:
        found = re.search(rb"^voicemem_fold_lag_events (\S+)$", get(f"{server.rest}/metrics"), re.M)
        if found is not None and float(found[1]) <= MAX_LAG:
            return took
        time.sleep(0.1)
    raise RuntimeError("What the sessions were filled with is not folded.")


def check(server: Server, sessions: Crowd, options: Options) -> None:
    """Raise `RuntimeError` unless the sessions are running, with all the messages that they were given."""
    last = f"{server.rest}/v1/sessions/bench-{options.sessions - 1:05}/history"
    told = msgspec.json.decode(get(last))
    if told["state"] != "running" or len(told["contents"]) < 2 * options.turns:
        raise RuntimeError("A session does not live, or has lost messages.")


def measured(run: Run, bare: Run, options: Options) -> list[Measured]:
    way = "own" if run.connections == options.sessions else "shared"
    mb, bare_mb = (one.filled.server_rss_mib * KIB * KIB / MB for one in (run, bare))
    each = (run.filled.server_rss_mib - run.empty_mib) * KIB / options.sessions
    bare_each = (bare.filled.server_rss_mib - bare.empty_mib) * KIB / options.sessions
    what = f"{options.sessions:,} sessions on {run.connections:,} connections"
    spoken = options.turns >= GOAL_TURNS
    whole = spoken and options.sessions >= GOAL_SESSIONS
    kib_goal = at_most(each, GOAL_KIB) if spoken and way == "shared" else None
    return [
        Measured(f"{way}_mb", f"{what}, memory", mb, "MB", bare_mb, at_most(mb, GOAL_MB) if whole else None),
        Measured(f"{way}_kib", "  of each session, with its connection", each, "KiB", bare_each, kib_goal),
        Measured(f"{way}_p50_ms", "  ack p50", run.paced.p50_ms, "ms", bare.paced.p50_ms),
        Measured(f"{way}_p99_ms", "  ack p99", run.paced.p99_ms, "ms", bare.paced.p99_ms),
        Measured(f"{way}_cpu_us", "  server CPU of an event", cpu_us(run), "µs", cpu_us(bare)),
    ]


def cpu_us(run: Run) -> float:
    return run.paced.server_cpu_s / max(1, run.paced.events) * 1e6


def runs_table(runs: Sequence[Run]) -> str:
    heading = (
        *("server", "connections", "empty MiB", "filled MiB", "after MiB", "events before", "filled in s"),
        *("folded after s", "events", "p50 ms", "p99 ms", "late p99 ms"),
    )
    rows = []
    for name, connections, empty, filled, folded_s, paced in runs:
        figures = [connections, empty, filled.server_rss_mib, paced.server_rss_mib, filled.events, filled.seconds]
        figures += [folded_s, paced.events, paced.p50_ms, paced.p99_ms, paced.late_p99_ms]
        rows.append((name, *map(number, figures)))
    return table(heading, rows)


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped as well
    raise_file_limit(max(options.connections) + SPARE_FILES)
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as folder:
        facts = machine(Path(folder))
        for connections in options.connections:
            runs += [one_run(name, connections, Path(folder), options) for name in ("bare", "voicemem")]
    print(f"{options.sessions:,} sessions of {2 * options.turns} messages, then {number(options.rate)} events/s\n")
    print(runs_table(runs), end="\n\n")
    results = [one for bare, ours in zip(runs[::2], runs[1::2], strict=True) for one in measured(ours, bare, options)]
    show("sessions", facts, results, options=msgspec.to_builtins(options))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
