"""Kills the service again and again while sessions stream and end, and checks that nothing is lost or doubled.

Real processes on a real file: `voicemem serve` is ended with SIGKILL at random points (in time, right after an ack or
an end, when a webhook has arrived or was answered, while it starts, while it drains) and started again on the same
ports. Producers resume, readers read, a receiver takes webhooks; everything goes into a history, which a checker goes
through (`checker.py`). With `--nodes` it is so many nodes on one PostgreSQL database, and more faults than kills
(`nodes/`). The program ends with a table, one line of JSON, and exit code 1 if anything was found.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.crash.nodes.faults import FAULTS
from bench.crash.nodes.plants import PLANTS
from bench.crash.nodes.proof import prove_nodes
from bench.crash.nodes.run import NodesRun
from bench.crash.proof import prove
from bench.crash.run import Run
from bench.crash.single import SingleRun
from bench.harness.report import machine, table
from voicemem.config.service import POSTGRESQL_PREFIXES

POSTGRESQL = "postgresql"


def show(run: Run, seconds: float, folder: Path, options: argparse.Namespace) -> None:
    """The table, the findings, and the line of JSON."""
    results = run.results()
    rows = [(name.replace("_", " "), f"{value:,}") for name, value in results.items()]
    rows += [(f"rounds: {fault}", f"{count:,}") for fault, count in sorted(run.faults.items())]
    print(table(("what", "count"), rows))
    for finding in run.history.findings[:50]:
        print(
            f"FOUND in round {finding.round} (--seed {options.seed}), session {finding.session or '-'}: {finding.what}"
        )
    if run.history.findings:
        print(f"What was stored and logged is in {folder}.")
    told = {"seed": options.seed, "rounds": options.rounds, "sessions": options.sessions, "first": options.first}
    if options.nodes:
        told["nodes"] = options.nodes
    findings = [finding._asdict() for finding in run.history.findings[:50]]
    print(
        msgspec.json.encode(
            {
                "bench": "crash",
                "machine": machine(folder),
                "options": told,
                "seconds": round(seconds, 1),
                "results": results,
                "faults": dict(run.faults),
                "found": findings,
            }
        ).decode(),
        flush=True,
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.crash", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=100, help="how many faults")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices")
    parser.add_argument("--sessions", type=int, default=40, help="sessions that stream at a time")
    parser.add_argument("--first", type=int, default=0, help="number of the first round, to repeat a later one")
    parser.add_argument("--nodes", type=int, default=0, help="so many nodes on one PostgreSQL, instead of one service")
    parser.add_argument(
        "--store",
        help="folder for the database and the log, which are kept; with --nodes the URL of an empty database, or"
        f" {POSTGRESQL} (the default) for a server of one's own",
    )
    parser.add_argument("--older", metavar="COMMIT", help="with --nodes: half of the processes run this version")
    parser.add_argument("--faults", nargs="+", choices=[*FAULTS], help="with --nodes: these faults, in turn")
    parser.add_argument("--plants", nargs="+", choices=[*PLANTS], help="with --nodes and --prove: only these")
    parser.add_argument("--prove", action="store_true", help="show that planted faults are found, instead of a run")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first finding")
    options = parser.parse_args(arguments)
    if options.nodes:
        options.store = options.store or POSTGRESQL
        if options.store != POSTGRESQL and not options.store.startswith(POSTGRESQL_PREFIXES):
            parser.error("several nodes need a PostgreSQL database")
    elif options.store and (Path(options.store) / "crash.db").exists():
        parser.error(f"{Path(options.store) / 'crash.db'} is there already")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    logging.getLogger("voicemem").setLevel(logging.CRITICAL)  # the client logs refusals, which are intended here
    if options.prove:
        proved = prove_nodes(options) if options.nodes else prove()
        print(
            table(("planted", "verdict"), [(name, "as it should be" if right else "MISSED") for name, right in proved])
        )
        return 0 if all(right for _, right in proved) else 1
    keeps = options.store is not None and not options.nodes
    folder = Path(options.store) if keeps else Path(tempfile.mkdtemp(prefix="voicemem-crash-"))
    folder.mkdir(parents=True, exist_ok=True)
    run = NodesRun(options, folder) if options.nodes else SingleRun(options, folder)
    began = time.monotonic()
    try:
        asyncio.run(run.run())
        show(run, time.monotonic() - began, folder, options)
    finally:
        if not keeps and not run.history.findings:
            shutil.rmtree(folder)
    return 1 if run.history.findings else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except asyncio.CancelledError:
        sys.exit("The run was ended by SIGTERM.")
