"""The service as a process that is killed and restarted, always on the same ports and the same store."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bench.harness.servers import ROOT

START_S = 180.0
LOG_LINES = 20
STOP_S = 60.0
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


class Front(NamedTuple):
    """Addresses that lead to any of the servers."""

    rest: str
    ingest: str


def front_at(ports: tuple[int, int]) -> Front:
    """The addresses of a REST port and an ingest port of this machine."""
    return Front(f"http://127.0.0.1:{ports[0]}", f"ws://127.0.0.1:{ports[1]}/v1/ingest")


class Place(NamedTuple):
    """Where a server listens, what it stores in, and where its log goes."""

    ports: tuple[int, int]
    store: str
    log: Path


class Server:
    """`voicemem serve`, one process after the other."""

    def __init__(self, place: Place, webhook_url: str, secret: str) -> None:
        self.ports = place.ports
        self.rest, self.ingest = front_at(place.ports)
        self.log = place.log
        self.program = [sys.executable, "-m", "voicemem"]
        self.folder = ROOT
        """Where the program is."""
        self.arguments = [
            *("serve", "--store", place.store),
            *("--rest", f"127.0.0.1:{place.ports[0]}", "--ingest", f"127.0.0.1:{place.ports[1]}"),
            *("--webhook-url", webhook_url, "--webhook-secret", secret),
        ]
        self.process: asyncio.subprocess.Process | None = None

    async def spawn(self) -> None:
        """Start a process, without waiting until it is ready."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("VOICEMEM_")}
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *(*self.program, *self.arguments),
                cwd=self.folder,
                env={**env, "PYTHONPATH": str(self.folder)},
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
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
            last = "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])
            raise RuntimeError(f"The service ended with {code}. The last lines of its log:\n{last}")
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
