"""Exports of many calls: how fast they stream, and how much memory the service needs for that.

    python -m bench.exports [--calls 10000]

The calls are those of `bench.lists`. Each format is read to its end over HTTP, as `voicemem export` does; the memory is
the most that the service had while it was read, beyond what it had before. The baseline is JSON lines of messages.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import aiohttp

from bench.harness.report import Measured, disk_folder, machine, show
from bench.harness.servers import Server, serving
from bench.lists import Options, fill
from voicemem.config.service import SQLITE_PREFIX

FORMATS = ("jsonl", "vcon", "webvtt")
LOOK_S = 0.05


class Exported(NamedTuple):
    calls: int
    seconds: float
    bytes: int
    grown_mib: float


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


async def export(http: aiohttp.ClientSession, pid: int, form: str) -> Exported:
    """Read an export of all calls, and watch the service meanwhile."""
    most = before = resident_mib(pid)

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, resident_mib(pid))
            await asyncio.sleep(LOOK_S)

    watching = asyncio.create_task(watch())
    calls = size = 0
    began = time.perf_counter()
    async with http.get(f"/v1/exports?format={form}") as answer:
        answer.raise_for_status()
        async for line in answer.content:
            calls += b'"type":"call"' in line
            size += len(line)
    taken = time.perf_counter() - began
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    return Exported(calls, taken, size, most - before)


async def measure(server: Server, calls: int) -> list[Measured]:
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(base_url=str(server.rest), timeout=timeout, read_bufsize=2**22) as http:
        await fill(http, Options(calls=calls, live=0, reads=0))
        found = {form: await export(http, server.process.pid, form) for form in FORMATS}
    if any(one.calls != calls for one in found.values()):
        raise RuntimeError(f"Of {calls} calls there came {[one.calls for one in found.values()]}.")
    base, told = found["jsonl"], []
    for form, one in found.items():
        rate, base_rate = one.calls / one.seconds, base.calls / base.seconds
        told.append(Measured(f"{form}_calls_s", f"{form}, {one.bytes / 1e6:.1f} MB", rate, "calls/s", base_rate))
        told.append(Measured(f"{form}_mib", "  memory of the service, growth", one.grown_mib, "MiB", base.grown_mib))
    return told


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.exports", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000, help="calls in the store (10000)")
    calls = parser.parse_args(arguments).calls
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is stopped as well
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as name:
        facts = machine(Path(name))
        with serving("voicemem", f"{SQLITE_PREFIX}{name}/bench.db") as server:
            told = asyncio.run(measure(server, calls))
    show("exports", facts, told, options={"calls": calls})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
