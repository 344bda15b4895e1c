"""The streams of users."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio

import pytest

from tests.support.rows import every_row
from tests.support.stores.contract import NOW, ODD_NAMES, listed_ids, start_alone
from voicemem.config.session import validate_config
from voicemem.errors import Refused
from voicemem.store.port import Store
from voicemem.store.records import Snapshot
from voicemem.store.session_filters import SessionFilter

DOCUMENT = b'{"type":"memory.document","operation":"append","content":"Likes tea."}'


async def test_a_user_s_stream_is_made_once(two_handles: tuple[Store, Store]) -> None:
    """Whoever asks for it first makes it; in another project it is another one."""
    one, other = two_handles
    assert None is await one.journal.find_user("p", "ann")
    made = await asyncio.gather(*(store.journal.ensure_user("p", "ann", NOW) for store in (one, other, one)))
    assert 1 == len({stream.key for stream in made})
    found = await other.journal.find_user("p", "ann")
    assert found is not None
    assert ("p", "user", "ann", "running", 0, {}) == (
        found.project, found.kind, found.id, found.state, found.position, found.config,
    )  # fmt: skip
    assert found.key != (await one.journal.ensure_user("q", "ann", NOW)).key
    assert None is await one.journal.find_user("p", "Ann")


@every_row("user_id", [name for name in ODD_NAMES if name])
async def test_a_user_s_id_is_any_text(store: Store, user_id: str) -> None:
    """It is found as it was given."""
    key = (await store.journal.ensure_user("p", user_id, NOW)).key
    found = await store.journal.find_user("p", user_id)
    assert found is not None
    assert (key, user_id) == (found.key, found.id)


async def test_own_events_are_appended_where_they_are_expected(two_handles: tuple[Store, Store]) -> None:
    """Of several writers at one position one succeeds; the others are told so, and nothing of theirs is stored."""
    key = (await two_handles[0].journal.ensure_user("p", "ann", NOW)).key
    answers = await asyncio.gather(
        *(store.journal.append_server_event(key, DOCUMENT, 0, NOW) for store in two_handles * 3)
    )
    assert [1] == [answer.position for answer in answers if answer is not None]
    assert None is await two_handles[1].journal.append_server_event(key, DOCUMENT, 7, NOW)
    stored = [
        (row.position, row.producer, row.seq, row.payload) for row in await two_handles[1].journal.read_rows(key, 0, 10)
    ]
    assert [(1, None, None, DOCUMENT)] == stored


async def test_a_user_is_no_session(store: Store) -> None:
    """It has a name of its own, is in no list or count, and is never due or closed, after a restart either."""
    user = await store.journal.ensure_user("p", "s", NOW)
    assert None is await store.journal.find_session("p", "s")
    session, how = await store.journal.create_session("p", "s", validate_config({}), NOW)
    assert "created" == how
    assert session.key != user.key
    await start_alone(store, NOW)
    far = NOW + 10**12
    assert [session.key] == await store.journal.find_due(far, 10)
    assert ["s"] == await listed_ids(store)
    assert 1 == await store.journal.count_sessions(SessionFilter(project="p"))
    assert [session.key] == [stream.key for stream in await store.journal.find_sessions("p", [user.key, session.key])]
    assert 1 == (await store.read_figures(NOW)).running
    assert None is await store.journal.close_session(user.key, None, "n", far)
    assert [] == await store.compaction.claim_compactable("", far, 1, 10)
    found = await store.journal.find_user("p", "s")
    assert found is not None
    assert ("running", user.key, None) == (found.state, found.key, found.silent_since_ms)


async def test_an_erased_user_may_come_back_as_somebody_new(two_handles: tuple[Store, Store]) -> None:
    """Nothing of the first is readable, or can be written; the second has a stream of its own."""
    one, other = two_handles
    first = await one.journal.ensure_user("p", "ann", NOW)
    await one.journal.append_server_event(first.key, DOCUMENT, 0, NOW)
    await one.journal.save_snapshot(first.key, Snapshot(1, 1, b"state"))
    await other.retention.erase(first.key, NOW)
    assert [None, None] == [await store.journal.find_user("p", "ann") for store in two_handles]
    assert [] == await other.journal.read_rows(first.key, 0, 10)
    assert None is await other.journal.load_snapshot(first.key, 1, 10)
    with pytest.raises(Refused, match="unknown_session"):
        await other.journal.append_server_event(first.key, DOCUMENT, 1, NOW)
    second = await other.journal.ensure_user("p", "ann", NOW)
    assert second.key != first.key
    assert 0 == second.position
    await other.retention.erase(second.key, NOW)
    assert None is await other.journal.find_user("p", "ann")
    assert {first.key, second.key} == set(await other.retention.claim_erased("", NOW, 1, 10))
