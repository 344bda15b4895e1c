"""Services that are killed while an LLM makes memories of calls: each section counts once, and none is lost."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest

from tests.support.callers.rest import RestClient
from tests.support.events import final
from tests.support.postgresql import database_of, server
from tests.support.processes.service_process import ServiceProcess, running_process
from tests.support.servers.extracting_llm import RememberingLlm
from tests.support.servers.llm_server import running_llm
from tests.support.waiting import eventually

CALLS = [f"call-{number}" for number in range(12)]
WORDS = "almonds pecans walnuts cashews peanuts raisins".split()  # noqa: SIM905
MEMORY = '{"extract": {}}'
MOMENTS = ("request", "answer", "commit", "commit")
"""When a process is killed: while it waits for an answer, when that is on its way, or a little later."""
PATIENCE_S = 120.0


def said(place: int) -> str:
    return f"I do not like {WORDS[place % 6]} and never liked {place + 100} of them."


async def make_calls(api: RestClient) -> None:
    """Calls that are over, each with a line of its own."""
    for place, session_id in enumerate(CALLS):
        await api.create(session_id, user_id="ann")
        await api.send(final(1, said(place)), session_id=session_id)
        await api.end(session_id)


def kill_at(llm: RememberingLlm, process: ServiceProcess, moment: str, wait_s: float) -> None:
    """Have a process killed at a moment of the second request from now on; later ones are not answered any more."""
    requests, answers = count(1), count(1)

    async def on_request() -> None:
        number = next(requests)
        if number == 2 and moment == "request":
            await process.kill()
        if number > 2:
            await asyncio.Event().wait()

    async def on_answer() -> None:
        if next(answers) == 2:
            await asyncio.sleep(wait_s if moment == "commit" else 0)
            await process.kill()

    llm.on_request, llm.on_answer = on_request, on_answer


async def kinds_of(api: RestClient, session_id: str) -> Counter[str]:
    return Counter(row["event"]["type"] for row in await api.journal(session_id))


async def state_of(api: RestClient, session_id: str) -> str:
    return str((await api.get(f"/v1/sessions/{session_id}/stats")).json["extraction"]["state"])


async def is_remembered(api: RestClient, session_id: str) -> bool:
    """Whether a call has been read to its end; a node that another one died beside may not have looked at it yet."""
    return (await kinds_of(api, session_id))["memory.extracted"] > 0 and await state_of(api, session_id) == "current"


async def check_all(api: RestClient, llm: RememberingLlm) -> None:
    """Each call was remembered once, by the line that was said in it."""
    for session_id in CALLS:
        await eventually(True, lambda name=session_id: is_remembered(api, name), PATIENCE_S)  # type: ignore[misc]
        kinds = await kinds_of(api, session_id)
        assert (1, 1) == (kinds["memory.extracted"], kinds["memory.added"]), session_id
    found = (await api.get("/v1/users/ann/memories?limit=100")).json["memories"]
    assert sorted(map(said, range(len(CALLS)))) == sorted(one["text"] for one in found)
    assert {1} == {source["first"] for one in found for source in one["from"]}


async def test_a_process_is_killed_at_each_step(tmp_path: Path) -> None:
    """While it waits for the LLM, before and after it has stored what came; the next one goes on."""
    store, llm = tmp_path / "calls.db", RememberingLlm()
    async with running_llm(llm):
        async with running_process(store) as process:
            await make_calls(process.api)
        arguments = ("--llm-url", llm.url, "--context", MEMORY)
        for place, moment in enumerate(MOMENTS):
            async with running_process(store, *arguments) as process:
                kill_at(llm, process, moment, place / 50)
                await process.ended(PATIENCE_S)
        llm.on_request = llm.on_answer = None
        async with running_process(store, *arguments) as process:
            await check_all(process.api, llm)
        asked = len(llm.requests)
        assert len(CALLS) < asked
        async with running_process(store, *arguments) as process:
            await check_all(process.api, llm)
        assert asked == len(llm.requests)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    with database_of(tmp_path) as name:
        yield server().url(name)


@pytest.mark.postgresql
async def test_one_of_two_nodes_is_killed(tmp_path: Path, url: str) -> None:
    """What it had claimed is free once it is known to be gone; the other and its successor share the rest."""
    llm = RememberingLlm()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running_llm(llm))
        async with running_process(tmp_path / "first", url=url) as process:
            await make_calls(process.api)
        arguments = ("--llm-url", llm.url, "--context", MEMORY)
        one = await stack.enter_async_context(running_process(tmp_path / "one", *arguments, url=url))
        kill_at(llm, one, "answer", 0)
        other = await stack.enter_async_context(running_process(tmp_path / "other", *arguments, url=url))
        await one.ended(PATIENCE_S)
        llm.on_request = llm.on_answer = None
        successor = await stack.enter_async_context(running_process(tmp_path / "next", *arguments, url=url))
        for node in (successor, other):
            await check_all(node.api, llm)
        assert len(CALLS) <= len(llm.requests) <= 2 * len(CALLS)
