"""A service on a file, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, cast

from tests.support.callers.rest import RestClient
from voicemem.app import App
from voicemem.config.service import Address, parse_address

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("VOICEMEM_")}


async def session_state(api: RestClient, session_id: str = "s") -> str:
    """Whether a session runs."""
    return str((await api.session(session_id))["state"])


class ServedFile(NamedTuple):
    """A running `voicemem serve`."""

    process: asyncio.subprocess.Process
    ingest_address: Address
    rest_address: Address

    @property
    def api(self) -> RestClient:
        """A caller of it."""
        return RestClient(cast(App, self))

    def kill(self) -> None:
        """As the kernel does it."""
        self.process.send_signal(signal.SIGKILL)

    async def ended(self) -> int:
        """Its exit code."""
        return await asyncio.wait_for(self.process.wait(), 15)


@asynccontextmanager
async def serving(path: str) -> AsyncIterator[ServedFile]:
    """A service on a file, which is killed at the end of the block if it still runs."""
    command = ("serve", "--store", f"sqlite:{path}", "--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", *command), stdout=asyncio.subprocess.PIPE, env=ENVIRONMENT
    )
    assert process.stdout is not None
    try:
        lines = [(await asyncio.wait_for(process.stdout.readline(), 20)).decode() for _ in range(3)]
        ingest, rest = (parse_address(line.split("//")[1].split("/")[0]) for line in lines[1:])
        yield ServedFile(process, ingest, rest)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
