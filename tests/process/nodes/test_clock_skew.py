"""Two nodes whose machines' clocks are ten minutes apart: they go by the database's."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.callers.producer import open_producer
from tests.support.callers.rest import RestClient
from tests.support.events import final_transcript, session_end
from tests.support.services import node_on
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.runtime import now_ms
from voicemem.store.port import Store

pytestmark = [pytest.mark.postgresql, pytest.mark.parametrize("engine", ["postgresql:"], indirect=True)]
AHEAD_MS = 300_000
SLACK_MS = 60_000
"""What a busy machine may take for a call of two lines, and far less than the clocks are wrong."""
IDLE_S = 3


@pytest.fixture
async def nodes(two_handles: tuple[Store, Store]) -> AsyncIterator[tuple[App, App]]:
    """A node whose clock is five minutes fast, and one whose clock is as slow."""
    async with (
        node_on(two_handles[0], clock=lambda: now_ms() + AHEAD_MS) as fast,
        node_on(two_handles[1], clock=lambda: now_ms() - AHEAD_MS) as slow,
    ):
        yield fast, slow


async def test_a_call_has_the_times_of_the_database(nodes: tuple[App, App]) -> None:
    """Its start, its entries and its end, whichever node wrote them."""
    before = now_ms()
    fast, slow = (RestClient(node) for node in nodes)
    async with open_producer(nodes[0], producer="asr") as asr, open_producer(nodes[1], producer="llm") as llm:
        await asr.store(final_transcript(1, "Hello", turn_id=1))
        await llm.store({"type": "llm.done", "turn_id": 1, "text": "Hi.", "seq": 1})
        assert "running" == (await fast.session("s"))["state"] == (await slow.session("s"))["state"]
        await asr.store(session_end(2))
        await llm.store(session_end(2))
        await eventually("ended", slow.state, timeout_s=60)
    after = now_ms()
    for node in (fast, slow):
        session = await node.session("s")
        times = [session["started_at"], session["ended_at"], *(entry["received_ms"] for entry in await node.journal())]
        assert all(before - SLACK_MS < time < after + SLACK_MS for time in times)


async def test_silence_is_as_long_as_it_is_said_to_be(nodes: tuple[App, App]) -> None:
    """A node whose clock is ten minutes ahead of the other's does not close its session too soon, nor too late."""
    fast, slow = (RestClient(node) for node in nodes)
    async with open_producer(nodes[1], session={"idle_timeout": IDLE_S}) as producer:
        await producer.store(final_transcript(1, "Hello", turn_id=1))
    gone = now_ms()
    await eventually("ended", fast.state, timeout_s=60)
    closed = await slow.session("s")
    assert "idle" == closed["reason"]
    assert gone + IDLE_S * 1000 - 1000 <= closed["ended_at"] <= now_ms() + SLACK_MS
