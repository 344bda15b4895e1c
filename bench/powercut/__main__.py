"""Cuts the power again and again, and checks what is left afterwards.

    python -m bench.powercut --rounds 2000 --seed 1

Ends with a line of JSON, and with exit code 1 if anything was found. `--prove` cuts the power of stores that break the
rules, and exits with 1 if nothing was found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from bench.powercut.disk import NoPower
from bench.powercut.life import Life, Summary

LIVES_OF = 10
"""Cuts that one database goes through."""
SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.powercut", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200, help="power cuts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help=f"begin at this round; a multiple of {LIVES_OF}")
    parser.add_argument("--steps", type=int, default=40, help="at most so many steps of each worker before a cut")
    parser.add_argument("--sync-errors", action="store_true", help="let a sync fail before each cut: the server exits")
    parser.add_argument("--prove", action="store_true", help="break the rules, and show that it is found")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="powercut-") as folder:
        if options.prove:
            return prove(options, Path(folder))
        told = run(options, Path(folder), None)
    print(json.dumps(told))
    return 1 if told["findings"] else 0


def prove(options: argparse.Namespace, folder: Path) -> int:
    """Find losses under synchronous=NORMAL, and damage if the database is not synced before the log is reused."""
    normal = run(options, folder, "normal")
    lying = run(options, folder, "lying")
    print(json.dumps({"bench": "powercut", "prove": {"synchronous=NORMAL": normal, "unsynced database": lying}}))
    return 0 if normal["lost"] and lying["findings"] else 1


def run(options: argparse.Namespace, folder: Path, broken: str | None) -> dict[str, object]:
    summary, began = Summary(), time.monotonic()
    for first in range(options.first, options.first + options.rounds, LIVES_OF):
        rounds = range(first, min(first + LIVES_OF, options.first + options.rounds))
        life = Life(folder / f"{broken}-{first}", options.seed, options.steps, broken, options.sync_errors, summary)
        asyncio.run(life.run(rounds))
        print(
            f"{summary.cuts:6} cuts, {summary.checked} checks of acknowledged events,"
            f" {len(summary.findings)} findings, {time.monotonic() - began:.0f} s",
            file=sys.stderr,
        )
    for finding in summary.findings[:SHOWN]:
        print(finding, file=sys.stderr)
    return summary.told(options.seed, round(time.monotonic() - began, 1))


def hush(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """apsw prints the errors of cleaning up on a dead disk, since SQLite cannot return them."""
    if not isinstance(error, NoPower):
        sys.__excepthook__(kind, error, trace)


if __name__ == "__main__":
    sys.excepthook = hush
    sys.unraisablehook = lambda seen: hush(seen.exc_type, seen.exc_value or seen.exc_type(), seen.exc_traceback)
    sys.exit(main())
