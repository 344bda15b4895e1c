"""Quotas of projects and keys hold over everybody who works on a store."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable

import pytest

from tests.support.stores.contract import (
    NOW,
    append_offers,
    begin_node,
    claim_one_delivery,
    close,
    close_idle,
    closed_session,
    end_offer,
    freeze_payload,
    offer,
    offers,
    open_key,
    stored_at,
)
from voicemem.config.session import validate_config
from voicemem.errors import QuotaExceeded
from voicemem.protocol.types import JsonObject
from voicemem.store.append_rules import Outcome
from voicemem.store.directory import ApiKey, KeyLimits
from voicemem.store.memories import MemoryRow, tombstone
from voicemem.store.port import Store
from voicemem.store.records import Quotas, RestoredSession
from voicemem.store.session_filters import SessionFilter

EMPTY = validate_config({})
FULL = Outcome(code="quota_exceeded")


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
    """Its events are refused, and one gap stands for them; it begins no session, and reopens none; others may go on."""
    refused: list[str] = []
    store.set_quotas(Quotas(stored_bytes=3_000), refused.append)
    await begin_node(store, "a")
    key, left = await open_key(store), await open_key(store, "left")
    await close_idle(store, left, "idle")
    assert stored_at(1) == await append_offers(store, key, offer(1, text="x" * 3_000))
    assert [FULL] * 500 == await append_offers(store, key, *offers(2, 501))
    assert [FULL] == await append_offers(store, key, offer(7, text="again"))
    assert ("stored_bytes", "created") == (await begin(store, "more"), await begin(store, "more", "q"))
    assert [Outcome(code="session_ended")] == await append_offers(store, left, offer(1))
    assert [FULL, FULL, *stored_at(4)] == await append_offers(store, key, *offers(502, 503), end_offer(504))
    rows = await store.journal.read_rows(key, 1, 10)
    gaps = [json.loads(row.payload) for row in rows[:2]]
    assert [(2, 501), (502, 503)] == [(gap["from_seq"], gap["to_seq"]) for gap in gaps]
    assert [2, 502, 504] == [row.seq for row in rows]
    assert {"stored_bytes"} == set(refused)


async def test_an_event_that_a_quota_refused_stays_refused(store: Store) -> None:
    """Sent again once there is room, it gets the same answer, and never a conflict, which ends a producer; compacted
    journals know it too.
    """
    full, roomy = Quotas(stored_bytes=3_000), Quotas(stored_bytes=1_000_000)
    store.set_quotas(full)
    await begin_node(store, "a")
    key = await open_key(store)
    assert stored_at(1) == await append_offers(store, key, offer(1, text="x" * 3_000))
    for first in (2, 12):
        assert [FULL] * 10 == await append_offers(store, key, *offers(first, first + 9))
    store.set_quotas(roomy)
    assert stored_at(4) == await append_offers(store, key, offer(22))
    store.set_quotas(full)
    assert [FULL] * 5 == await append_offers(store, key, *offers(23, 27))
    store.set_quotas(roomy)
    for is_over in (False, True):
        again = await append_offers(store, key, *offers(2, 27))
        assert [FULL] * 20 + [Outcome(duplicate=True)] + [FULL] * 5 == again
        assert [FULL, FULL] == await append_offers(store, key, offer(25), offer(7, text="other"))
        if not is_over:
            assert stored_at(6) == await append_offers(store, key, offer(28))
            await close(store, key)
            while await store.compaction.compact(key):
                pass


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
    assert [FULL] == await append_offers(other, keys["b"], offer(2))
    await other.retention.erase(keys["a"], NOW)
    while await other.retention.delete_erased([keys["a"]]):
        pass
    await other.nodes.renew_node("b", NOW + 2)
    assert "created" == await begin(one, "more")
    assert stored_at(3) == await append_offers(other, keys["b"], offer(3))


async def refused_by(attempt: Awaitable[object]) -> str | None:
    """The quota that refuses an attempt; None where it is taken."""
    try:
        await attempt
    except QuotaExceeded as exceeded:
        return exceeded.quota
    return None


async def test_a_project_whose_bytes_are_used_up_stores_nothing_for_its_callers(store: Store) -> None:
    """Neither in sessions nor in streams of users; what the service notes itself, and what frees, is taken."""
    store.set_quotas(Quotas(stored_bytes=3_000))
    await begin_node(store, "a")
    journal, key = store.journal, await open_key(store)
    user = await journal.ensure_user("p", "ann", NOW)
    await append_offers(store, key, offer(1, text="x" * 3_000))
    memory = MemoryRow(key=user.key, position=1, id="m", project="p", kind="fact", text="x", created_ms=1, updated_ms=1)
    for attempt in (
        journal.change_config(key, validate_config({"name": "x"}), b"{}", NOW),
        journal.append_server_event(key, b"{}", 1, NOW, for_caller=True),
        journal.append_server_event(user.key, b"{}", 0, NOW, for_caller=True),
        journal.ensure_user("p", "bob", NOW),
        journal.open_producer("p", "s", "another", EMPTY, None, NOW, None, "a"),
        store.memories.write_memories(user.key, [b"{}"], 0, [memory], NOW),
    ):
        assert "stored_bytes" == await refused_by(attempt)
    assert await store.memories.write_memories(user.key, [b"{}"], 0, [tombstone(memory, 1, NOW)], NOW)
    assert await journal.append_server_event(key, b"{}", 1, NOW)
    assert await journal.ensure_user("q", "bob", NOW)


@pytest.mark.parametrize(
    "given",
    [
        {"labels": {"a": "x" * 900, "b": "x" * 900}},
        {"name": "x" * 128},
        {"llm": {"api_key": "é" * 1_000}},
        {"llm": {"url": "https://llm.example", "headers": {"X-Team": "x" * 500}}},
    ],
)
async def test_configurations_count_as_bytes(store: Store, given: JsonObject) -> None:
    """Those that sessions begin with, and what a patch adds, secrets too; not those of sessions that were erased."""
    await begin_node(store, "a")
    patch = validate_config(given)
    size = len(json.dumps(patch.public, separators=(",", ":"))) - 2
    size += sum(len(str(secret).encode()) for secret in patch.secrets.values())
    store.set_quotas(Quotas(stored_bytes=3 * size))
    streams = [(await store.journal.create_session("p", f"s{n}", patch, NOW))[0] for n in range(2)]
    await store.nodes.renew_node("a", NOW + 1)
    assert "created" == await begin(store, "empty")
    empty = await store.journal.get_session("p", "empty")
    await store.journal.change_config(empty.key, patch, b"{}", NOW)
    await store.nodes.renew_node("a", NOW + 2)
    assert "stored_bytes" == await begin(store, "more")
    await store.retention.erase(streams[0].key, NOW)
    while await store.retention.delete_erased([streams[0].key]):
        pass
    await store.nodes.renew_node("a", NOW + 3)
    assert "created" == await begin(store, "more")


async def test_bodies_of_webhooks_count_as_bytes(store: Store) -> None:
    """Once each, until the session is erased: one that closes again and again would fill the disk of all with them."""
    await begin_node(store, "a")
    store.set_quotas(Quotas(stored_bytes=50_000))
    closed = await closed_session(store)
    delivery = await claim_one_delivery(store)
    body = b"x" * 30_000
    for given in (body, b"another"):
        assert body == await freeze_payload(store, delivery, given)
    await store.nodes.renew_node("a", NOW + 1)
    assert "created" == await begin(store, "more")
    store.set_quotas(Quotas(stored_bytes=20_000))
    assert "stored_bytes" == await begin(store, "most")
    await store.retention.erase(closed.key, NOW)
    while await store.retention.delete_erased([closed.key]):
        pass
    await store.nodes.renew_node("a", NOW + 2)
    assert "created" == await begin(store, "most")


async def test_sessions_that_are_restored_count_today(store: Store) -> None:
    """Whatever they say about when they started, for the project and for the key."""
    limits = KeyLimits(sessions_per_day=2)
    await store.directory.add_key(ApiKey("k", "q", "k", b"k", ("ingest",), NOW, limits=limits))
    store.set_quotas(Quotas(per_day=3))
    old = RestoredSession(rows=(), started_ms=NOW - 40 * 86_400_000)
    for project, key_id, most in (("p", None, 3), ("q", "k", 2)):
        for number in range(most):
            assert await store.journal.restore_session(project, f"r{number}", EMPTY, old, NOW, key_id)
        refused = store.journal.restore_session(project, "more", EMPTY, old, NOW, key_id)
        assert "sessions_per_day" == await refused_by(refused)
        assert "sessions_per_day" == await begin(store, "more", project, key_id)


async def test_an_ended_session_runs_again_only_beside_as_many_as_may_be_open(store: Store) -> None:
    """Of the project's and of the key's that began it; until then its producer is told that it has ended."""
    limits = KeyLimits(open_sessions=1)
    await store.directory.add_key(ApiKey("k", "q", "k", b"k", ("ingest",), NOW, limits=limits))
    await begin_node(store, "a")
    store.set_quotas(Quotas(open=2))
    for project, key_id, others in (("p", None, ("a", "b")), ("q", "k", ("a",))):
        await begin(store, "left", project, key_id)
        left = await store.journal.get_session(project, "left")
        await close_idle(store, left.key, "idle")
        for name in others:
            assert "created" == await begin(store, name, project, key_id)
        assert [Outcome(code="session_ended")] == await append_offers(store, left.key, offer(1))
        opened = await store.journal.open_producer(project, "left", "main", EMPTY, None, NOW, key_id, "a")
        assert (False, "ended") == (opened.reopened, opened.stream.state)
        await close(store, (await store.journal.get_session(project, others[0])).key)
        opened = await store.journal.open_producer(project, "left", "main", EMPTY, None, NOW, key_id, "a")
        assert (True, "running") == (opened.reopened, opened.stream.state)
