"""A session is closed when it is due, and once."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from msgspec.structs import replace

from tests.support.stores.contract import (
    END,
    IDLE_MS,
    NOW,
    append_offers,
    close,
    end_offer,
    event_types,
    journal_events,
    offer,
    open_key,
    open_session,
    reload,
)
from voicemem.store.port import Store
from voicemem.store.records import DisconnectedProducer
from voicemem.store.streams import END_GRACE_MS


async def test_a_close_at_once(store: Store) -> None:
    """A close with its ending ends the session now, with the time and reason of that ending in the journal."""
    opened = (await open_session(store)).stream
    key = opened.key
    await append_offers(store, key, offer(1))
    closed = await close(store, key, END, now_ms=NOW + 9)

    assert replace(opened, state="ended", ended_ms=NOW + 9, reason=END.reason, position=2) == closed
    assert closed == await reload(store, key)
    assert {"type": "session.closed", "ts": END.ts, "reason": END.reason} == (await journal_events(store, key))[-1]


async def test_a_session_is_closed_once(store: Store) -> None:
    """Closing what is closed, or is not there, does nothing."""
    key = await open_key(store)
    await close(store, key)

    assert await store.journal.close_session(key, END, "n", NOW) is None
    assert await store.journal.close_ended(key, "n", NOW) is None
    assert await store.journal.close_session(key + 1, END, "n", NOW) is None
    assert ["session.closed"] == await event_types(store, key)


async def test_a_session_that_is_not_due_is_not_closed(store: Store) -> None:
    """A close without an ending leaves a session alone that has a connection, be it that another has just ended."""
    key = await open_key(store)
    await open_session(store, producer="asr")
    assert await store.journal.close_session(key, None, "n", NOW + IDLE_MS) is None
    await append_offers(store, key, end_offer(1))
    assert await store.journal.close_session(key, None, "n", NOW + END_GRACE_MS - 1) is None
    assert [] == await store.journal.find_due(NOW + END_GRACE_MS - 1, 10)


async def test_an_end_is_due_after_its_grace(store: Store) -> None:
    """Two seconds after the first end the session is closed with its time and reason."""
    key = await open_key(store)
    await append_offers(store, key, end_offer(1, NOW - 7, "hang_up"))
    await append_offers(store, key, end_offer(1, NOW - 9, "late"), producer="asr", now_ms=NOW + 1000)

    assert [key] == await store.journal.find_due(NOW + END_GRACE_MS, 10)
    closed = await close(store, key, None, now_ms=NOW + END_GRACE_MS)
    assert ("hang_up", NOW + END_GRACE_MS) == (closed.reason, closed.ended_ms)
    assert {"type": "session.closed", "ts": NOW - 7, "reason": "hang_up"} == (await journal_events(store, key))[-1]
    assert [] == await store.journal.find_due(NOW + END_GRACE_MS, 10)


async def test_an_end_waits_for_those_connected(store: Store) -> None:
    """An ended session is closed early only when every connected producer has ended."""
    key = await open_key(store)
    await open_session(store, producer="asr")
    await append_offers(store, key, end_offer(1))

    assert await store.journal.close_ended(key, "n", NOW) is None
    await append_offers(store, key, end_offer(1), producer="asr")
    closed = await store.journal.close_ended(key, "n", NOW)
    assert closed is not None
    assert END.reason == closed.stream.reason == closed.ending.reason


async def test_an_end_waits_for_nobody(store: Store) -> None:
    """An ended session is closed at once when no other producer is connected."""
    key = await open_key(store)
    await append_offers(store, key, offer(1), producer="asr")
    await append_offers(store, key, end_offer(1))

    assert await store.journal.close_ended(key, "n", NOW) is not None


async def test_a_session_without_an_end_is_not_ended(store: Store) -> None:
    """A session that no producer ended is not closed as ended, connected or not."""
    key = await open_key(store)
    await append_offers(store, key, end_offer(1)._replace(refusal="invalid_field"))

    assert await store.journal.close_ended(key, "n", NOW) is None
    assert await store.journal.leave([DisconnectedProducer(key, "main", 1)], NOW)
    assert await store.journal.close_ended(key, "n", NOW) is None
