"""What a real process takes stays within its memory budget, whatever its sessions are made of.

The bound is the memory of a process that has just started, the budget, and `SLACK_MIB` for the work under way, SQLite's
own cache and what the allocator keeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from os import urandom
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tests.support.events import final
from tests.support.processes.measured_process import MIB, MeasuredProcess, measured_process
from voicemem.server.rest.sessions import MAX_PAGE_BYTES
from voicemem.store.records import LIST_BYTES

BUDGET_MIB = 32
SLACK_MIB = 64
AT_ONCE = 2
"""Requests under way: what each of them takes, 10 MiB for the largest here, is on top of the budget."""


@asynccontextmanager
async def service_with_budget(folder: Path) -> AsyncIterator[tuple[MeasuredProcess, aiohttp.ClientSession]]:
    """A service on a file, which has served one call already."""
    store = f"sqlite:{folder}/calls.db"
    async with (
        measured_process(store, "--ram-limit-mib", str(BUDGET_MIB), VOICEMEM_REQUEST_RATE="0") as service,
        aiohttp.ClientSession(service.url) as http,
    ):
        await short_call(http, "warm-up")
        yield service, http


async def short_call(http: aiohttp.ClientSession, name: str, said: str = "Hello.") -> None:
    """A call that is recorded, read and ended."""
    await posted(http, "/v1/sessions", {"session_id": name})
    await posted(http, f"/v1/sessions/{name}/events", [final(1, said), final(2, "Is anyone there?")])
    assert len(msgspec.json.decode(await got(http, f"/v1/sessions/{name}/history"))["contents"]) == 2
    await posted(http, f"/v1/sessions/{name}/end", {})


async def posted(http: aiohttp.ClientSession, path: str, body: Any) -> None:
    async with http.post(path, data=msgspec.json.encode(body)) as answer:
        text = await answer.read()
        assert answer.status in {200, 201}, text


async def got(http: aiohttp.ClientSession, path: str) -> bytes:
    async with http.get(path) as answer:
        text = await answer.read()
        assert answer.status == 200, text
        return text


async def in_turns(count: int, work: Callable[[int], Awaitable[object]]) -> None:
    """Do something for each of some numbers, a few at a time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())


def grown_mib(service: MeasuredProcess, before: int) -> float:
    return (service.memory() - before) / MIB


async def test_large_configurations_stay_within_the_budget(tmp_path: Path) -> None:
    """600 sessions with 250 KB of numbers each, 1.3 GB if all were kept; a list of them takes little as well."""
    config = {"llm": {"params": {"numbers": list(range(1_000, 43_000))}}}
    async with service_with_budget(tmp_path) as (service, http):
        before = service.memory()
        await in_turns(600, lambda number: posted(http, "/v1/sessions", config | {"session_id": f"s{number}"}))
        assert grown_mib(service, before) < BUDGET_MIB + SLACK_MIB
        before = service.memory()
        service.forget_peak()
        listed = await got(http, "/v1/sessions?limit=1000")
        assert len(listed) < MAX_PAGE_BYTES + 2 * LIST_BYTES
        assert b'"next_cursor":"' in listed[-200:]
        assert (service.peak() - before) / MIB < SLACK_MIB


async def test_folds_stay_within_the_budget(tmp_path: Path) -> None:
    """Calls of many small replies, whose folds take 25 times the bytes of their events: 200 MB if all were kept."""
    async with service_with_budget(tmp_path) as (service, http):
        before = service.memory()

        async def call(number: int) -> None:
            await posted(http, "/v1/sessions", {"session_id": f"s{number}"})
            for first in range(0, 4_000, 500):
                some = [{"type": "llm.delta", "item": f"i{n}", "text": "a"} for n in range(first, first + 500)]
                await posted(http, f"/v1/sessions/s{number}/events", some)
            await got(http, f"/v1/sessions/s{number}/history")

        await in_turns(24, call)
        assert grown_mib(service, before) < BUDGET_MIB + SLACK_MIB
        await short_call(http, "after")


async def test_a_day_of_calls_takes_no_more_than_its_first_hours(tmp_path: Path) -> None:
    """Once the caches are full, memory does not grow with the number of sessions that are opened, read and ended."""
    said = urandom(16_384).hex()  # nothing makes it small, so that some such calls fill the caches
    async with service_with_budget(tmp_path) as (service, http):
        await in_turns(1_500, lambda number: short_call(http, f"morning-{number}", said))
        before = service.memory()
        await in_turns(1_500, lambda number: short_call(http, f"day-{number}", said))
        assert grown_mib(service, before) < BUDGET_MIB / 4
