"""The service as a process of its own, for tests that kill, stop or starve it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.support.callers.rest import RestClient
from voicemem.config.service import Address

START_S = 60.0
STOP_S = 30.0


class ServiceProcess:
    """A running `voicemem serve`."""

    def __init__(self, process: asyncio.subprocess.Process, store: Path, log: Path, shown: str) -> None:
        self.process = process
        self.store = store
        self.log = log
        (host, port) = re.findall(r"ws://([\d.]+):(\d+)", shown)[0]
        self.ingest_address = Address(host, int(port))
        self.rest = re.findall(r"http://[\d.]+:\d+", shown)[0]
        self.api = RestClient(self.rest)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)  # the library's own way would take the exit code from whoever waits for it

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.alive:
            self.signal(signal.SIGKILL)
        await self.ended()

    async def stop(self) -> int:
        """SIGTERM; its exit code."""
        self.signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self, timeout_s: float = STOP_S) -> int:
        """Its exit code, once it has ended."""
        return await asyncio.wait_for(self.process.wait(), timeout_s)


@asynccontextmanager
async def running_process(
    store: Path,
    *arguments: str,
    rest: int = 0,
    ingest: int = 0,
    program: Sequence[str] = ("-m", "voicemem"),
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    url: str | None = None,
) -> AsyncIterator[ServiceProcess]:
    """A process on a file, or on the store with a URL, killed at the end of the block if it still runs.

    `program` is what Python is to run.
    """
    log = log or store.with_suffix(".log")
    addresses = ("--rest", f"127.0.0.1:{rest}", "--ingest", f"127.0.0.1:{ingest}")
    process = await start_process(store, *addresses, *arguments, program=program, env=env, log=log, url=url)
    try:
        yield ServiceProcess(process, store, log, await first_lines(process))
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()


async def start_process(
    store: Path,
    *arguments: str,
    log: Path,
    program: Sequence[str] = ("-m", "voicemem"),
    env: Mapping[str, str] | None = None,
    url: str | None = None,
) -> asyncio.subprocess.Process:
    """`serve` on a file, also where it cannot start; what it writes to standard error is added to the log."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VOICEMEM_")}
    with log.open("ab") as errors:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, *program, "serve", "--store", url or f"sqlite:{store}", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={**inherited, **(env or {})},
        )


async def first_lines(process: asyncio.subprocess.Process) -> str:
    """What a service shows once it takes requests, its addresses among it."""
    assert process.stdout is not None
    shown = ""
    while "webhook" not in shown:
        line = (await asyncio.wait_for(process.stdout.readline(), START_S)).decode()
        assert line, f"the service has not started: {shown}"
        shown += line
    return shown
