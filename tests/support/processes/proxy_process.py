"""`voicemem proxy` as a process of its own, for tests that stop and kill it, or what it talks to."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

START_S = 60.0
STOP_S = 60.0


class ProxyProcess:
    """A running `voicemem proxy`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, shown: str) -> None:
        self.process = process
        self.log = log
        self.url = re.findall(r"(wss?://[\d.]+:\d+/\S+)  ->", shown)[0]
        """Where calls of its only dialect go."""

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        return await asyncio.wait_for(self.process.wait(), STOP_S)

    async def says(self, text: str) -> None:
        """Wait until it has printed a line with this text."""
        assert self.process.stdout is not None
        line = ""
        while text not in line:
            line = (await asyncio.wait_for(self.process.stdout.readline(), START_S)).decode()
            assert line, f"it has ended without saying {text!r}"


@asynccontextmanager
async def running_proxy(
    log: Path, upstream: str, *arguments: str, rest: str, ingest: str, dialect: str = "openai-realtime", **env: str
) -> AsyncIterator[ProxyProcess]:
    """A proxy on a free port, killed at the end of the block if it still runs; `rest` and `ingest` are URLs."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VOICEMEM_")}
    addresses = ("--listen", "127.0.0.1:0", "--url", rest, "--ingest-url", ingest)
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "voicemem", "proxy", "--upstream", f"{dialect}={upstream}", *addresses),
            *("--log-level", "info", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={**inherited, **env},
        )
    try:
        assert process.stdout is not None
        shown = ""
        while "->" not in shown:
            line = (await asyncio.wait_for(process.stdout.readline(), START_S)).decode()
            assert line, "the proxy has not started; its log says why"
            shown += line
        yield ProxyProcess(process, log, shown)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()
