"""How soon the service is ready again on a store with many open sessions, after SIGKILL and after a clean stop.

    python -m bench.restart [--sessions 10000] [--turns 4] [--long 10] [--long-turns 703] [--store PATH] [--runs 2]

The store is made by real ingest: 10,000 open sessions with 2,000,000 events, ten of the sessions with 30,000 each. With
`--store` the file is kept and used again. Ready is the first 200 of `/readyz`, counted from the start of the process;
the baseline is a start on an empty store. The file's pages are in the system's memory, as after a crash of the process.
The first reads after SIGKILL are those of the first run: later ones find the snapshots of a clean stop.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import uvloop
from msgspec import Struct

from bench.harness.load import calls, http_client
from bench.harness.load.crowd import VARIANTS, Plan
from bench.harness.load.crowds import crowd
from bench.harness.report import Measured, at_most, disk_folder, machine, percentile, show
from bench.harness.servers import listening, positions, raise_file_limit, remove, started
from voicemem.config.service import SQLITE_PREFIX

GOAL_S = 2.0
READY_S = 120.0
POLL_S = 0.002
GOAL_STOP_S = 10.0
LONGEST_STOP_S = 600.0
CONNECTIONS = 100
READERS = 16
PACE_S, PACE_EVENTS = 1.0, 2_000.0
"""Turns that are streamed before each stop, so that there is something to recover."""
LIVE = {"idle_timeout": 0}
"""Keeps the sessions open, however long the measurement takes."""


class Options(Struct, kw_only=True):
    sessions: int
    turns: int
    long: int
    long_turns: int
    store: str | None
    runs: int


class Reads(NamedTuple):
    """The first reads after a start: of a long session, then of all sessions."""

    long_ms: float
    all_s: float
    all_p99_ms: float


class Run(NamedTuple):
    """Seconds until ready, after each kind of stop; seconds of a clean stop; the first reads after each."""

    killed_s: float
    killed: Reads
    clean_stop_s: float
    clean_s: float
    clean: Reads


def options_of(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m bench.restart", description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10_000, help="sessions open when the service stops (10000)")
    parser.add_argument("--turns", type=int, default=4, help="turns of each session (4: about 170 events)")
    parser.add_argument("--long", type=int, default=10, help="how many sessions are longer (10)")
    parser.add_argument("--long-turns", type=int, default=703, help="turns of each of those (703: about 30,000 events)")
    parser.add_argument("--store", help="path of a database that is kept, and used again if it exists")
    parser.add_argument("--runs", type=int, default=2, help="runs; the better one counts (2)")
    return Options(**vars(parser.parse_args(arguments)))


# The service


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_ready(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=READY_S) as connection:
            connection.sendall(http_client.request(f"127.0.0.1:{port}", "/readyz"))
            return connection.recv(64).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False


@contextlib.contextmanager
def service(path: str) -> Iterator[tuple[subprocess.Popen[str], int, float]]:
    """Start the service on a database; returns it, its REST port, and how many seconds it took to be ready."""
    port = free_port()
    addresses = ("--rest", f"127.0.0.1:{port}", "--ingest", "127.0.0.1:0")
    begin = time.perf_counter()
    with started("voicemem", "serve", "--store", f"{SQLITE_PREFIX}{path}", *addresses) as process:
        while not is_ready(port):
            if process.poll() is not None or time.perf_counter() > begin + READY_S:
                raise RuntimeError("The service did not become ready.")
            time.sleep(POLL_S)
        yield process, port, time.perf_counter() - begin


def stream(process: subprocess.Popen[str], options: Options) -> None:
    """Let all sessions come back (or begin), and stream a little in each."""
    server = listening(process, with_rest=True)
    plan = Plan(
        host=server.host,
        port=server.port,
        path=server.path,
        sessions=options.sessions,
        connections=min(CONNECTIONS, options.sessions),
        turns=options.turns,
        long_sessions=options.long,
        long_turns=options.long_turns,
        settings=[LIVE],
        server_pid=process.pid,
    )
    with crowd(plan) as sessions:
        sessions.pace(PACE_S, min(PACE_EVENTS, 10.0 * options.sessions))
        process_is_up = process.poll() is None
    if not process_is_up:
        raise RuntimeError("The service has gone.")


def stop_cleanly(process: subprocess.Popen[str]) -> float:
    """Stop the service; returns how many seconds that took, however many they are."""
    begin = time.perf_counter()
    process.terminate()
    process.wait(LONGEST_STOP_S)
    return time.perf_counter() - begin


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


# The measurements


async def read_all(port: int, sessions: int) -> Reads:
    """Read the history of the first session, which is a long one, then those of all, over a few connections."""
    callers = [await http_client.connect("127.0.0.1", port) for _ in range(READERS)]
    samples: list[tuple[float, int]] = []

    async def read(caller: http_client.Caller, number: int) -> None:
        begin = time.perf_counter()
        path = f"/v1/sessions/bench-{number:05}/history"
        answer = await caller.call(http_client.request(f"127.0.0.1:{port}", path))
        if answer.status != 200:
            raise RuntimeError(f"A history was answered with {answer.status}.")
        samples.append((time.perf_counter() - begin, 1))

    async def read_some(caller: http_client.Caller, first: int) -> None:
        for number in range(first, sessions, READERS):
            await read(caller, number)

    await read(callers[0], 0)
    long_ms = samples.pop()[0] * 1000
    begin = time.perf_counter()
    await asyncio.gather(*(read_some(caller, first) for first, caller in enumerate(callers)))
    took = time.perf_counter() - begin
    for caller in callers:
        caller.transport.close()
    return Reads(long_ms, took, percentile(samples, 0.99) * 1000)


def one_run(path: str, options: Options) -> Run:
    """Starts on the database of a killed service, and leaves one behind."""
    with service(path) as (process, port, killed_s):
        killed = uvloop.run(read_all(port, options.sessions))
        check(port, options)
        stream(process, options)
        clean_stop_s = stop_cleanly(process)
    with service(path) as (process, port, clean_s):
        clean = uvloop.run(read_all(port, options.sessions))
        stream(process, options)
        kill(process)
    return Run(killed_s, killed, clean_stop_s, clean_s, clean)


def check(port: int, options: Options) -> None:
    """Raise `RuntimeError` unless all sessions are there with all their events."""
    held = positions(f"http://127.0.0.1:{port}")
    if len(held) != options.sessions or sum(held.values()) < events_of(options):
        raise RuntimeError("The store does not hold what was acknowledged.")


def events_of(options: Options) -> int:
    """The least number of events in the store."""
    sizes = [[len(calls.turns(turns, one)) for one in range(VARIANTS)] for turns in (options.turns, options.long_turns)]
    return sum(sizes[number < options.long][number % VARIANTS] for number in range(options.sessions))


def make(path: str, options: Options) -> None:
    """The store as a killed service leaves it: a new one, or the existing one."""
    with service(path) as (process, _, _):
        stream(process, options)
        kill(process)


def empty_s(folder: Path) -> float:
    """Seconds until a service on a new store is ready."""
    path = f"{folder}/empty.db"
    try:
        with service(path) as (_, _, seconds):
            return seconds
    finally:
        remove(f"{SQLITE_PREFIX}{path}")


def measured(runs: Sequence[Run], empty: float) -> list[Measured]:
    best = Run(*(min(values) for values in zip(*runs, strict=True)))
    killed, clean = runs[0].killed, Reads(*map(min, zip(*(run.clean for run in runs), strict=True)))
    return [
        Measured("killed_s", "ready after SIGKILL", best.killed_s, "s", empty, at_most(best.killed_s, GOAL_S)),
        Measured("clean_s", "ready after a clean stop", best.clean_s, "s", empty, at_most(best.clean_s, GOAL_S)),
        Measured(
            "stop_s", "the clean stop itself", best.clean_stop_s, "s", None, at_most(best.clean_stop_s, GOAL_STOP_S)
        ),
        Measured("long_ms", "first history of a long session, after SIGKILL", killed.long_ms, "ms"),
        Measured("long_clean_ms", "  after a clean stop", clean.long_ms, "ms"),
        Measured("all_s", "first histories of all sessions, after SIGKILL", killed.all_s, "s"),
        Measured("all_clean_s", "  after a clean stop", clean.all_s, "s"),
        Measured("all_p99_ms", "  p99 of one of them, after SIGKILL", killed.all_p99_ms, "ms"),
    ]


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped as well
    raise_file_limit(2_000)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as folder:
        path = options.store or f"{folder}/bench.db"
        facts = machine(Path(path).resolve().parent)
        make(path, options)
        runs = [one_run(path, options) for _ in range(options.runs)]
        empty = min(empty_s(Path(folder)) for _ in range(options.runs))
        size = Path(path).stat().st_size / 1e6
    print(f"{options.sessions:,} open sessions, {events_of(options):,} events, a file of {size:,.0f} MB;", end=" ")
    print(f"the better of {options.runs} counts\n")
    told = msgspec.to_builtins(options) | {"store": bool(options.store)}
    show("restart", facts, measured(runs, empty), options=told)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
