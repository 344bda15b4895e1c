"""Durable ingest through the real server process, compared with the bare loop of `bench.harness.baselines.bare`.

    python -m bench.ingest                 as many events as are acknowledged, 100 connections
    python -m bench.ingest --frame 64      the same in batched frames; the bare loop gets single ones, and then such too
    python -m bench.ingest --latency       from send to ack, 1,000 connections x 10 events/s, smooth and in bursts

An event counts when it was acknowledged. After each run voicemem's journals must hold exactly what was acknowledged.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bench.harness.load import calls
from bench.harness.load.client import Plan
from bench.harness.load.generator import VARIANTS, Loaded
from bench.harness.postgresql import Cluster
from bench.harness.report import Measured, at_least, at_most, disk_folder, machine, number, show, table
from bench.harness.servers import ROOT, Server, journal, positions, raise_file_limit, serving, stop
from voicemem.config.service import MEMORY_STORE, SQLITE_PREFIX

MOST_CPU = {"smooth": 0.55, "bursts": 0.7}
"""How events come with a rate, each at its own time or all of a millisecond together; and the most CPU beside bare."""
POSTGRESQL = "postgresql:"
"""In place of a store: a PostgreSQL server with a database, for the time of the run."""
SPARE_S = 90.0
"""Seconds for the load generator, in addition to the time of its plan."""
SPARE_FILES = 500
"""Files that a process opens in addition to its connections."""


class Options(Struct, kw_only=True):
    connections: int
    seconds: float
    frame: int
    window: int
    rate: float
    store: str
    runs: int
    arrivals: Sequence[str] = ("",)


class Run(Struct, kw_only=True):
    """One server under load; `verified` says that it held exactly what it had acknowledged."""

    server: str
    frame: int
    """Events per frame."""
    arrivals: str
    """How events came, with a rate."""
    loaded: Loaded
    verified: bool

    @property
    def events_s(self) -> float:
        return self.loaded.events / self.loaded.seconds


def options_of(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m bench.ingest", description=__doc__.splitlines()[0])
    parser.add_argument("--latency", action="store_true", help="the same as --connections 1000 --rate 10")
    parser.add_argument("--connections", type=int, help="connections, each with one session (100)")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds measured, after a warm-up (5)")
    parser.add_argument("--frame", type=int, default=1, help="events per frame (1)")
    parser.add_argument("--window", type=int, default=256, help="unacknowledged events per connection (256)")
    parser.add_argument("--rate", type=float, help="events per second and connection, instead of a window")
    parser.add_argument("--arrivals", choices=MOST_CPU, help="with a rate, one way alone (both)")
    parser.add_argument(
        "--store",
        help="sqlite:PATH of a new file, memory:, or postgresql: for a server of its own (default: a temporary file)",
    )
    parser.add_argument("--runs", type=int, default=2, help="runs of each server; the better one counts (2)")
    given = parser.parse_args(arguments)
    rate = (10.0 if given.latency else 0.0) if given.rate is None else given.rate
    if rate and given.frame != 1:
        parser.error("with a rate, a frame is one event")
    if given.store and given.store.startswith(SQLITE_PREFIX) and Path(given.store.removeprefix(SQLITE_PREFIX)).exists():
        parser.error("the file of the store is there already")
    return Options(
        connections=given.connections or (1000 if given.latency else 100),
        seconds=given.seconds,
        frame=given.frame,
        window=max(given.window, given.frame),
        rate=rate,
        arrivals=([given.arrivals] if given.arrivals else [*MOST_CPU]) if rate else [""],
        store=given.store or "",
        runs=given.runs,
    )


@contextlib.contextmanager
def folder_and_store(given: str) -> Iterator[tuple[Path | None, str]]:
    """The folder of the store's files, and its setting."""
    if given == MEMORY_STORE:
        yield None, MEMORY_STORE
    elif given == POSTGRESQL:
        server = Cluster()
        try:
            server.execute("create database bench")
            yield server.folder, server.url("bench")
        finally:
            server.remove()
    elif given:
        yield Path(given.removeprefix(SQLITE_PREFIX)).resolve().parent, given
    else:
        with tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as name:
            yield Path(name), f"{SQLITE_PREFIX}{name}/bench.db"


def one_run(name: str, frame: int, store: str, options: Options, arrivals: str) -> Run:
    options = replace(options, frame=frame)
    with serving(name, store) as server:
        loaded = load(server, options, arrivals=arrivals)
        held = {} if server.rest is None else positions(server.rest)
        same = server.rest is None or first_call_is_whole(server.rest, loaded)
        stopped = stop(server.process)
    acked = sum(loaded.acked.values())
    good = held == loaded.acked and same if server.rest else f"stored {acked}\n" in stopped.output
    return Run(
        server=name,
        frame=frame,
        arrivals=arrivals,
        loaded=loaded,
        verified=good and loaded.sent == acked and stopped.code == 0,
    )


def load(server: Server, options: Options, first: int = 0, arrivals: str = "") -> Loaded:
    """Put a server under load, with sessions of their own from this number on."""
    plan = Plan(
        host=server.host,
        port=server.port,
        path=server.path,
        connections=options.connections,
        seconds=options.seconds,
        warm_up=min(1.0, options.seconds / 5),
        frame=options.frame,
        window=options.window,
        rate=options.rate,
        smooth=arrivals == "smooth",
        server_pid=server.process.pid,
        first=first,
    )
    done = subprocess.run(
        [sys.executable, "-m", "bench.harness.load.generator", msgspec.json.encode(plan).decode()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=options.seconds + SPARE_S,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Loaded)


def first_call_is_whole(rest: str, loaded: Loaded) -> bool:
    """Whether the journals of the first sessions hold exactly the events that were sent, in order."""
    sessions = list(islice(loaded.acked.items(), VARIANTS))
    return all(
        journal(rest, session) == [json.loads(event) for event in calls.first(acked, variant)]
        for variant, (session, acked) in enumerate(sessions)
    )


def best_of(runs: Sequence[Run], name: str, frame: int, by_latency: bool) -> Run:
    own = [run for run in runs if (run.server, run.frame) == (name, frame)]
    return min(own, key=lambda run: run.loaded.p99_ms if by_latency else -run.events_s)


def measured(voicemem: Run, bare: Run, frame: int) -> list[Measured]:
    """The figures of the better runs, with bare's as the baseline, and the goals that are about this load."""
    ours, theirs = voicemem.loaded, bare.loaded
    rate, cpu, base_cpu = voicemem.events_s, cpu_us(voicemem), cpu_us(bare)
    cpu_ratio = cpu / base_cpu if base_cpu else 0.0  # so short a run may take none that is counted
    ratio, p50, p99, less_cpu, most = None, None, None, None, MOST_CPU.get(voicemem.arrivals)
    if most is None:
        ratio = at_least(rate / bare.events_s, 1.2 if frame == 1 else 3.0)
    else:
        p50, p99, less_cpu = at_most(ours.p50_ms, 3), at_most(ours.p99_ms, 6), at_most(cpu_ratio, most)
    figures = [
        Measured("events_s", "acknowledged", rate, "events/s", bare.events_s),
        Measured("ratio", "voicemem / bare", rate / bare.events_s, "x", None, ratio),
        Measured("p50_ms", "send to ack p50", ours.p50_ms, "ms", theirs.p50_ms, p50),
        Measured("p99_ms", "send to ack p99", ours.p99_ms, "ms", theirs.p99_ms, p99),
        Measured("server_cpu", "server CPU", cores(voicemem), "cores", cores(bare)),
        Measured("us_per_event", "server CPU of an event", cpu, "µs", base_cpu),
        Measured("cpu_ratio", "CPU / bare", cpu_ratio, "x", None, less_cpu),
        Measured("rss_mib", "server memory at the end", ours.server_rss_mib or 0, "MiB", theirs.server_rss_mib),
    ]
    if most is None:
        return figures
    return [
        one._replace(key=f"{voicemem.arrivals}_{one.key}", what=f"{one.what}, {voicemem.arrivals}") for one in figures
    ]


def cores(run: Run) -> float:
    return (run.loaded.server_cpu_s or 0.0) / run.loaded.seconds


def cpu_us(run: Run) -> float:
    return (run.loaded.server_cpu_s or 0.0) / max(1, run.loaded.events) * 1e6


def runs_table(runs: Sequence[Run]) -> str:
    heading = (
        "run",
        "per frame",
        "",
        "events/s",
        "p50 ms",
        "p99 ms",
        "acks/s",
        "server cpu s",
        "generator cpu s",
        "late p99 ms",
        "held",
    )
    return table(heading, [run_cells(run) for run in runs])


def run_cells(run: Run) -> tuple[str, ...]:
    one = run.loaded
    figures = [run.events_s, one.p50_ms, one.p99_ms, one.acks / one.seconds, one.server_cpu_s, one.generator_cpu_s]
    held = "exact" if run.verified else "WRONG"
    return (run.server, str(run.frame), run.arrivals, *map(number, [*figures, one.late_p99_ms]), held)


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    servers = [*dict.fromkeys([("bare", 1), ("voicemem", options.frame), ("bare", options.frame)])]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped as well
    raise_file_limit(options.connections + SPARE_FILES)
    with folder_and_store(options.store) as (folder, store):
        facts = machine(folder)
        runs = [
            one_run(name, frame, store, options, arrivals)
            for _ in range(options.runs)
            for arrivals in options.arrivals
            for name, frame in servers
        ]
    figures = []
    for arrivals in options.arrivals:
        same = [run for run in runs if run.arrivals == arrivals]
        bare, voicemem, *batched = (best_of(same, *server, by_latency=bool(options.rate)) for server in servers)
        figures += measured(voicemem, bare, options.frame)
        for one in batched:
            ratio = voicemem.events_s / one.events_s
            figures.append(Measured("batched_ratio", "voicemem / bare in such frames too", ratio, "x", None))
    print(f"{options.connections} connections, {options.seconds} s, {options.frame} per frame,", end=" ")
    print(f"{options.rate}/s each" if options.rate else f"{options.window} unacknowledged each", end=", ")
    print(f"{voicemem.loaded.event_bytes:.0f} bytes per event on the wire; the better of {options.runs} counts\n")
    print(runs_table(runs), end="\n\n")
    more = {"options": msgspec.to_builtins(options) | {"store": store.split(":")[0]}}
    verified = all(run.verified for run in runs)
    errors = sorted({error for run in runs for error in run.loaded.errors})
    show("ingest", facts, figures, **more, verified=verified, errors=errors)
    return 0 if verified and not errors else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
