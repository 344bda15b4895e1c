"""The programs in `examples/`, run as their readers run them, next to a real service."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.processes.ports import free_ports
from tests.support.processes.service_process import running_process


async def output_of(example: str, folder: Path, timeout_s: float = 90.0) -> str:
    """What an example prints; its service keeps its store in the folder."""
    rest, ingest = free_ports(2)
    async with running_process(folder / "calls.db", rest=rest, ingest=ingest):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"examples.{example}", f"ws://127.0.0.1:{ingest}", f"http://127.0.0.1:{rest}"),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await asyncio.wait_for(process.communicate(), timeout_s)
    assert process.returncode == 0, errors.decode()
    return out.decode()
