"""Commands that one check runs, one after the other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

LIMIT_S = 900.0


def check(name: str, commands: Iterable[Sequence[str]], folder: Path, says: str) -> int:
    """Run these in a folder; prints a line of the table, and returns 1 when one of them fails."""
    for command in commands:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode:
            sys.stderr.write(f"{' '.join(command)} exits with {done.returncode}: {done.stdout}{done.stderr}\n")
            return 1
    sys.stdout.write(f"| {name} | passed | {says} |\n")
    return 0
