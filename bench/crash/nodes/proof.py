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
    return [(name, is_found(name, options)) for name in options.plants or PLANTS]


def is_found(name: str, options: argparse.Namespace) -> bool:
    """Whether something that the fault leads to is found."""
    folder = Path(tempfile.mkdtemp(prefix="voicemem-crash-"))
    given = {**vars(options), "faults": [*PLANTS[name].faults], "go_on": False}
    run = NodesRun(argparse.Namespace(**given), folder, name)
    try:
        asyncio.run(run.run())
    finally:
        shutil.rmtree(folder)
    return any(words in finding.what for finding in run.history.findings for words in PLANTS[name].words)
