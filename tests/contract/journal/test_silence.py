"""Silent sessions are closed as idle; a restart is not silence."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.support.stores.contract import (
    END,
    IDLE_MS,
    NOW,
    append_offers,
    close,
    end_offer,
    hang_up,
    journal_events,
    offer,
    open_key,
    open_session,
    reload,
    start_alone,
    update_offer,
)
from voicemem.config.session import validate_config
from voicemem.store.append_rules import Offer
from voicemem.store.port import Store
from voicemem.store.streams import END_GRACE_MS


async def test_silence_is_closed_as_idle(store: Store) -> None:
    """A session that has heard nothing for its idle timeout after its last connection went is closed as idle."""
    key = await open_key(store)
    await hang_up(store, key, NOW + 1000)
    due = NOW + 1000 + IDLE_MS

    assert ([], [key]) == (await store.journal.find_due(due - 1, 10), await store.journal.find_due(due, 10))
    assert await store.journal.close_session(key, None, "n", due - 1) is None
    closed = await close(store, key, None, now_ms=due)
    assert ("idle", due) == (closed.reason, closed.ended_ms)
    assert {"type": "session.closed", "ts": due, "reason": "idle"} == (await journal_events(store, key))[-1]


async def test_a_session_without_a_connection_is_silent(store: Store) -> None:
    """A session that was created and never opened is idle from its creation on, one with a connection is not."""
    stream, _ = await store.journal.create_session("p", "s", validate_config({}), NOW)
    assert [stream.key] == await store.journal.find_due(NOW + IDLE_MS, 10)
    await open_session(store)
    assert [] == await store.journal.find_due(NOW + IDLE_MS, 10)


async def test_coming_back_ends_the_silence(store: Store) -> None:
    """A connection that comes while a due session is about to be closed keeps it open."""
    key = await open_key(store)
    await hang_up(store, key, NOW)
    assert [key] == await store.journal.find_due(NOW + IDLE_MS, 10)
    await open_session(store)

    assert await store.journal.close_session(key, None, "n", NOW + IDLE_MS) is None
    assert "running" == (await reload(store, key)).state


@pytest.mark.parametrize("heard", [offer(1), offer(2)])
async def test_events_without_a_connection_are_heard(store: Store, heard: Offer) -> None:
    """What comes over HTTP counts as hearing, duplicates included."""
    key = await open_key(store)
    await append_offers(store, key, offer(1))
    await hang_up(store, key, NOW)
    await append_offers(store, key, heard, now_ms=NOW + 5000)

    assert ([], [key]) == (
        await store.journal.find_due(NOW + IDLE_MS, 10),
        await store.journal.find_due(NOW + 5000 + IDLE_MS, 10),
    )


async def test_silence_may_be_allowed(store: Store) -> None:
    """With an idle timeout of 0 silence never closes a session, and an update may turn it on."""
    key = await open_key(store, given={"idle_timeout": 0})
    await hang_up(store, key, NOW)

    assert [] == await store.journal.find_due(NOW + 10 * IDLE_MS, 10)
    await append_offers(store, key, update_offer(1, {"idle_timeout": 1.5}), now_ms=NOW)
    assert ([], [key]) == (await store.journal.find_due(NOW + 1499, 10), await store.journal.find_due(NOW + 1500, 10))


async def test_the_longest_session(store: Store) -> None:
    """A session is closed after its longest duration, connected and talking or not."""
    key = await open_key(store, given={"max_duration": 100})
    await append_offers(store, key, offer(1), now_ms=NOW + 99_999)

    assert ([], [key]) == (
        await store.journal.find_due(NOW + 99_999, 10),
        await store.journal.find_due(NOW + 100_000, 10),
    )
    closed = await close(store, key, None, now_ms=NOW + 100_001)
    assert "max_duration" == closed.reason
    assert NOW + 100_001 == (await journal_events(store, key))[-1]["ts"]


async def test_what_ended_is_not_silent(store: Store) -> None:
    """A connection that goes does nothing to a session that is closed."""
    key = await open_key(store)
    closed = await close(store, key)
    await hang_up(store, key, NOW)

    assert closed == await reload(store, key)
    assert [] == await store.journal.find_due(NOW + 10**9, 10)


async def test_due_sessions_come_in_their_order(store: Store) -> None:
    """The sessions that have been due for longest come first, at most as many as asked for."""
    keys = [await open_key(store, f"s{number}") for number in range(4)]
    for key, wait in zip(keys, (3, 1, 2, 4), strict=True):
        await hang_up(store, key, NOW + wait)

    assert [keys[1], keys[2], keys[0]] == await store.journal.find_due(NOW + 3 + IDLE_MS, 10)
    assert [keys[1], keys[2]] == await store.journal.find_due(NOW + 4 + IDLE_MS, 2)


async def test_time_without_a_server_is_not_silence(store: Store) -> None:
    """After a restart every running session is silent from then on, whatever it was before."""
    connected, silent, ended = [await open_key(store, name) for name in ("connected", "silent", "ended")]
    await hang_up(store, silent, NOW)
    closed = await close(store, ended)
    later = NOW + 10 * IDLE_MS
    await start_alone(store, later)

    assert [] == await store.journal.find_due(later + IDLE_MS - 1, 10)
    assert sorted([connected, silent]) == sorted(await store.journal.find_due(later + IDLE_MS, 10))
    assert [later, later] == [(await reload(store, key)).silent_since_ms for key in (connected, silent)]
    assert closed == await reload(store, ended)


async def test_a_restart_closes_what_had_ended(store: Store) -> None:
    """A session whose end was committed is due at once after a restart, and is closed with that end."""
    key = await open_key(store)
    await append_offers(store, key, end_offer(1), now_ms=NOW)
    await append_offers(store, key, offer(1), producer="over http", now_ms=NOW)
    await start_alone(store, NOW + 1)

    assert [key] == await store.journal.find_due(NOW + 1, 10)
    await close(store, key, None, now_ms=NOW + 1)
    assert {"type": "session.closed", "ts": END.ts, "reason": END.reason} == (await journal_events(store, key))[-1]


async def test_a_restart_gives_those_who_have_not_ended_their_grace_anew(store: Store) -> None:
    """Their connections broke with the process before: the close waits for them, also when they are back."""
    key = await open_key(store)
    await store.journal.open_producer("p", "s", "llm", validate_config({}), None, NOW)
    await append_offers(store, key, end_offer(1), now_ms=NOW)
    again = NOW + 10 * END_GRACE_MS
    await start_alone(store, again)

    assert [] == await store.journal.find_due(again + END_GRACE_MS - 1, 10)
    await store.journal.open_producer("p", "s", "llm", validate_config({}), None, again + 1)
    assert [] == await store.journal.find_due(again + END_GRACE_MS - 1, 10)
    assert await store.journal.close_ended(key, "n", again + 2) is None
    await append_offers(store, key, end_offer(1), producer="llm", now_ms=again + 2)
    assert await store.journal.close_ended(key, "n", again + 2) is not None
    assert {"type": "session.closed", "ts": END.ts, "reason": END.reason} == (await journal_events(store, key))[-1]
