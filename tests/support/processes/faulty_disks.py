"""Disks that fail under a process: by strace on its system calls, or by being full."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from tests.support.needs import missing
from tests.support.processes.service_process import ServiceProcess

START_S = 30.0


@asynccontextmanager
async def failing_syscalls(server: ServiceProcess, *faults: str) -> AsyncIterator[None]:
    """Until the block ends these calls on the database and its log fail, each as strace's `inject` has it."""
    names = ",".join(fault.split(":")[0] for fault in faults)
    injected = [part for fault in faults for part in ("-e", f"inject={fault}")]
    paths = ("-P", str(server.store), "-P", f"{server.store}-wal")
    strace = await asyncio.create_subprocess_exec(
        *("strace", "-f", "-o", os.devnull, "-p", str(server.pid), "-e", f"trace={names}", *injected, *paths),
        stderr=asyncio.subprocess.PIPE,
    )
    assert strace.stderr is not None
    try:
        told = (await asyncio.wait_for(strace.stderr.readline(), START_S)).decode()
        while "attached" not in told:  # first it may say which path it has taken for which
            assert "Requested path" in told, told
            told = (await asyncio.wait_for(strace.stderr.readline(), START_S)).decode()
        yield
    finally:
        with suppress(ProcessLookupError):
            strace.terminate()
        await strace.communicate()


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Path]:
    """A file system of this size of its own; skips the test where it may not be mounted."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        missing(f"a small file system cannot be mounted: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)
        folder.rmdir()


def fill_disk(folder: Path) -> Path:
    """A file that takes all the room there is."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler
