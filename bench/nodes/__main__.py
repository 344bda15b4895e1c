"""Nodes on a PostgreSQL server of their own, measured beside one process on SQLite in the same run.

python -m bench.nodes load       100 connections: SQLite, one node, two nodes, one while a snapshot is held
python -m bench.nodes short      2,000 sessions in runs of one or two events
python -m bench.nodes latency    from send to ack, 1,000 connections x 10 events/s; also with a synchronous standby
python -m bench.nodes tails      from an event on one node to a tail of it on another, 1,000 followed sessions
python -m bench.nodes lives      a node is killed; one is started beside 10,000 open sessions
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.harness.report import Measured, machine, number, show, table
from bench.harness.servers import raise_file_limit
from bench.nodes import figures
from bench.nodes.lives import measure_lives
from bench.nodes.loads import HEADING
from bench.nodes.tails import measure_tails

CONNECTIONS = {"load": 100, "short": 2_000, "latency": 1_000, "tails": 1_000, "lives": 10_000}
LOADS = {"load": figures.measure_load, "short": figures.measure_short, "latency": figures.measure_latency}
OTHERS = {
    "tails": (measure_tails, ("p50 ms", "p99 ms", "SQLite p50 ms", "SQLite p99 ms")),
    "lives": (measure_lives, ("back p50 s", "the last s", "silent s")),
}
SPARE_FILES = 500


class Options(Struct, kw_only=True):
    what: str
    connections: int
    seconds: float
    runs: int


def options_of(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m bench.nodes", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=CONNECTIONS, help="what is measured")
    parser.add_argument("--connections", type=int, help="connections, or sessions (100, 2000, 1000, 1000, 10000)")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds measured, after a warm-up (5)")
    parser.add_argument("--runs", type=int, default=2, help="runs of each; the better one counts (2)")
    given = vars(parser.parse_args(arguments))
    return Options(**given | {"connections": given["connections"] or CONNECTIONS[given["what"]]})


def measure(options: Options) -> tuple[list[Measured], bool]:
    """Measure, and print the runs; returns the figures, and whether all was stored that was acknowledged."""
    values = options.connections, options.seconds, options.runs
    if options.what in LOADS:
        measured, runs = LOADS[options.what](*values)
        print(table(HEADING, [run.cells for run in runs]), end="\n\n")
        return measured, all(run.verified for run in runs)
    work, heading = OTHERS[options.what]
    measured, rows = work(*values)
    print(table(("run", *heading), [(str(place), *map(number, row)) for place, row in enumerate(rows, 1)]), end="\n\n")
    return measured, True


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are stopped as well
    raise_file_limit(2 * options.connections + SPARE_FILES)
    facts = machine(Path(tempfile.gettempdir()))
    print(f"{options.connections} connections or sessions, {options.seconds} s; the better of {options.runs} counts\n")
    measured, verified = measure(options)
    show("nodes", facts, measured, options=msgspec.to_builtins(options), verified=verified)
    return 0 if verified else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
