"""How soon the page shows what there is, in a real Chromium: the list of 10,000 calls, long calls, and a live reply.

    python -m bench.page [--calls 10000] [--loads 20] [--seconds 20] [--long 200,1000]

Everything runs on this machine: the service, the browser, the calls. "Shown" is the frame after the page was built.
From ack to pixels counts from the moment a client has the ack of a delta until its word is there; ten deltas a second
are sent, first alone, then while 100 other calls send 1,000 events a second. Then the service acknowledges as many
events as it can, with and without ten watchers of one of these calls.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
from msgspec import Struct

from bench.harness.report import Measured, at_most, disk_folder, machine, show
from bench.harness.servers import Server, serving
from bench.harness.shown import MARKED, time_of
from bench.ingest import Options as LoadOptions
from bench.ingest import load
from bench.lists import Options as ListOptions
from bench.lists import fill, post
from tests.support.callers.browser import Page, browser_page
from voicemem.client import Client
from voicemem.config.service import SQLITE_PREFIX

DELTA_S = 0.1
ROWS = ".calls tbody tr"
MESSAGES = ".talk-list .msg"
FIRST_LOADS = 2
"""Loads before any is measured: the browser starts, and the service makes the figures of the list."""
WATCHERS = 10


class Options(Struct, kw_only=True):
    calls: int
    loads: int
    seconds: float
    long: list[int]


class Loads(NamedTuple):
    """Times in ms, sorted."""

    painted: list[float]
    shown: list[float]


class Pixels(NamedTuple):
    """Ack to pixels in ms, sorted, and the longest task of the page meanwhile."""

    ms: list[float]
    longest_task_ms: float


def options_of(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000, help="calls in the list (10000)")
    parser.add_argument("--loads", type=int, default=20, help="loads of each page (20)")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of a live reply, and of ingest (20)")
    parser.add_argument("--long", default="200,1000", help="turns of long calls, separated by commas (200,1000)")
    given = vars(parser.parse_args(arguments))
    return Options(**given | {"long": [int(turns) for turns in given["long"].split(",")]})


# Pages that are loaded


async def loads(page: Page, url: str, selector: str, count: int, options: Options) -> Loads:
    found = [await time_of(page, url, selector, count) for _ in range(FIRST_LOADS + options.loads)][FIRST_LOADS:]
    return Loads(sorted(painted for painted, _ in found), sorted(shown for _, shown in found))


async def store_long_call(http: aiohttp.ClientSession, turns: int) -> str:
    name = f"long-{turns}"
    await post(http, "/v1/sessions", {"session_id": name, "idle_timeout": 0})
    for first in range(1, turns + 1, 100):
        events = [event for turn in range(first, min(first + 100, turns + 1)) for event in turn_of(turn)]
        await post(http, f"/v1/sessions/{name}/events", events)
    return name


def turn_of(turn: int) -> list[dict[str, Any]]:
    """Two messages; every tenth reply is cut."""
    at = turn * 5_000
    said = "There is a room with a view of the lake, and breakfast is from seven until eleven."
    events = [
        {"type": "asr", "turn_id": turn, "ts": at, "text": f"Question number {turn}, is there a room?", "final": True},
        {"type": "llm.done", "turn_id": turn, "ts": at + 700, "text": said},
    ]
    if turn % 10 == 0:
        cut = {"type": "interrupt", "turn_id": turn, "ts": at + 2_000, "heard_text": "There is a room"}
        return [*events, cut]
    return events


# A page that grows


async def pixels(page: Page, server: Server, name: str, seconds: float) -> Pixels:
    """Stream a reply into a call that the page shows."""
    async with Client(f"ws://{server.host}:{server.port}{server.path}", server.rest) as client:
        session = await client.open(name)
        await session.send({"type": "asr", "turn_id": 1, "text": "Tell me a story.", "final": True, "ts": 1_000})
        await page.open("about:blank")
        noted = await page.ask("Page.addScriptToEvaluateOnNewDocument", source=MARKED)
        await page.open(f"{server.rest}/ui/calls/{name}")
        await page.until(f"document.querySelectorAll('{MESSAGES}').length > 0")
        acked: list[float] = []
        begun = time.perf_counter()
        while len(acked) < seconds / DELTA_S:
            await session.send({"type": "llm.delta", "turn_id": 1, "text": f"w{len(acked)}. ", "ts": 2_000})
            acked.append(time.time() * 1000)
            await asyncio.sleep(max(0.0, begun + len(acked) * DELTA_S - time.perf_counter()))
        await page.until(f"window.marks[{len(acked) - 1}] !== undefined")
        marks = {int(word): at for word, at in (await page.evaluate("window.marks")).items()}
        await page.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=noted["identifier"])
        longest = await page.evaluate("window.longest")
        await session.end()
    # A word that came together with the next one was there when that was.
    came = [min(at for word, at in marks.items() if word >= number) for number in range(len(acked))]
    return Pixels(sorted(at - ack for at, ack in zip(came, acked, strict=True)), longest)


# Watchers


def load_plan(seconds: float, rate: float) -> LoadOptions:
    return LoadOptions(connections=100, seconds=seconds, frame=1, window=256, rate=rate, store="", runs=1)


async def watch(rest: str, name: str) -> None:
    """Read the tail of a call as the page does, and throw it away."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
        while True:
            headers = {"Accept": "text/event-stream"}
            async with http.get(f"{rest}/v1/sessions/{name}/events?view=call", headers=headers) as answer:
                if answer.status not in (200, 404):  # the load opens its sessions a moment later
                    raise RuntimeError(await answer.text())
                async for _ in answer.content.iter_any():
                    pass
            await asyncio.sleep(0.1)


async def ingest_us(server: Server, seconds: float, first: int, watchers: int) -> tuple[float, float]:
    """Events a second, and the server's CPU µs of one."""
    tasks = [asyncio.create_task(watch(str(server.rest), f"bench-{first:05}")) for _ in range(watchers)]
    loaded = await asyncio.to_thread(load, server, load_plan(seconds, 0), first)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return loaded.events / loaded.seconds, (loaded.server_cpu_s or 0) / loaded.events * 1e6


# All of it


async def measure(server: Server, folder: Path, options: Options) -> list[Measured]:
    rest = str(server.rest)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            aiohttp.ClientSession(base_url=rest, timeout=aiohttp.ClientTimeout(total=None))
        )
        await fill(http, ListOptions(calls=options.calls, live=min(50, options.calls), reads=0))
        names = {turns: await store_long_call(http, turns) for turns in options.long}
        page = await stack.enter_async_context(browser_page(folder / "profile"))
        rows = min(50, options.calls)
        every = await loads(page, f"{rest}/ui/calls", ROWS, rows, options)
        live = await loads(page, f"{rest}/ui/calls?state=running", ROWS, min(rows, 50), options)
        told = [
            *figures_of_list("list", f"list of {options.calls:,} calls", every, None),
            *figures_of_list("live", "the live ones", live, every),
        ]
        for turns, name in names.items():
            found = await loads(page, f"{rest}/ui/calls/{name}", MESSAGES, 2 * turns, options)
            goal = at_most(at(found.shown, 0.95), 700 if turns <= 200 else 2_000)
            told.append(Measured(f"turns_{turns}_ms", f"{turns:,} turns, p95", at(found.shown, 0.95), "ms", None, goal))
        alone = await pixels(page, server, "live-alone", options.seconds)
        loading = asyncio.create_task(asyncio.to_thread(load, server, load_plan(options.seconds + 3, 10), 0))
        beside = await pixels(page, server, "live-beside", options.seconds)
        await loading
        await page.open("about:blank")
        told += figures_of_pixels(alone, beside)
    return told


async def measure_watchers(folder: Path, options: Options) -> list[Measured]:
    """Each on a server of its own, since what one run leaves to be indexed would be done in the next."""
    found = []
    for watchers in (0, WATCHERS):
        with serving("voicemem", f"{SQLITE_PREFIX}{folder}/watched.db") as server:
            found.append(await ingest_us(server, options.seconds / 2, 0, watchers))
    without, watched = found
    return [
        Measured("watched_events_s", f"ingest with {WATCHERS} watchers", watched[0], "events/s", without[0]),
        Measured("watched_us", "  server CPU of an event", watched[1], "µs", without[1]),
    ]


def at(ms: Sequence[float], share: float) -> float:
    return ms[min(len(ms) - 1, int(share * len(ms)))]


def figures_of_list(key: str, what: str, found: Loads, beside: Loads | None) -> list[Measured]:
    painted, shown = at(found.painted, 0.95), at(found.shown, 0.95)
    base = None if beside is None else at(beside.shown, 0.95)
    return [
        Measured(f"{key}_painted_ms", f"{what}: first paint, p95", painted, "ms", None, at_most(painted, 300)),
        Measured(f"{key}_shown_ms", "  shown, p95", shown, "ms", base, at_most(shown, 500)),
    ]


def figures_of_pixels(alone: Pixels, beside: Pixels) -> list[Measured]:
    p50, p95, busy = at(alone.ms, 0.5), at(alone.ms, 0.95), at(beside.ms, 0.95)
    return [
        Measured("pixels_p50_ms", "ack to pixels, p50", p50, "ms", None, at_most(p50, 20)),
        Measured("pixels_p95_ms", "  p95", p95, "ms", None, at_most(p95, 100)),
        Measured("pixels_busy_p95_ms", "  beside 1,000 events/s, p95", busy, "ms", p95, at_most(busy, 250)),
        Measured(
            "longest_task_ms", "  the longest task of the page", beside.longest_task_ms, "ms", alone.longest_task_ms
        ),
    ]


def main(arguments: Sequence[str]) -> int:
    options = options_of(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is stopped as well
    with tempfile.TemporaryDirectory(prefix="bench-", dir=disk_folder()) as name:
        folder = Path(name)
        facts = machine(folder)
        with serving("voicemem", f"{SQLITE_PREFIX}{folder}/bench.db") as server:
            told = asyncio.run(measure(server, folder, options))
        told += asyncio.run(measure_watchers(folder, options))
    show("page", facts, told, options=msgspec.to_builtins(options))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
