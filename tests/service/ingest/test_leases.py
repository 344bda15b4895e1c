"""The newest connection of a producer holds it; the older one is superseded."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.callers.ingest import LONG, S, clogged
from tests.support.callers.producer import Producer, connected_producer, open_producer
from tests.support.callers.rest import RestClient
from tests.support.events import final_transcript, session_end, unknown_event
from tests.support.services import Serve
from voicemem.app import App
from voicemem.protocol.types import JsonObject


@pytest.fixture
async def old(app: App) -> AsyncIterator[Producer]:
    """A producer with an open session "s", and one event in it."""
    async with open_producer(app) as producer:
        await producer.store(final_transcript(1))
        yield producer


async def test_the_older_connection_is_told_once(app: App, api: RestClient, old: Producer) -> None:
    """It hears of it at once and only once; what it still sends is never stored nor answered."""
    async with open_producer(app) as new:
        await old.expect_error("superseded", session_id="s", producer="main")
        await old.send(final_transcript(2, text="Ghost."), final_transcript(7), unknown_event(2), session_end(2))
        assert [] == await old.rest()
        await new.store(final_transcript(2))
    assert ["Line 1.", "Line 2."] == [message["content"] for message in await api.contents()]


async def test_frames_of_the_older_connection_are_not_even_reduced(app: App, api: RestClient) -> None:
    """What still comes in envelopes is ignored like events: no metric counts it."""
    async with open_producer(app, dialect="openai-realtime") as old, open_producer(app):
        await old.expect_error("superseded", session_id="s", producer="main")
        await old.send({"frame": {"type": "hologram"}}, {"frame": {"type": "hologram"}, "seq": 2})
        assert [] == await old.rest()
    metrics = (await api.get("/metrics")).body.decode()
    assert 'voicemem_frames_total{dialect="openai-realtime",result="unknown"} 0.0' in metrics


async def test_what_the_older_connection_had_sent_is_kept(app: App, old: Producer) -> None:
    """Events that came before the new open are stored and acknowledged; the new one goes on behind them."""
    await old.send_together(*(final_transcript(seq) for seq in range(2, 200)))
    await old.expect("ack", seq=199)
    async with connected_producer(app) as new:
        assert 200 == (await new.open())["next_seq"]


async def test_a_race_of_both_stores_each_seq_once(app: App, api: RestClient, old: Producer) -> None:
    """Whichever comes first counts: an ack is for an event that is stored, and none is stored twice."""
    async with connected_producer(app) as new:
        await asyncio.gather(
            old.send(*(final_transcript(seq) for seq in range(2, 100))), new.send({"type": "session.open"} | S)
        )
        start = (await new.expect("session.ready"))["next_seq"]
        await new.store(*(final_transcript(seq, text="New.") for seq in range(start, 101)))
    rows = await api.journal()
    assert list(range(1, 101)) == [row["seq"] for row in rows]
    assert ["New."] * (101 - start) == [row["event"]["text"] for row in rows[start - 1 :]]


async def test_other_lines_of_the_older_connection_go_on(app: App, old: Producer) -> None:
    """Only that producer of that session has gone elsewhere."""
    await old.open(producer="llm")
    await old.open("t")
    async with open_producer(app):
        await old.expect_error("superseded", session_id="s", producer="main")
        await old.store(final_transcript(1, session_id="s", producer="llm"))
        await old.store(final_transcript(1, session_id="t"))


async def test_opening_again_on_the_same_connection_tells_nobody(old: Producer) -> None:
    """A connection does not supersede itself."""
    assert 2 == (await old.open())["epoch"]
    assert [] == await old.rest()
    await old.store(final_transcript(2, session_id="s"))


async def test_the_older_connection_may_take_over_again(app: App, old: Producer) -> None:
    """Whoever opened last holds the producer, as often as it changes."""
    async with open_producer(app) as new:
        await old.expect_error("superseded")
        assert 3 == (await old.open())["epoch"]
        await new.expect_error("superseded")
        await old.store(final_transcript(2))
        await new.send(final_transcript(3))
        assert [] == await new.rest()


async def test_the_newest_of_two_opens_at_once_holds(serve: Serve, tmp_path: Path) -> None:
    """When connections open a producer at the same time, the highest epoch goes on, and the other is told."""
    app = await serve(store=f"sqlite:{tmp_path}/db")
    async with connected_producer(app) as holder, connected_producer(app) as other:
        for seq in range(1, 31):
            ready = await asyncio.gather(last_ready(holder), last_ready(other))
            if ready[0]["epoch"] < ready[1]["epoch"]:
                holder, other = other, holder
            await holder.send(final_transcript(seq, session_id="s"))
            assert ["ack"] == [frame["type"] for frame in await holder.rest() if "s" == frame.get("session_id")]
            assert ["superseded"] == [frame["code"] for frame in await other.rest() if "s" == frame.get("session_id")]


async def last_ready(producer: Producer) -> JsonObject:
    """Open, past whatever came for older epochs."""
    await producer.send({"type": "session.open"} | S)
    while (frame := await producer.next())["type"] != "session.ready":
        pass
    return frame


async def test_who_reads_nothing_holds_up_nobody(app: App) -> None:
    """A dead peer, whose buffers are full, does not keep its successor from the session."""
    async with clogged(app), connected_producer(app) as successor, asyncio.timeout(3):
        assert 2 == (await successor.open(**LONG))["epoch"]
