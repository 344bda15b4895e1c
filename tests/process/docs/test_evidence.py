"""docs/evidence.md shows what bench.heard measures."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.support.documentation import TEXTS
from tests.support.paths import ROOT
from voicemem.cli.truth.calls import KINDS

PAGE = TEXTS["evidence.md"]


def test_the_tables_are_those_of_the_bench() -> None:
    """The same code gives the same figures everywhere; `python -m bench.heard --markdown` prints them."""
    command = [sys.executable, "-m", "bench.heard", "--markdown"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    first, second = done.stdout.strip().split("\n\n")
    assert first in PAGE
    assert second in PAGE


def test_the_kinds_of_the_engines_are_kinds() -> None:
    """What an engine is said to give is in the tables."""
    engines = PAGE.partition("## By engine")[2].partition("Three traps")[0]
    rows = [line for line in engines.splitlines() if line.startswith("|")][2:]
    named = {kind for row in rows for kind in re.findall(r"`(\w+)`", row.split("|")[-2])}
    assert len(rows) >= 10
    assert named
    assert named <= KINDS.keys()
