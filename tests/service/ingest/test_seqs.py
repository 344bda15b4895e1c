"""Acks, resends, gaps and conflicts of seqs."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from pathlib import Path

import apsw
import pytest

from tests.support.callers.ingest import journaled
from tests.support.callers.producer import Producer, connected_producer, open_producer
from tests.support.callers.rest import RestClient
from tests.support.events import final_transcript, session_end, unknown_event
from tests.support.stores.failing import locked_database
from voicemem.app import App
from voicemem.protocol.types import JsonObject

# Seqs


async def test_the_next_seq_is_stored(producer: Producer, api: RestClient) -> None:
    """Events stand in the journal as they were sent, at rising positions, with producer and seq."""
    events = [final_transcript(1, metadata={"ü": [1, 2.5, None]}), final_transcript(2), session_end(3)]
    await producer.store(*events)
    rows = (await api.journal())[:3]
    assert [(n, "main", n, event) for n, event in enumerate(events, 1)] == [
        (row["position"], row["producer"], row["seq"], row["event"]) for row in rows
    ]


async def test_acks_are_cumulative(producer: Producer) -> None:
    """An ack names its session and producer, and covers everything below it."""
    await producer.send_together(*(final_transcript(seq) for seq in range(1, 51)))
    assert {"type": "ack", "session_id": "s", "producer": "main", "seq": 50} == await producer.next()


async def test_acks_never_go_back(producer: Producer) -> None:
    """In a stream of single frames acks rise until the last."""
    await producer.send(*(final_transcript(seq) for seq in range(1, 301)))
    acked = await producer.expect_ack(300)
    assert sorted(set(acked)) == acked


@pytest.mark.parametrize(
    "again",
    [
        '{"type":"asr","seq":1,"turn_id":1,"text":"Café","final":true,"metadata":{"a":[1,2.5]}}',
        '{"metadata" : {"a" : [1, 2.5]},\n"final":true, "text":"Café","turn_id":1,"seq":1,"type":"asr"}',
        '{"type":"asr","seq":1,"turn_id":1,"text":"Caf\\u00e9","final":true,"metadata":{"a":[1,25e-1]}}',
    ],
)
async def test_the_same_again_is_acknowledged_again(producer: Producer, api: RestClient, again: str) -> None:
    """A duplicate is what is equal as decoded JSON; it gets its ack and is not stored twice."""
    await producer.send_raw('{"type":"asr","seq":1,"turn_id":1,"text":"Café","final":true,"metadata":{"a":[1,2.5]}}')
    await producer.store(final_transcript(2))
    await producer.send_raw(again)
    await producer.expect("ack", seq=1)
    assert 2 == len(await api.journal())


async def test_duplicates_are_found_on_every_way_in(app: App, api: RestClient) -> None:
    """A resend over a new connection, or over HTTP, is the same event."""
    async with open_producer(app) as producer:
        await producer.store(final_transcript(1), final_transcript(2))
    async with open_producer(app) as again:
        await again.send_together(final_transcript(1), final_transcript(2), final_transcript(3))
        await again.expect("ack", seq=3)
    assert {"next_seq": 4, "errors": []} == await api.send(final_transcript(2), final_transcript(3))
    assert [1, 2, 3] == [row["seq"] for row in await api.journal()]


@pytest.mark.parametrize("other", [{"text": "Other."}, {"more": 1}, {"turn_id": 2}, {"ts": 1}, {"metadata": {}}])
async def test_another_event_under_a_seq_is_a_conflict(producer: Producer, api: RestClient, other: JsonObject) -> None:
    """What was stored first stays; the other gets an error, and the connection goes on."""
    await producer.store(final_transcript(1))
    await producer.send(final_transcript(1) | other)
    await producer.expect_error("seq_conflict", session_id="s", producer="main", seq=1)
    await producer.store(final_transcript(2))
    assert [final_transcript(1), final_transcript(2)] == await journaled(api)


async def test_a_frame_may_contradict_itself(producer: Producer, api: RestClient) -> None:
    """Of two events of one seq in one frame the first is stored, the second is a conflict."""
    await producer.send_together(
        final_transcript(1), final_transcript(1), final_transcript(1, text="Other."), final_transcript(2)
    )
    await producer.expect_error("seq_conflict", seq=1)
    await producer.expect("ack", seq=2)
    assert [final_transcript(1), final_transcript(2)] == await journaled(api)


async def test_a_gap_is_told_once(producer: Producer, api: RestClient) -> None:
    """Above the next seq nothing is stored: one error with the seq that is expected, then silence."""
    await producer.store(final_transcript(1))
    await producer.send(final_transcript(3), final_transcript(4))
    await producer.send_together(final_transcript(9), unknown_event(10), final_transcript(5))
    await producer.expect_error("seq_gap", session_id="s", producer="main", seq=3, expected=2)
    await producer.send(final_transcript(2))
    assert [("ack", 2)] == [(frame["type"], frame["seq"]) for frame in await producer.rest()]
    assert [final_transcript(1), final_transcript(2)] == await journaled(api)


async def test_a_duplicate_does_not_end_the_silence(producer: Producer) -> None:
    """A gap is silent until the expected seq arrives, whatever else is sent again meanwhile."""
    await producer.store(final_transcript(1), final_transcript(2))
    await producer.send(final_transcript(5))
    await producer.expect_error("seq_gap", expected=3)
    await producer.store(final_transcript(2))
    await producer.send(final_transcript(6))
    assert [] == await producer.rest()


async def test_every_gap_is_told(producer: Producer) -> None:
    """Once the expected event has come, the next hole is a new one."""
    await producer.send(final_transcript(2))
    await producer.expect_error("seq_gap", expected=1)
    await producer.store(final_transcript(1))
    await producer.send(final_transcript(3))
    await producer.expect_error("seq_gap", seq=3, expected=2)


async def test_a_new_connection_hears_of_its_gap(app: App) -> None:
    """The silence is that of one connection."""
    for _ in range(2):
        async with open_producer(app) as producer:
            await producer.send(final_transcript(5), final_transcript(6))
            await producer.expect_error("seq_gap", seq=5, expected=1)


async def test_the_rest_of_a_frame_is_not_lost_to_a_gap(producer: Producer, api: RestClient) -> None:
    """Each event of a frame stands alone: what comes in order behind a hole is stored."""
    await producer.send_together(final_transcript(1), final_transcript(3), final_transcript(2), final_transcript(3))
    await producer.expect_error("seq_gap", seq=3, expected=2)
    await producer.expect("ack", seq=3)
    assert [1, 2, 3] == [row["seq"] for row in await api.journal()]


async def test_events_without_seq_are_never_acknowledged(producer: Producer, api: RestClient) -> None:
    """A producer that does not count is stored as it comes, twice if it comes twice."""
    await producer.send(final_transcript(), final_transcript(), session_end())
    assert [] == await producer.rest()
    assert [final_transcript(), final_transcript(), session_end()] == (await journaled(api))[:3]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (final_transcript(1), final_transcript()),
        (final_transcript(), final_transcript(1)),
        (unknown_event(1), final_transcript()),
    ],
)
async def test_a_producer_counts_or_does_not(
    producer: Producer, api: RestClient, first: JsonObject, then: JsonObject
) -> None:
    """Who mixes events with and without seq is told so, and nothing of the other kind is stored."""
    await producer.send(first, then)
    errors = [(frame["code"], frame.get("seq")) for frame in await producer.rest() if "code" in frame]
    assert ("seq_required", then.get("seq")) == errors[-1]
    assert 1 == len(await api.journal())


@pytest.mark.parametrize(
    "events", [[final_transcript(1), final_transcript()], [final_transcript(), final_transcript(1)]]
)
async def test_a_frame_counts_or_does_not(producer: Producer, api: RestClient, events: list[JsonObject]) -> None:
    """The same holds inside of one frame."""
    await producer.send_together(*events)
    assert ["seq_required"] == [frame["code"] for frame in await producer.rest() if "code" in frame]
    assert events[:1] == await journaled(api)


@pytest.mark.parametrize("between", [",", " ,\n\t"])
async def test_arrays_and_single_events_are_one_line(producer: Producer, api: RestClient, between: str) -> None:
    """However events come, together or alone, new or again: each is stored once, and is what was sent."""
    events = [final_transcript(seq, words=None if seq % 3 else []) for seq in range(1, 31)]
    texts = [json.dumps(event, ensure_ascii=False) for event in events]
    for first, stop in ((0, 3), (3, 4), (4, 9), (0, 12), (12, 13), (10, 30)):
        inner = between.join(texts[first:stop])
        await producer.send_raw(f"[ {inner}\n]" if stop - first > 1 else inner)
    await producer.expect_ack(30)
    await producer.send_together(*events[28:], final_transcript(31), unknown_event(32), final_transcript(34))
    errors = [(frame["code"], frame["seq"]) for frame in await producer.rest() if "code" in frame]
    assert [("unknown_type", 32), ("seq_gap", 34)] == errors
    assert [*events, final_transcript(31)] == (await journaled(api))[:31]


async def test_producers_count_for_themselves(app: App, api: RestClient) -> None:
    """Each producer of a session has seqs of its own; one may count while the other does not."""
    async with open_producer(app, producer="asr") as asr, open_producer(app, producer="llm") as llm:
        await asr.store(final_transcript(1), final_transcript(2))
        await llm.send(final_transcript())
        await llm.rest()
        await asr.store(final_transcript(3))
    assert [("asr", 1), ("asr", 2), ("llm", None), ("asr", 3)] == [
        (row["producer"], row["seq"]) for row in await api.journal()
    ]


async def test_an_empty_frame_of_events_is_nothing(producer: Producer, api: RestClient) -> None:
    """An array without events is passed over."""
    await producer.send_together()
    assert [] == await producer.rest()
    assert [] == await api.journal()


# Acks and the disk


async def test_no_ack_before_the_commit(on_file: App, tmp_path: Path) -> None:
    """While the commit hangs there is no ack and no error; both come once it is through."""
    async with open_producer(on_file) as producer:
        with locked_database(f"{tmp_path}/db"):
            await producer.send(final_transcript(1), unknown_event(2))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.socket.recv(), 0.3)
        assert [("ack", 1), ("error", 2)] == sorted([(f["type"], f["seq"]) for f in await producer.rest()])


async def test_whatever_is_acknowledged_is_in_the_file(on_file: App, tmp_path: Path) -> None:
    """At the moment of an ack anybody who opens the database finds the event there."""
    other = apsw.Connection(f"{tmp_path}/db", flags=apsw.SQLITE_OPEN_READONLY)
    async with open_producer(on_file) as producer:
        await producer.send(*(final_transcript(seq) for seq in range(1, 200)))
        acked = 0
        while acked < 199:
            acked = (await producer.expect("ack"))["seq"]
            found = other.execute("select max(seq + count - 1) from journal").fetchall()
            assert found[0][0] >= acked
    other.close()


async def test_a_duplicate_waits_for_its_original(on_file: App, tmp_path: Path) -> None:
    """A resend over a new connection is acknowledged once the original is committed, not before."""
    async with open_producer(on_file) as first, connected_producer(on_file) as again:
        with locked_database(f"{tmp_path}/db"):
            await first.send(final_transcript(1))
            await again.send({"type": "session.open", "session_id": "s"}, final_transcript(1))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(again.socket.recv(), 0.3)
        assert (await again.expect("session.ready"))["next_seq"] in (1, 2)
        await again.expect("ack", seq=1)
    assert 1 == len(await RestClient(on_file).journal())
