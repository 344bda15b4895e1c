"""Shows that runs of several nodes find what is wrong: each fault is planted into all nodes, and looked for."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from pathlib import Path

from bench.crash.nodes.plants import PLANTS
from bench.crash.nodes.run import NodesRun


def prove_nodes(options: argparse.Namespace) -> list[tuple[str, bool]]:
    """Each fault, and whether a run has found it within `--rounds` rounds."""
    proved: list[tuple[str, bool]] = []
    for name in options.plants or PLANTS:
        found = round_of_finding(name, options)
        print(f"{name}: " + ("not found" if found is None else f"found after {found + 1} rounds"), flush=True)
        proved.append((name, found is not None))
    return proved


def round_of_finding(name: str, options: argparse.Namespace) -> int | None:
    """The round in which something that the fault leads to is found; None if nothing is."""
    folder = Path(tempfile.mkdtemp(prefix="voicemem-crash-"))
    given = {**vars(options), "faults": [*PLANTS[name].faults], "go_on": False}
    run = NodesRun(argparse.Namespace(**given), folder, name)
    try:
        asyncio.run(run.run())
    finally:
        shutil.rmtree(folder)
    words = PLANTS[name].words
    return next((one.round for one in run.history.findings if any(word in one.what for word in words)), None)
