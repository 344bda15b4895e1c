"""A node of the demo: `voicemem serve` as a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

from voicemem.cli.common import CommandFailed
from voicemem.config.service import Address

START_S = 90.0
STOP_S = 15.0
LISTENS = re.compile(r"(?:ws|http)://([\d.]+):(\d+)")


class NodeProcess:
    """A node that runs; `name` is a letter."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, ingest: Address, rest: Address) -> None:
        self.name = name
        self.process = process
        self.ingest = ingest
        self.rest = rest

    async def kill(self) -> None:
        """SIGKILL: it says goodbye to nobody."""
        self.send(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL if that does not help."""
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await self.process.wait()
        except TimeoutError:
            await self.kill()

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


async def start_node(name: str, settings: dict[str, str], folder: Path) -> NodeProcess:
    """Start a node on free ports, and wait until it takes requests. Raises `CommandFailed`."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("VOICEMEM_")}
    log = folder / f"{name}.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "voicemem", "serve", "--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0"),
            env=inherited | settings,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    try:
        async with asyncio.timeout(START_S):
            ingest, rest = await read_addresses(process)
    except BaseException as error:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if not isinstance(error, (TimeoutError, EOFError)):
            raise
        said = log.read_text().strip().splitlines()
        silent = f"it was not ready after {START_S:.0f} s" if isinstance(error, TimeoutError) else "it did not say why"
        raise CommandFailed(f"Node {name} did not start: {said[-1] if said else silent}") from None
    return NodeProcess(name, process, ingest, rest)


async def read_addresses(process: asyncio.subprocess.Process) -> list[Address]:
    """Where it listens, as it says itself. Raises `EOFError` when it ends before."""
    assert process.stdout is not None
    found: list[Address] = []
    while len(found) < 2:
        line = (await process.stdout.readline()).decode()
        if not line:
            raise EOFError
        found += [Address(host, int(port)) for host, port in LISTENS.findall(line)]
    return found
