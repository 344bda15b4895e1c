"""Several sessions and several producers on one connection."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.support.callers.producer import Producer, connected_producer, open_producer
from tests.support.callers.rest import RestClient
from tests.support.events import final_transcript, session_end
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.protocol.types import JsonObject
from voicemem.server.ingest.producer_leases import ENDED_KEPT


async def test_two_sessions_on_one_connection(producer: Producer, api: RestClient) -> None:
    """Events go where their session says, and acks say where they come from."""
    await producer.open("t", producer="other")
    await producer.send_together(
        final_transcript(1, session_id="t"), final_transcript(1, session_id="s"), final_transcript(2, session_id="t")
    )
    acks = {(frame["session_id"], frame["producer"], frame["seq"]) for frame in await producer.rest()}
    assert {("s", "main", 1), ("t", "other", 2)} == acks
    assert (1, 2) == (len(await api.journal("s")), len(await api.journal("t")))


async def test_two_producers_of_one_session_on_one_connection(app: App, api: RestClient) -> None:
    """An ASR and an LLM worker may share a connection, each with its own seqs."""
    async with open_producer(app, producer="asr") as both:
        await both.open(producer="llm")
        await both.send_together(
            final_transcript(1, producer="asr"),
            final_transcript(1, producer="llm"),
            final_transcript(2, producer="asr"),
        )
        acks = {(frame["producer"], frame["seq"]) for frame in await both.rest()}
    assert {("asr", 2), ("llm", 1)} == acks
    assert [("asr", 1), ("asr", 2)] == [
        (row["producer"], row["seq"]) for row in await api.journal() if row["producer"] == "asr"
    ]


async def test_two_producers_on_two_connections(app: App, api: RestClient) -> None:
    """Both write one journal; no one supersedes the other."""
    async with open_producer(app, producer="asr") as asr, open_producer(app, producer="llm") as llm:
        for seq in range(1, 6):
            await asr.store(final_transcript(seq))
            await llm.store(final_transcript(seq))
    assert ["asr", "llm"] * 5 == [row["producer"] for row in await api.journal()]


@pytest.mark.parametrize("ended_by", ["producer", "request"])
async def test_a_connection_forgets_what_ended_long_ago(
    app: App, producer: Producer, api: RestClient, ended_by: str
) -> None:
    """A client may send all its calls over one connection for weeks: of those that ended it keeps the newest few."""
    calls = [f"call-{number}" for number in range(ENDED_KEPT + 3)]
    for call in calls:
        await producer.open(call)
        await producer.store(final_transcript(1, session_id=call))
        if ended_by == "producer":
            await producer.store(session_end(2, session_id=call))
        else:
            await api.end(call)
            await producer.send(final_transcript(2, session_id=call))
            await producer.expect_error("session_ended", session_id=call)

    async def held() -> int:
        return len(app.ingest.held_leases())

    await eventually(1 + ENDED_KEPT, held)
    for call, code in ((calls[0], "not_open"), (calls[-1], "session_ended")):
        await producer.send(final_transcript(3, session_id=call))
        await producer.expect_error(code, session_id=call)
    ready = await producer.open(calls[0])
    assert ("ended", 3 if ended_by == "producer" else 2) == (ready["state"], ready["next_seq"])
    await producer.store(final_transcript(1, session_id="s"))


@pytest.mark.parametrize("name", [{}, {"producer": "main"}])
async def test_with_several_sessions_an_event_names_its_own(
    producer: Producer, api: RestClient, name: JsonObject
) -> None:
    """Without a session it is refused, and takes no one's seq."""
    await producer.open("t")
    await producer.send(final_transcript(1, **name))
    await producer.expect_error("session_required", seq=1)
    assert ([], []) == (await api.journal("s"), await api.journal("t"))
    await producer.store(final_transcript(1, session_id="t"))


async def test_with_several_producers_an_event_names_its_own(producer: Producer, api: RestClient) -> None:
    """A session alone does not say which producer speaks."""
    await producer.open(producer="llm")
    await producer.send(final_transcript(1, session_id="s"))
    await producer.expect_error("session_required", seq=1)
    assert [] == await api.journal()


@pytest.mark.parametrize("name", [{"session_id": "t"}, {"session_id": "s", "producer": "llm"}])
async def test_what_is_not_open_takes_no_events(producer: Producer, api: RestClient, name: JsonObject) -> None:
    """An event for another session or producer than those opened here goes nowhere."""
    await api.create("t")
    await producer.send(final_transcript(1, **name))
    await producer.expect_error("not_open", seq=1, **name)
    assert ([], []) == (await api.journal("s"), await api.journal("t"))


async def test_before_an_open_nothing_is_taken(app: App, api: RestClient) -> None:
    """An event on a new connection is refused and stored nowhere, though the session exists."""
    await api.create()
    async with connected_producer(app) as producer:
        await producer.send(final_transcript(1), final_transcript(1, session_id="s"), session_end(1))
        for _ in range(3):
            await producer.expect_error("not_open", seq=1)
        await producer.open()
        await producer.store(final_transcript(1))
    assert 1 == len(await api.journal())


async def test_what_was_sent_before_an_open_is_stored_before_it(app: App, api: RestClient) -> None:
    """Frames count in their order: an open waits for the events before it."""
    async with open_producer(app) as producer:
        await producer.send(
            final_transcript(1), final_transcript(2), {"type": "session.open", "session_id": "s"}, final_transcript(3)
        )
        await producer.expect_ack(2)
        assert 3 == (await producer.expect("session.ready"))["next_seq"]
        await producer.expect_ack(3)
