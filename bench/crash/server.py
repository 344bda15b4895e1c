"""The service as a process that is killed and restarted, always on the same ports and the same file."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

from bench.harness.servers import ROOT

START_S = 60.0
STOP_S = 30.0
PORTS = range(20_000, 32_000)
"""Below the ports that the system gives to clients, one of which could otherwise take it while the service is down."""


def free_ports(count: int, rng: random.Random) -> list[int]:
    """Free ports."""
    found: list[int] = []
    while len(found) < count:
        port = rng.choice(PORTS)
        with socket.socket() as probe:
            if port not in found and probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
    return found


class Trigger:
    """Does something at exactly the n-th moment of one kind."""

    def __init__(self) -> None:
        self.kind = ""
        self.left = 0
        self.fired = asyncio.Event()
        self.hits: Counter[str] = Counter()
        self.server: Server | None = None

    def arm(self, server: Server, kind: str, count: int) -> None:
        self.server, self.kind, self.left = server, kind, count
        self.fired.clear()

    def hit(self, kind: str) -> None:
        """Note a moment of this kind."""
        if kind != self.kind or self.fired.is_set():
            return
        self.left -= 1
        if self.left <= 0 and self.server is not None:
            self.server.kill()
            self.fired.set()


class Server:
    """`voicemem serve`, one process after the other."""

    def __init__(self, store: Path, ports: tuple[int, int], webhook_url: str, secret: str) -> None:
        self.rest = f"http://127.0.0.1:{ports[0]}"
        self.ingest = f"ws://127.0.0.1:{ports[1]}/v1/ingest"
        self.store = store
        self.log = store.with_suffix(".log")
        self.command = [
            *(sys.executable, "-m", "voicemem", "serve", "--store", f"sqlite:{store}"),
            *("--rest", f"127.0.0.1:{ports[0]}", "--ingest", f"127.0.0.1:{ports[1]}"),
            *("--webhook-url", webhook_url, "--webhook-secret", secret),
        ]
        self.process: asyncio.subprocess.Process | None = None

    async def spawn(self) -> None:
        """Start a process, without waiting until it is ready."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("VOICEMEM_")}
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.command, cwd=ROOT, env=env, stdout=asyncio.subprocess.PIPE, stderr=log
            )

    async def ready(self) -> bool:
        """Wait until it listens; False if it was killed before that. Raises `RuntimeError` if it ends by itself."""
        assert self.process is not None
        assert self.process.stdout is not None
        async with asyncio.timeout(START_S):
            async for line in self.process.stdout:
                if b"webhook" in line:
                    return True
            code = await self.process.wait()
        if code != -signal.SIGKILL:
            raise RuntimeError(f"The service ended with {code}; {self.log} says why.")
        return False

    def kill(self) -> None:
        """Send SIGKILL, now: it writes nothing more."""
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)  # asyncio's method would take the exit code from the task that waits

    async def ended(self) -> int:
        """Wait for the end of the process; returns its exit code."""
        assert self.process is not None
        async with asyncio.timeout(STOP_S):
            return await self.process.wait()

    async def stop(self) -> int:
        """Send SIGTERM, so that it drains; returns its exit code."""
        self.send(signal.SIGTERM)
        return await self.ended()
