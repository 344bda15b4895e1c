"""Quotas of projects and keys hold over everybody who works on a store."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio

from tests.support.stores.contract import (
    NOW,
    append_offers,
    begin_node,
    close,
    close_idle,
    end_offer,
    offer,
    offers,
    open_key,
    stored_at,
)
from voicemem.config.session import validate_config
from voicemem.errors import QuotaExceeded
from voicemem.store.directory import ApiKey, KeyLimits
from voicemem.store.port import Store
from voicemem.store.records import Quotas, SessionFilter
from voicemem.store.streams import Outcome

EMPTY = validate_config({})


async def begin(store: Store, session_id: str, project: str = "p", key_id: str | None = None) -> str:
    """Begin a session: `created`, or the quota that refuses it."""
    try:
        return (await store.journal.create_session(project, session_id, EMPTY, NOW, key_id))[1]
    except QuotaExceeded as exceeded:
        return exceeded.quota


async def begin_many(stores: tuple[Store, Store], **given: str) -> list[str]:
    """What becomes of 24 sessions that are begun at once."""
    return sorted(await asyncio.gather(*(begin(stores[n % 2], f"s{n}", **given) for n in range(24))))


async def test_no_two_get_the_last_session(two_handles: tuple[Store, Store]) -> None:
    """Of those that are begun at once exactly as many are taken as may be open; an end makes room for one."""
    for store in two_handles:
        store.set_quotas(Quotas(open=3))
    assert ["created"] * 3 + ["open_sessions"] * 21 == await begin_many(two_handles)
    assert "created" == await begin(two_handles[1], "s", project="q")
    (first, *_) = await two_handles[0].journal.list_sessions(SessionFilter(project="p", state="running"))
    await close(two_handles[0], first.key)
    assert ["created", "open_sessions"] == [await begin(two_handles[1], name) for name in ("t", "u")]


async def test_no_two_get_the_last_session_of_a_day(two_handles: tuple[Store, Store]) -> None:
    """Nor do they where the sessions of a day are counted."""
    for store in two_handles:
        store.set_quotas(Quotas(per_day=5))
    assert ["created"] * 5 + ["sessions_per_day"] * 19 == await begin_many(two_handles)


async def test_no_two_get_the_last_session_of_a_key(two_handles: tuple[Store, Store]) -> None:
    """A key's own quota holds likewise, and other keys of its project are not refused for it."""
    one, other = two_handles
    for name, bound in (("k", 2), ("free", 0)):
        limits = KeyLimits(open_sessions=bound)
        await one.directory.add_key(ApiKey(name, "p", name, name.encode(), ("ingest",), NOW, limits=limits))
    assert ["created"] * 2 + ["open_sessions"] * 22 == await begin_many(two_handles, key_id="k")
    assert "created" == await begin(other, "more", key_id="free")


async def test_a_project_whose_bytes_are_used_up_takes_ends_only(store: Store) -> None:
    """Its events are journaled as refused, it begins no session, and reopens none; other projects are not concerned."""
    refused: list[str] = []
    store.set_quotas(Quotas(stored_bytes=3_000), refused.append)
    await begin_node(store, "a")
    key, left = await open_key(store), await open_key(store, "left")
    await close_idle(store, left, "idle")
    assert stored_at(1) == await append_offers(store, key, offer(1, text="x" * 3_000))
    assert [Outcome(2, "quota_exceeded")] == await append_offers(store, key, offer(2))
    assert ("stored_bytes", "created") == (await begin(store, "more"), await begin(store, "more", "q"))
    assert [Outcome(code="session_ended")] == await append_offers(store, left, offer(1))
    assert stored_at(3) == await append_offers(store, key, end_offer(3))
    assert {"stored_bytes"} == set(refused)


async def test_all_nodes_count_the_bytes(two_handles: tuple[Store, Store]) -> None:
    """A node knows of what others store and delete once they have renewed their lease."""
    nodes = dict(zip("ab", two_handles, strict=True))
    for token, store in nodes.items():
        store.set_quotas(Quotas(stored_bytes=100_000))
        await begin_node(store, token)
    keys = {token: await open_key(store, token) for token, store in nodes.items()}
    one, other = two_handles
    assert stored_at(*range(1, 51)) == await append_offers(one, keys["a"], *offers(1, 50))
    assert stored_at(1) == await append_offers(other, keys["b"], offer(1))
    assert stored_at(51) == await append_offers(one, keys["a"], offer(51, text="x" * 100_000))
    await one.nodes.renew_node("a", NOW + 1)
    await other.nodes.renew_node("b", NOW + 1)
    assert "stored_bytes" == await begin(other, "more")
    assert [Outcome(2, "quota_exceeded")] == await append_offers(other, keys["b"], offer(2))
    await other.retention.erase(keys["a"], NOW)
    while await other.retention.delete_erased([keys["a"]]):
        pass
    await other.nodes.renew_node("b", NOW + 2)
    assert "created" == await begin(one, "more")
    assert stored_at(3) == await append_offers(other, keys["b"], offer(3))
