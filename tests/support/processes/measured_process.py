"""A service in a process of its own, whose memory and output can be looked at."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from voicemem.config.service import Address, parse_address

MIB = 1024 * 1024
TIMEOUT_S = 60.0


class MeasuredProcess:
    """`voicemem serve`, running."""

    def __init__(self, process: asyncio.subprocess.Process, lines: list[str]) -> None:
        self.process = process
        self.ingest_address = address_in(lines[1])
        self.rest_address = address_in(lines[2])
        self.errors = b""
        """What it said on stderr, known after its end."""

    @property
    def url(self) -> str:
        """Where its REST API is."""
        return f"http://{self.rest_address}"

    def memory(self) -> int:
        """Bytes of memory that it has now."""
        return self.kib("VmRSS") * 1024

    def peak(self) -> int:
        """The most bytes of memory that it had since `forget_peak`."""
        return self.kib("VmHWM") * 1024

    def busy_s(self) -> float:
        """Seconds of CPU that it has used."""
        user, system = Path(f"/proc/{self.process.pid}/stat").read_text("ascii").rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def kib(self, field: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text("ascii")
        found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None
        return int(found[1])

    def forget_peak(self) -> None:
        """Begin to measure the peak again (proc(5), clear_refs)."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", "ascii")


def address_in(line: str) -> Address:
    found = re.search(r"//([^/]+)", line)
    assert found is not None, line
    return parse_address(found[1])


@asynccontextmanager
async def measured_process(store: str = "memory:", *flags: str, **variables: str) -> AsyncIterator[MeasuredProcess]:
    """A service in a process of its own, with more flags and variables of `serve`.

    It must end well, at SIGTERM, with nothing said on stderr but what is audited.
    """
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", "serve", "--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0"),
        *("--store", store, "--log-level", "error", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith("VOICEMEM_")} | variables,
    )
    assert started.stdout is not None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            lines = [(await started.stdout.readline()).decode() for _ in range(4)]
        service = MeasuredProcess(started, lines)
        yield service
        assert started.returncode is None
        started.send_signal(signal.SIGTERM)
        _, service.errors = await asyncio.wait_for(started.communicate(), TIMEOUT_S)
        code = await started.wait()
        said = [line for line in service.errors.splitlines() if b" voicemem.audit: " not in line]
        assert (code, said) == (0, [])
    finally:
        if started.returncode is None:
            started.kill()
            await started.communicate()
