"""What a power cut leaves behind, and a disk that gives back other bits than it was given (faults 27 to 29)."""

# ruff: noqa: SIM300 (files are small and no one else waits; asserts read `expected == actual`)
from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.support.paths import ROOT


def powercut(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the last line of the program."""
    command = [sys.executable, "-m", "bench.powercut", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_power_cuts_lose_nothing_acknowledged() -> None:
    """27: whatever becomes of unsynced writes, all that was acknowledged is there, once, and nothing else."""
    code, told = powercut("--rounds", "12", "--seed", "27")
    assert (0, []) == (code, told["first"])
    assert told["cuts"] == 12
    assert min(told["acknowledged_events_checked"], told["torn_writes"], told["unsynced_writes"]["dropped"]) > 0


def test_power_cuts_find_what_is_not_kept() -> None:
    """27: the program sees losses under synchronous=NORMAL, and damage where the database is not synced in time."""
    code, told = powercut("--rounds", "20", "--seed", "27", "--prove")
    assert code == 0
    assert told["prove"]["synchronous=NORMAL"]["lost"] > 0
    assert told["prove"]["unsynced database"]["findings"] > 0
