"""The fuzzers run, here for a moment, and find what is wrong; for long runs see `tests/fuzz/__init__.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.needs("atheris")


def fuzz(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """What becomes of a fuzzer that is run with this command; inputs that it finds are left in the folder."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(("target", "runs"), [("codec", 4_000), ("fold", 600)])
def test_a_short_run_finds_nothing(tmp_path: Path, target: str, runs: int) -> None:
    """A few thousand inputs, the same in every run, none of which breaks a rule."""
    done = fuzz(tmp_path, "-m", f"tests.fuzz.{target}", f"-runs={runs}", "-seed=1")
    assert done.returncode == 0, done.stderr[-4000:]
    told = re.search(r"Done (\d+) runs", done.stderr)
    assert told is not None
    assert int(told[1]) >= runs  # the seeds are run in any case
    assert list(tmp_path.iterdir()) == []


RAISING = "from tests.fuzz import codec as it; it.decode_lines = lambda data: 1 / 0"
DISORDERED = """from tests.fuzz import fold as it
real = it.history.messages
it.history.messages = lambda *state, **how: real(*state, **how)[::-1]"""


@pytest.mark.parametrize(("broken", "error"), [(RAISING, "ZeroDivisionError"), (DISORDERED, "AssertionError")])
def test_what_is_broken_is_found(tmp_path: Path, broken: str, error: str) -> None:
    """A fuzzer of something broken ends with an error, says where, and leaves the input that shows it."""
    done = fuzz(tmp_path, "-c", f"{broken}\nit.drive(it.check)", "-runs=1000", "-seed=1")
    assert done.returncode != 0
    assert error in done.stdout + done.stderr
    assert [path.name for path in tmp_path.glob("crash-*")]
