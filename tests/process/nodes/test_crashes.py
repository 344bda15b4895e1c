"""A few rounds of `bench.crash` with two nodes: what dies, stands still or is cut off, nothing is found."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
import subprocess
import sys

import pytest

from bench.crash.nodes.plants import PLANTS
from tests.support.needs import needs_postgresql
from tests.support.paths import ROOT

needs_postgresql()

pytestmark = pytest.mark.postgresql
FAULTS = ("kill", "cut", "backend", "freeze")


def test_faults_of_nodes_at_random_points() -> None:
    """Sessions whose producers sit on both nodes lose nothing, and are closed when they should be."""
    chosen = ["--rounds", "4", "--sessions", "6", "--seed", "5", "--faults", *FAULTS]
    command = [sys.executable, "-m", "bench.crash", "--nodes", "2", *chosen]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert 0 == ended.returncode, ended.stdout + ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert (4, []) == (told["results"]["rounds"], told["found"])
    counts = ("sessions", "events_acknowledged", "reads", "closes", "notices")
    assert all(told["results"][name] > 0 for name in counts), told


@pytest.mark.parametrize("name", PLANTS)
def test_plants_fit_the_program(name: str) -> None:
    """Each fault that `--prove` plants still finds the place in the program where it belongs."""
    program = "import sys; from bench.crash.nodes.plants import plant; plant(sys.argv[1])"
    planted = subprocess.run(
        [sys.executable, "-c", program, name], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (0, "") == (planted.returncode, planted.stderr)
