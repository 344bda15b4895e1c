"""Slim lists of many calls: how long a page takes, under each filter, and how large it is.

    python -m bench.lists [--calls 10000] [--live 50] [--reads 100]

Each call has a turn; every tenth was interrupted, every tenth was slow, and all but the live ones have ended. The
baseline is the list without a filter, on the same store.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import msgspec
from msgspec import Struct

from bench.harness.report import Measured, at_most, disk_folder, machine, show
from bench.harness.servers import serving
from voicemem.config.service import SQLITE_PREFIX
from voicemem.protocol.types import JsonObject

AT_ONCE = 16
"""Calls that are stored at the same time."""
PAGE = 50
GOAL_KB = 60
SETTLED_S = 120.0
"""How long figures may take to be made, which are made in the background."""
FILTERS = {
    "all": "",
    "live": "&state=running",
    "user": "&user_id=user-7",
    "nobody": "&user_id=nobody",
    "label": "&label=line:sales",
    "interrupted": "&interrupted=true",
    "slow": "&slow=1500",
    "failed": "&webhook=failed",
    "words": "&q=pineapple",
    "count": "&count=true",
}


class Options(Struct, kw_only=True):
    calls: int
    live: int
    reads: int


class Timed(Struct):
    """The times of some reads in ms, sorted, and the bytes of the last."""

    ms: list[float]
    size: int
    rows: int

    def at(self, share: float) -> float:
        return self.ms[min(len(self.ms) - 1, int(share * len(self.ms)))]


def options_of(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m bench.lists", description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000, help="calls in the store (10000)")
    parser.add_argument("--live", type=int, default=50, help="calls of these that have not ended (50)")
    parser.add_argument("--reads", type=int, default=100, help="reads of each list (100)")
    return Options(**vars(parser.parse_args(arguments)))


def events_of(number: int) -> list[JsonObject]:
    """A turn, which was cut in every tenth call, was slow in every tenth, and names a fruit in every hundredth."""
    fruit = "pineapple" if number % 100 == 7 else "apple"
    said: list[JsonObject] = [
        {"type": "asr", "turn_id": 1, "text": f"I would like an {fruit}.", "final": True, "ts": 1_000},
        {"type": "llm.delta", "turn_id": 1, "text": "One moment please.", "ts": 1_400},
        {"type": "llm.done", "turn_id": 1, "ts": 1_500},
        {"type": "metric", "turn_id": 1, "name": "e2e", "latency_ms": 1_800 if number % 10 == 1 else 600, "ts": 1_500},
    ]
    if number % 10 == 0:
        said.append({"type": "interrupt", "turn_id": 1, "heard_text": "One moment", "ts": 1_900})
    return said


async def store_call(http: aiohttp.ClientSession, number: int, options: Options) -> None:
    name = f"call-{number:06}"
    opening = {
        "session_id": name,
        "user_id": f"user-{number % 500}",
        "labels": {"line": "sales" if number % 500 == 3 else "support"},
        "idle_timeout": 0,
        "system_messages": [{"role": "system", "content": "You sell fruit. " * 100}],
    }
    await post(http, "/v1/sessions", opening)
    await post(http, f"/v1/sessions/{name}/events", events_of(number))
    if number >= options.live:
        await post(http, f"/v1/sessions/{name}/end", {})


async def post(http: aiohttp.ClientSession, path: str, body: object) -> None:
    async with http.post(path, json=body) as answer:
        if answer.status >= 300:
            raise RuntimeError(f"{path}: {await answer.text()}")


async def fill(http: aiohttp.ClientSession, options: Options) -> None:
    numbers = iter(range(options.calls))

    async def work() -> None:
        for number in numbers:
            await store_call(http, number, options)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def settle(http: aiohttp.ClientSession, options: Options) -> None:
    """Wait until the figures of all calls that have ended are made. Raises `RuntimeError`."""
    wanted = len([number for number in range(options.live, options.calls) if number % 10 == 0])
    end = time.monotonic() + SETTLED_S
    while time.monotonic() < end:
        told = await page(http, "&interrupted=true&state=ended&count=true&limit=1")
        if msgspec.json.decode(told)["total"] in (wanted, None):
            return
        await asyncio.sleep(0.5)
    raise RuntimeError("The figures of some calls are not made.")


async def page(http: aiohttp.ClientSession, query: str) -> bytes:
    async with http.get(f"/v1/sessions?fields=overview{query}") as answer:
        body = await answer.read()
        if answer.status != 200:
            raise RuntimeError(body.decode())
        return body


async def timed(http: aiohttp.ClientSession, query: str, reads: int) -> Timed:
    taken, body = [], b""
    for _ in range(reads):
        began = time.perf_counter()
        body = await page(http, f"{query}&limit={PAGE}")
        taken.append((time.perf_counter() - began) * 1000)
    return Timed(sorted(taken), len(body), len(msgspec.json.decode(body)["sessions"]))


async def measure(rest: str, options: Options) -> dict[str, Timed]:
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(base_url=rest, timeout=timeout) as http:
        await fill(http, options)
        await settle(http, options)
        await page(http, FILTERS["words"])  # the index of words is made in the background
        return {name: await timed(http, query, options.reads) for name, query in FILTERS.items()}


def figures(found: dict[str, Timed]) -> list[Measured]:
    every, told = found["all"], []
    for name, one in found.items():
        what = f"{name}: {one.rows} rows"
        told.append(Measured(f"{name}_p50_ms", f"{what}, p50", one.at(0.5), "ms", every.at(0.5)))
        told.append(Measured(f"{name}_p95_ms", "  p95", one.at(0.95), "ms", every.at(0.95)))
    size = every.size / 1000
    return [*told, Measured("page_kb", f"the first page, {every.rows} rows", size, "kB", None, at_most(size, GOAL_KB))]


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is stopped as well
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as name:
        folder = Path(name)
        with serving("voicemem", f"{SQLITE_PREFIX}{folder}/bench.db") as server:
            found = asyncio.run(measure(str(server.rest), options))
        show("lists", machine(folder), figures(found), options=msgspec.to_builtins(options))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
