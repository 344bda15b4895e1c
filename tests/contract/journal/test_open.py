"""A producer opens a session: epochs, gaps, and sessions that come back."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from tests.support.stores.contract import (
    NOW,
    REOPEN_MS,
    append_offers,
    close,
    close_idle,
    end_offer,
    journal_events,
    offer,
    offers,
    open_key,
    open_session,
    reload,
    stored_at,
)
from voicemem.store.append_rules import Outcome
from voicemem.store.port import Store


async def test_opening_makes_the_session(store: Store) -> None:
    """The first open makes the session, with epoch 1, to be sent on from seq 1."""
    opened = await open_session(store, given={"name": "joker"})

    assert (1, 1, True, False) == (opened.epoch, opened.next_seq, opened.created, opened.reopened)
    assert {"name": "joker"} == opened.stream.config
    assert opened.stream == await store.journal.find_session("p", "s")


async def test_opening_again_raises_the_epoch(store: Store) -> None:
    """Every open raises the epoch, goes on where the journal stands, and leaves the configuration as it is."""
    key = await open_key(store, given={"name": "joker"})
    await append_offers(store, key, *offers(1, 3), epoch=1)
    opened = await open_session(store, given={"name": "other"})

    assert (2, 4, False, False) == (opened.epoch, opened.next_seq, opened.created, opened.reopened)
    assert {"name": "joker"} == opened.stream.config
    assert 3 == (await open_session(store)).epoch


async def test_producers_have_their_own_epochs_and_seqs(store: Store) -> None:
    """One producer's open and events leave the epoch and next seq of another alone."""
    key = await open_key(store)
    await append_offers(store, key, *offers(1, 3), epoch=1)
    other = await open_session(store, producer="asr")

    assert (1, 1) == (other.epoch, other.next_seq)
    assert stored_at(4) == await append_offers(store, key, offer(4), epoch=1)


async def test_a_gap_is_journaled(store: Store) -> None:
    """A `from_seq` above the next seq is journaled with the first and last missing seq, and is then next."""
    key = await open_key(store)
    await append_offers(store, key, *offers(1, 2))
    opened = await open_session(store, from_seq=6)
    (row,) = await store.journal.read_rows(key, 2, 10)

    assert (6, 3) == (opened.next_seq, opened.stream.position)
    assert (3, None, None, NOW) == (row.position, row.producer, row.seq, row.received_ms)
    assert {"type": "session.gap", "producer": "main", "from_seq": 3, "to_seq": 5} == msgspec.json.decode(row.payload)
    assert stored_at(4) == await append_offers(store, key, offer(6), epoch=2)


async def test_a_new_session_may_begin_with_a_gap(store: Store) -> None:
    """A `from_seq` is taken on a session that this open makes."""
    opened = await open_session(store, from_seq=3)
    gap = {"type": "session.gap", "producer": "main", "from_seq": 1, "to_seq": 2}

    assert (True, 3, 1) == (opened.created, opened.next_seq, opened.stream.position)
    assert [gap] == await journal_events(store, opened.stream.key)


@pytest.mark.parametrize("from_seq", [1, 2, 3])
async def test_what_can_still_be_sent_is_no_gap(store: Store, from_seq: int) -> None:
    """A `from_seq` that is not above the next seq is ignored."""
    key = await open_key(store)
    await append_offers(store, key, *offers(1, 2))
    opened = await open_session(store, from_seq=from_seq)

    assert (3, 2) == (opened.next_seq, opened.stream.position)


async def test_an_ended_session_stays_ended(store: Store) -> None:
    """Opening a session that ended raises the epoch for its duplicates, and journals nothing."""
    key = await open_key(store)
    await append_offers(store, key, offer(1))
    closed = await close(store, key)
    opened = await open_session(store, from_seq=9)

    assert closed == opened.stream == await reload(store, key)
    assert ("ended", 2, 2, False) == (opened.stream.state, opened.epoch, opened.next_seq, opened.reopened)
    assert [Outcome(duplicate=True), Outcome(code="session_ended")] == await append_offers(
        store, key, *offers(1, 2), epoch=2
    )


async def test_an_end_for_idleness_told_by_the_producer_is_final(store: Store) -> None:
    """Only the server's own idle close is provisional, not a `session.end` that gives the reason "idle"."""
    key = await open_key(store)
    await append_offers(store, key, end_offer(1, reason="idle"))
    await store.journal.close_ended(key, "n", NOW)
    opened = await open_session(store, producer="asr", now_ms=NOW + 1)

    assert ("ended", False) == (opened.stream.state, opened.reopened)
    assert [Outcome(code="session_ended")] == await append_offers(store, key, offer(1), producer="asr")


async def test_a_closed_idle_session_is_reopened(store: Store) -> None:
    """Within the reopen window an open brings an idle session back, and says so in the journal."""
    first = (await open_session(store)).stream
    key = first.key
    await close_idle(store, key)
    opened = await open_session(store, now_ms=NOW + REOPEN_MS - 1)

    assert (True, False) == (opened.reopened, opened.created)
    assert replace(first, position=2) == opened.stream == await reload(store, key)
    assert {"type": "session.reopened", "ts": NOW + REOPEN_MS - 1} == (await journal_events(store, key))[-1]
    assert stored_at(3) == await append_offers(store, key, offer(1), epoch=2)


async def test_the_reopen_window_ends(store: Store) -> None:
    """After the reopen window an idle session stays ended."""
    key = await open_key(store)
    await close_idle(store, key)
    opened = await open_session(store, now_ms=NOW + REOPEN_MS)

    assert ("ended", False) == (opened.stream.state, opened.reopened)
    assert [Outcome(code="session_ended")] == await append_offers(store, key, offer(1), now_ms=NOW + REOPEN_MS)


async def test_the_reopen_window_is_the_sessions_own(store: Store) -> None:
    """A session without a reopen window is not reopened."""
    key = await open_key(store, given={"reopen_window": 0})
    await close_idle(store, key)

    assert not (await open_session(store)).reopened
