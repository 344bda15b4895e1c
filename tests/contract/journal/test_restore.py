"""A session is restored from another journal."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest

from tests.support.stores.contract import (
    END,
    HOOK,
    IDLE_MS,
    NOW,
    REOPEN_MS,
    append_offers,
    claim_deliveries,
    close,
    offer,
    open_key,
    open_session,
    reload,
    stored_at,
)
from voicemem.config.session import validate_config
from voicemem.errors import Refused
from voicemem.store.append_rules import Outcome
from voicemem.store.port import Store
from voicemem.store.records import JournalRow, RestoredSession
from voicemem.store.streams import END_GRACE_MS, ProducerState, Stream


def journal_rows() -> list[JournalRow]:
    """Two events of one producer, one of the server's own, one of a producer without seqs, and the first again."""
    main = [(1, "main", 1, NOW - 9), (2, "main", 2, NOW - 9), (3, None, None, NOW - 8), (4, "api", None, NOW - 7)]
    return [JournalRow(*row, offer(row[2]).payload) for row in [*main, (5, "main", 4, NOW - 6)]]


async def restore(store: Store, session_id: str = "r", given: dict[str, Any] | None = None, **more: Any) -> Stream:
    """A new session with that journal."""
    producers = [ProducerState("main", next_seq=5), ProducerState("api", unsequenced=True)]
    restored = RestoredSession(**{"rows": journal_rows(), "started_ms": NOW - 10, "producers": producers, **more})
    made = await store.journal.restore_session("p", session_id, validate_config(given or {}), restored, NOW)
    assert made is not None
    return made


async def test_a_restored_session_has_its_journal(store: Store) -> None:
    """It reads as it was written, and each producer goes on where it was; of a hole nothing is acknowledged."""
    made = await restore(store, given={"user_id": "ann"})
    assert ("running", 5, NOW - 10, NOW) == (made.state, made.position, made.started_ms, made.silent_since_ms)
    assert made == await store.journal.find_session("p", "r") == await reload(store, made.key)
    assert journal_rows() == await store.journal.read_rows(made.key, 0, 10)
    assert ["seq_conflict", None, "seq_gap"] == [
        one.code for one in await append_offers(store, made.key, offer(3), offer(5), offer(7))
    ]
    assert [Outcome(duplicate=True)] == await append_offers(store, made.key, offer(2))
    assert ["seq_required"] == [one.code for one in await append_offers(store, made.key, offer(1), producer="api")]
    assert stored_at(7) == await append_offers(store, made.key, offer(None), producer="api")
    assert [made.key] == await store.journal.find_due(NOW + IDLE_MS + 1, 10)
    assert 6 == (await open_session(store, "r")).next_seq


async def test_an_ended_session_is_restored_as_it_ended(store: Store) -> None:
    """It is over, reopens only where it was idle, is compacted and expires; no delivery is made of it."""
    hook = {"webhook": {"url": HOOK}, "ttl_seconds": 1}
    over = await restore(store, "over", hook, ended_ms=NOW - 5, reason="api")
    idle = await restore(store, "idle", hook, ended_ms=NOW - 5, reason="idle", provisional=True)
    for made, code in ((over, "session_ended"), (idle, None)):
        assert ("ended", NOW - 5, made.reason) == (made.state, made.ended_ms, made.reason)
        assert [code] == [one.code for one in await append_offers(store, made.key, offer(5))]
    assert [over.key] == await store.retention.claim_expired("", NOW + 2_000, 1, 10)
    assert over.key in await store.compaction.claim_compactable("", NOW + REOPEN_MS, 1, 10)
    assert [] == await claim_deliveries(store)


async def test_an_end_that_waits_is_restored_too(store: Store) -> None:
    """The session is closed after the time that other producers have, with the reason that was given."""
    made = await restore(store, ending=END, producers=[ProducerState("main", next_seq=5, ended=True)])
    assert END == made.ending
    assert [made.key] == await store.journal.find_due(NOW + END_GRACE_MS, 10)
    closed = await close(store, made.key, None, now_ms=NOW + END_GRACE_MS)
    assert ("ended", END.reason) == (closed.state, closed.reason)


async def test_an_id_is_restored_once(store: Store) -> None:
    """What is there stays as it is, and what was erased does not come back."""
    key = await open_key(store, "r")
    again = RestoredSession(rows=journal_rows(), started_ms=NOW)
    assert None is await store.journal.restore_session("p", "r", validate_config({}), again, NOW)
    assert [] == await store.journal.read_rows(key, 0, 10)
    await store.retention.erase(key, NOW)
    with pytest.raises(Refused, match="session_erased"):
        await store.journal.restore_session("p", "r", validate_config({}), again, NOW)


async def test_secrets_are_taken_over(store: Store) -> None:
    """From another session, unless they are given again; not from an erased one."""
    hook = {"url": HOOK, "secret": "of the first"}
    key = await open_key(store, given={"webhook": hook})
    await store.journal.close_session(
        (await restore(store, "a", {"webhook": {"url": HOOK}}, secrets_of=key)).key, END, "a", NOW
    )
    other = {"webhook": {"url": HOOK, "secret": "of its own"}}
    await store.journal.close_session((await restore(store, "b", other, secrets_of=key)).key, END, "b", NOW)
    assert {"a": "of the first", "b": "of its own"} == {
        delivery.notice_id: delivery.endpoint.secret for delivery in await claim_deliveries(store)
    }
    await store.retention.erase(key, NOW)
    with pytest.raises(Refused, match="unknown_session"):
        await restore(store, "c", secrets_of=key)
    assert None is await store.journal.find_session("p", "c")
