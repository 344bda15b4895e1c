"""A batch declares which events its producer can no longer send, as an open does."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.support.stores.contract import (
    NOW,
    REOPEN_MS,
    append_offers,
    close_idle,
    end_offer,
    event_types,
    journal_events,
    offer,
    offers,
    open_key,
    open_session,
)
from voicemem.store.append_rules import AppendResult, Batch, Offer, Outcome
from voicemem.store.port import Store


async def append_from(
    store: Store, key: int, from_seq: int, *events: Offer, epoch: int | None = None, now_ms: int = NOW
) -> AppendResult:
    """One batch that declares a gap."""
    plain = Batch(key, "main", epoch, now_ms, [one.payload for one in events], from_seq, from_seq=from_seq)
    (appended,) = await store.journal.append([plain], now_ms)
    return appended


async def test_a_batch_declares_a_gap(store: Store) -> None:
    """The hole is journaled before the events; what lies in it is refused, also in the next batch."""
    key = await open_key(store)
    await append_offers(store, key, *offers(1, 2))
    appended = await append_from(store, key, 6, *offers(6, 7))

    assert ([Outcome(4), Outcome(5)], 8, 5) == (list(appended.outcomes), appended.next_seq, appended.stream.position)
    gap = {"type": "session.gap", "producer": "main", "from_seq": 3, "to_seq": 5}
    assert gap == (await journal_events(store, key))[2]
    assert [Outcome(code="seq_conflict"), Outcome(6)] == await append_offers(store, key, offer(4), offer(8))
    assert 9 == (await open_session(store)).next_seq


async def test_a_gap_may_be_declared_without_events(store: Store) -> None:
    """Nothing but the hole is journaled, and the producer goes on behind it."""
    key = await open_key(store)
    appended = await append_from(store, key, 4)

    assert (4, 1) == (appended.next_seq, appended.stream.position)
    assert [Outcome(2)] == await append_offers(store, key, offer(4))


@pytest.mark.parametrize("from_seq", [1, 2, 3])
async def test_what_can_still_be_sent_is_no_gap(store: Store, from_seq: int) -> None:
    """A `from_seq` that is not above the next seq is ignored, so a request may be repeated."""
    key = await open_key(store)
    await append_offers(store, key, *offers(1, 2))
    appended = await append_from(store, key, from_seq, *offers(from_seq, 3))

    assert (4, 3) == (appended.next_seq, appended.stream.position)
    assert 3 == len(await event_types(store, key))


async def test_only_who_may_send_may_declare(store: Store) -> None:
    """An outdated epoch, an ended producer, and one that numbers nothing leave everything as it is."""
    key = await open_key(store)
    await open_session(store)
    assert [Outcome(code="superseded")] == list((await append_from(store, key, 5, offer(5), epoch=1)).outcomes)
    await append_offers(store, key, end_offer(1))
    assert [Outcome(code="session_ended")] == list((await append_from(store, key, 5, offer(5))).outcomes)
    assert ["session.end"] == await event_types(store, key)
    other = await open_key(store, "unnumbered")
    await append_offers(store, other, offer(None))
    assert [Outcome(code="seq_required")] == list((await append_from(store, other, 5, offer(5))).outcomes)
    assert ["llm.delta"] == await event_types(store, other)


async def test_events_behind_a_gap_reopen_a_session(store: Store) -> None:
    """After an idle close new events reopen the session, and the hole comes after that; a hole alone does not."""
    key = await open_key(store)
    await append_offers(store, key, offer(1))
    await close_idle(store, key)
    assert ("ended", 2) == ((alone := await append_from(store, key, 5)).stream.state, alone.next_seq)
    appended = await append_from(store, key, 5, offer(5))
    assert (True, "running", 6) == (appended.reopened, appended.stream.state, appended.next_seq)
    assert ["session.reopened", "session.gap", "llm.delta"] == (await event_types(store, key))[-3:]
    await close_idle(store, key, "n2")
    late = await append_from(store, key, 9, offer(9), now_ms=NOW + REOPEN_MS)
    assert [Outcome(code="session_ended")] == list(late.outcomes)
