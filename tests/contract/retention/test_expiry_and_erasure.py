"""Sessions expire after their time, and are erased whole."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.stores.contract import (
    NOW,
    append_offers,
    close,
    close_idle,
    closed_session,
    listed_ids,
    mixed_call,
    offer,
    open_key,
    open_session,
)
from voicemem.store.append_rules import Outcome
from voicemem.store.port import Store
from voicemem.store.records import Quotas


async def test_sessions_expire_their_ttl_after_the_end(store: Store) -> None:
    """Counted from the end, by the store's clock; a session that is reopened does not expire, nor one without ttl."""
    ttl = {"ttl_seconds": 10, "reopen_window": 10**6}
    keys = [await open_key(store, name, ttl) for name in ("ended", "reopened", "running")]
    await closed_session(store, "kept", hook=None)
    await close(store, keys[0], now_ms=NOW + 5_000)
    await close_idle(store, keys[1])
    await open_session(store, "reopened")
    assert [] == await store.retention.claim_expired("", NOW + 14_999, 1, 10)
    assert not await store.retention.expire(keys[0], NOW + 14_999)
    assert keys[:1] == await store.retention.claim_expired("", NOW + 15_000, 1, 10)
    assert [True, False] == [await store.retention.expire(keys[0], NOW + 15_000) for _ in range(2)]
    assert await store.journal.find_session("p", "ended") is None
    assert ([], keys[:1]) == (
        await store.retention.claim_expired("", NOW + 10**12, 1, 10),
        await store.retention.claim_erased("", NOW, 1, 10),
    )
    assert not await store.retention.expire(keys[1], NOW + 10**12)
    assert ["kept", "reopened", "running"] == sorted(await listed_ids(store))


async def test_sessions_that_do_not_say_have_the_service_s_ttl(store: Store) -> None:
    """It is that of their end; a session's own wins."""
    store.set_quotas(Quotas(ttl_seconds=10))
    keys = [await open_key(store, "plain"), await open_key(store, "own", {"ttl_seconds": 20})]
    for key in keys:
        await close(store, key, now_ms=NOW)
    assert keys[:1] == await store.retention.claim_expired("", NOW + 10_000, 1, 10)
    assert [True, False] == [await store.retention.expire(key, NOW + 10_000) for key in keys]


async def test_a_compacted_session_is_erased_whole(store: Store) -> None:
    """Also in the middle of its compaction, which then comes to nothing."""
    for steps in (0, 1, 2, 10):
        key = await mixed_call(store, f"s{steps}")
        for _ in range(steps):
            await store.compaction.compact(key)
        await store.retention.erase(key, NOW)
        assert ([], [Outcome(code="session_erased")]) == (
            await store.journal.read_rows(key, 0, 10),
            await append_offers(store, key, offer(1)),
        )
        assert key not in await store.compaction.claim_compactable("", NOW + 10**12, 1, 10)
        while await store.retention.delete_erased([key]):
            pass
        assert not await store.compaction.compact(key)
        assert await store.retention.finish_erased()
        assert [] == await store.journal.read_rows(key, 0, 10)
