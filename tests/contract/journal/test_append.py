"""Events are appended: positions, epochs, and what is refused."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio

import pytest

from tests.support.stores.contract import (
    HOOK,
    NOW,
    REOPEN_MS,
    append_batch,
    append_offers,
    claim_one_delivery,
    close,
    close_idle,
    end_offer,
    event_types,
    offer,
    offers,
    open_key,
    open_session,
    refused_offer,
    reload,
    seqs_by_producer,
    stored_at,
)
from voicemem.errors import Refused
from voicemem.store.append_rules import Batch, Offer, Outcome
from voicemem.store.port import Store


async def test_events_are_stored_in_order(store: Store) -> None:
    """A batch is journaled in its order, byte for byte, with the times at which it came."""
    key = await open_key(store)
    batch = [Offer(seq, NOW + seq, b' {"type":"asr", "n" : %d}' % seq) for seq in (1, 2, 3)]
    appended = await append_batch(store.journal, key, "main", 1, batch, NOW)

    assert stored_at(1, 2, 3) == appended.outcomes
    assert (3, 4) == (appended.stream.position, appended.next_seq)
    assert [(n, "main", n, NOW + n, batch[n - 1].payload) for n in (1, 2, 3)] == await store.journal.read_rows(
        key, 0, 10
    )
    assert 3 == (await reload(store, key)).position


async def test_events_that_came_together_are_rows_of_their_own(store: Store) -> None:
    """An array is stored as it came, and read, resent and compared as the events in it."""
    key = await open_key(store)
    one, two, three, four = (b'{"type":"asr", "n":%d}' % n for n in (1, 2, 3, 4))
    came = Batch(key, "main", 1, NOW, [b"%b ,\n %b" % (one, two), three], 1, joined=3)
    (appended,) = await store.journal.append([came], NOW)

    assert (1, 4, 3) == (appended.position, appended.next_seq, appended.stream.position)
    assert [one, two, three] == [row.payload for row in await store.journal.read_rows(key, 0, 10)]
    again = Batch(key, "main", 1, NOW, [b"%b, %b" % (three, four)], 3, joined=2)
    other = Batch(key, "main", 1, NOW, [b"%b,%b" % (one, one)], 1, joined=2)
    repeated, conflicting = await store.journal.append([again, other], NOW)
    assert [Outcome(duplicate=True), Outcome(4)] == repeated.outcomes
    assert [Outcome(duplicate=True), Outcome(code="seq_conflict")] == conflicting.outcomes
    assert [one, two, three, four] == [row.payload for row in await store.journal.read_rows(key, 0, 10)]


async def test_positions_have_no_holes(store: Store) -> None:
    """Events of two producers share one row of positions."""
    key = await open_key(store)
    assert stored_at(1, 2) == await append_offers(store, key, *offers(1, 2))
    assert stored_at(3) == await append_offers(store, key, offer(1), producer="asr")
    assert stored_at(4) == await append_offers(store, key, offer(3))
    assert stored_at(5) == await append_offers(store, key, offer(2), producer="asr")
    assert {"main": [1, 2, 3], "asr": [1, 2]} == await seqs_by_producer(store, key)


async def test_an_event_of_the_servers_own_is_appended_where_it_is_expected(store: Store) -> None:
    """Of two that expect the same position one is journaled; the other is told that the journal has gone on."""
    key = await open_key(store)
    await append_offers(store, key, *offers(1, 2))
    payloads = [b'{"type":"memory.summary","n":%d}' % n for n in (1, 2)]
    first, second = await asyncio.gather(
        *(store.journal.append_server_event(key, payload, 2, NOW + 7) for payload in payloads)
    )

    assert [3] == [stream.position for stream in (first, second) if stream is not None]
    won = payloads[0] if first is not None else payloads[1]
    assert [(3, None, None, NOW + 7, won)] == await store.journal.read_rows(key, 2, 10)
    assert None is await store.journal.append_server_event(key, payloads[0], 4, NOW)
    assert stored_at(4) == await append_offers(store, key, offer(3))


async def test_an_event_of_the_servers_own_may_follow_the_close(store: Store) -> None:
    """What is remembered can still change; what was delivered stays, and an erased session takes nothing."""
    key = await open_key(store, given={"webhook": {"url": HOOK}})
    closed = await close(store, key)
    appended = await store.journal.append_server_event(key, b'{"type":"memory.summary"}', closed.position, NOW + 9)
    assert appended is not None
    assert ("ended", closed.position + 1) == (appended.state, (await reload(store, key)).position)
    assert closed.position == (await claim_one_delivery(store)).position
    await store.retention.erase(key, NOW)
    with pytest.raises(Refused, match="There is no such session"):
        await store.journal.append_server_event(key, b"{}", closed.position + 1, NOW)


async def test_an_empty_batch_is_nothing(store: Store) -> None:
    """A batch without events changes nothing and tells how things stand."""
    key = await open_key(store)
    appended = await append_batch(store.journal, key, "main", 1, [], NOW)

    assert ([], 0, 1) == (appended.outcomes, appended.stream.position, appended.next_seq)


async def test_an_append_needs_its_session(store: Store) -> None:
    """Events for a session that is not there are refused as a whole."""
    with pytest.raises(Refused) as refusal:
        await append_offers(store, 99, offer(1))

    assert "unknown_session" == refusal.value.code


async def test_events_without_seq_are_stored_as_they_come(store: Store) -> None:
    """A producer that does not count has its events stored each time they come."""
    key = await open_key(store)

    assert stored_at(1, 2) == await append_offers(store, key, offer(None), offer(None))
    assert {"main": [None, None]} == await seqs_by_producer(store, key)


async def test_a_producer_counts_or_does_not(store: Store) -> None:
    """A producer that mixes events with and without seq is refused, whichever it began with, and others are not."""
    key = await open_key(store)
    mixed = Outcome(code="seq_required")

    assert [Outcome(1), mixed] == await append_offers(store, key, offer(1), offer(None))
    assert [mixed, Outcome(2)] == await append_offers(store, key, offer(None), offer(2))
    assert [Outcome(3), mixed] == await append_offers(store, key, offer(None), offer(1), producer="asr")
    assert [mixed, Outcome(4)] == await append_offers(store, key, offer(1), offer(None), producer="asr")


async def test_an_older_connection_is_superseded(store: Store) -> None:
    """After a newer open nothing is taken under the older epoch, not even duplicates."""
    key = await open_key(store)
    await append_offers(store, key, offer(1), epoch=1)
    await open_session(store)

    assert [Outcome(code="superseded")] * 2 == await append_offers(store, key, *offers(1, 2), epoch=1)
    assert [Outcome(duplicate=True), Outcome(2)] == await append_offers(store, key, *offers(1, 2), epoch=2)


async def test_an_epoch_needs_an_open(store: Store) -> None:
    """An epoch of a producer that never opened is refused."""
    key = await open_key(store)

    assert [Outcome(code="superseded")] == await append_offers(store, key, offer(1), producer="asr", epoch=1)


async def test_without_an_epoch_none_is_checked(store: Store) -> None:
    """Events that name no epoch are taken whoever opened."""
    key = await open_key(store)
    await open_session(store)

    assert stored_at(1) == await append_offers(store, key, offer(1))


async def test_nothing_new_after_a_producers_end(store: Store) -> None:
    """After its own end a producer's new events are refused, while others may still send."""
    key = await open_key(store)

    assert [Outcome(1), Outcome(2), Outcome(code="session_ended")] == await append_offers(
        store, key, offer(1), end_offer(2), offer(3)
    )
    assert [Outcome(code="session_ended")] == await append_offers(store, key, offer(3))
    assert [Outcome(duplicate=True)] * 2 == await append_offers(store, key, offer(1), end_offer(2))
    assert stored_at(3) == await append_offers(store, key, offer(1), producer="asr")


async def test_nothing_new_after_the_close(store: Store) -> None:
    """After the close duplicates are acknowledged and new events of any producer are refused."""
    key = await open_key(store)
    await append_offers(store, key, offer(1))
    await close(store, key)

    assert [Outcome(duplicate=True), Outcome(code="session_ended")] == await append_offers(store, key, *offers(1, 2))
    assert [Outcome(code="session_ended")] == await append_offers(store, key, offer(1), producer="asr")
    assert [Outcome(code="session_ended")] == await append_offers(store, key, refused_offer(2))
    assert 2 == (await reload(store, key)).position


async def test_each_event_of_a_batch_stands_alone(store: Store) -> None:
    """In one batch some events are stored, repeated, refused or left out, each by its own rule."""
    key = await open_key(store)
    await append_offers(store, key, *offers(1, 2))
    batch = [offer(1), offer(2, text="other"), offer(5), offer(3), refused_offer(4), offer(4), offer(None), offer(5)]

    assert [
        Outcome(duplicate=True),
        Outcome(code="seq_conflict"),
        Outcome(code="seq_gap", expected=3),
        Outcome(3),
        Outcome(4, "invalid_field"),
        Outcome(code="invalid_field", duplicate=True),
        Outcome(code="seq_required"),
        Outcome(5),
    ] == await append_offers(store, key, *batch)
    assert {"main": [1, 2, 3, 4, 5]} == await seqs_by_producer(store, key)


async def test_an_idle_session_is_reopened_by_a_new_event(store: Store) -> None:
    """Within the window a new event brings an idle session back; a duplicate or a superseded one does not."""
    key = await open_key(store)
    await append_offers(store, key, offer(1))
    await close_idle(store, key)

    assert [Outcome(duplicate=True)] == await append_offers(store, key, offer(1), now_ms=NOW + 1)
    assert [Outcome(code="superseded")] == await append_offers(store, key, offer(2), epoch=7, now_ms=NOW + 1)
    assert [Outcome(code="session_ended")] == await append_offers(store, key, offer(3), now_ms=NOW + REOPEN_MS)
    assert "ended" == (await reload(store, key)).state
    assert [Outcome(duplicate=True), Outcome(4)] == await append_offers(store, key, *offers(1, 2), now_ms=NOW + 2)
    assert ("running", NOW + 2) == ((await reload(store, key)).state, (await reload(store, key)).silent_since_ms)
    assert ["session.closed", "session.reopened", "llm.delta"] == (await event_types(store, key))[1:]
