"""Servers in processes of their own, and disks that fail under them: by strace on their calls, or by being full."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.support.callers.rest import RestClient
from tests.support.needs import missing
from voicemem.config.service import Address, parse_address

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("VOICEMEM_")}
START_S = 30.0


class Server(NamedTuple):
    """A running `voicemem serve`."""

    process: asyncio.subprocess.Process
    path: str
    ingest_address: Address
    rest_address: Address
    log: Path

    @property
    def api(self) -> RestClient:
        """A caller of it."""
        return RestClient(f"http://{self.rest_address}")

    async def status(self, path: str) -> int:
        """What one of its probes answers."""
        return (await self.api.get(path)).status

    async def ended(self, timeout_s: float) -> int:
        """Its exit code."""
        return await asyncio.wait_for(self.process.wait(), timeout_s)


@asynccontextmanager
async def serving(path: str) -> AsyncIterator[Server]:
    """A service on a file, which is killed at the end of the block if it still runs."""
    log = Path(f"{path}.stderr")
    process = await start(path, log)
    assert process.stdout is not None
    try:
        lines = [(await asyncio.wait_for(process.stdout.readline(), START_S)).decode() for _ in range(3)]
        ingest, rest = (parse_address(line.split("//")[1].split("/")[0]) for line in lines[1:])
        yield Server(process, path, ingest, rest, log)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def start(path: str, log: Path) -> asyncio.subprocess.Process:
    """A process that serves this file; what it logs is added to `log`."""
    addresses = ("--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0")
    with log.open("ab") as errors:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "voicemem", "serve", "--store", f"sqlite:{path}", *addresses),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=ENVIRONMENT,
        )


@asynccontextmanager
async def failing_syscalls(server: Server, *faults: str) -> AsyncIterator[None]:
    """Until the block ends these calls on the database and its log fail, each as strace's `inject` has it."""
    names = ",".join(fault.split(":")[0] for fault in faults)
    injected = [part for fault in faults for part in ("-e", f"inject={fault}")]
    paths = ("-P", server.path, "-P", f"{server.path}-wal")
    strace = await asyncio.create_subprocess_exec(
        *("strace", "-f", "-o", os.devnull, "-p", str(server.process.pid), "-e", f"trace={names}", *injected, *paths),
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


def fill_disk(folder: Path) -> Path:
    """A file that takes all the room there is."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler
