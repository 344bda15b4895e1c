"""Live tails of several sessions on a store that has several nodes."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.callers.rest import RestClient
from tests.support.callers.tail_reader import SEVERAL, Tail, open_tail
from tests.support.events import final_transcript
from tests.support.services import node_on
from voicemem.app import App
from voicemem.store.port import Store

MANY = 40


@pytest.fixture
async def nodes(two_handles: tuple[Store, Store]) -> AsyncIterator[tuple[App, App]]:
    """Two services."""
    async with node_on(two_handles[0]) as here, node_on(two_handles[1]) as there:
        yield here, there


async def told_of(tail: Tail, count: int) -> list[str]:
    """The ids of the sessions that the next items are of."""
    return [str(item.data["session_id"]) for item in await tail.some(count)]


@pytest.mark.parametrize(
    ("query", "config"), [("label=team:a", {"labels": {"team": "a"}}), ("user_id=ann", {"user_id": "ann"})]
)
async def test_sessions_of_all_nodes_are_followed(
    nodes: tuple[App, App], query: str, config: dict[str, object]
) -> None:
    """However many begin at once on both, each that matches is sent once, from its first entry on, and no other."""
    here, there = RestClient(nodes[0]), RestClient(nodes[1])

    async def begin(number: int) -> None:
        api = (here, there)[number % 2]
        await api.create(f"s{number}", **config)
        await api.create(f"other{number}")
        await api.send(final_transcript(1, f"{number}"), session_id=f"s{number}")

    async with open_tail(here, f"{SEVERAL}?{query}") as tail, open_tail(there, f"{SEVERAL}?{query}") as other:
        await asyncio.gather(*map(begin, range(MANY)))
        for each in (tail, other):
            assert sorted(f"s{number}" for number in range(MANY)) == sorted(await told_of(each, MANY))


async def test_a_session_that_is_changed_elsewhere_is_followed(nodes: tuple[App, App]) -> None:
    """One that gets the label on the other node is sent, with what it has."""
    here, there = RestClient(nodes[0]), RestClient(nodes[1])
    await there.create("s")
    await there.send(final_transcript(1))
    async with open_tail(here, f"{SEVERAL}?label=team:a") as tail:
        assert 200 == (await there.patch("/v1/sessions/s", {"labels": {"team": "a"}})).status
        assert ["asr", "session.update"] == [item.data["event"]["type"] for item in await tail.some(2)]
