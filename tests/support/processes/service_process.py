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

    def __init__(self, process: asyncio.subprocess.Process, rest: str, ingest_address: Address) -> None:
        self.process = process
        self.rest = rest
        self.ingest_address = ingest_address
        self.api = RestClient(rest)

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

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        return await asyncio.wait_for(self.process.wait(), STOP_S)


@asynccontextmanager
async def running_process(
    store: Path,
    *arguments: str,
    rest: int = 0,
    ingest: int = 0,
    program: Sequence[str] = ("-m", "voicemem"),
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> AsyncIterator[ServiceProcess]:
    """A process on a file, killed at the end of the block if it still runs. `program` is what Python is to run."""
    command = [
        *(sys.executable, *program, "serve", "--store", f"sqlite:{store}"),
        *("--rest", f"127.0.0.1:{rest}", "--ingest", f"127.0.0.1:{ingest}", *arguments),
    ]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VOICEMEM_")}
    with (log or store.with_suffix(".log")).open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=errors, env={**inherited, **(env or {})}
        )
    try:
        yield await read_addresses(process)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()


async def read_addresses(process: asyncio.subprocess.Process) -> ServiceProcess:
    """The process, once it says where it listens."""
    assert process.stdout is not None
    shown = ""
    while "webhook" not in shown:
        line = (await asyncio.wait_for(process.stdout.readline(), START_S)).decode()
        assert line, f"the service has not started: {shown}"
        shown += line
    (host, port) = re.findall(r"ws://([\d.]+):(\d+)", shown)[0]
    return ServiceProcess(process, re.findall(r"http://[\d.]+:\d+", shown)[0], Address(host, int(port)))
