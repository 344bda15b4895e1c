"""Every store knows up to where sessions were looked at for memories, who does that, and what it has cost."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.stores.contract import NOW, append_offers, begin_node, offers, open_key
from voicemem.protocol.types import JsonObject
from voicemem.store.nodes import EXTRACTION, SUMMARY
from voicemem.store.port import Store

LEASE_MS = 1_000


async def behind(store: Store, everywhere: bool = False, limit: int = 100) -> list[str]:
    """The sessions that have grown since they were looked at, found in pages."""
    found, after = [], 0
    while True:
        check = await store.extractions.check_extractions(everywhere, after, limit)
        found += [stream.id for stream in check.behind]
        if check.through_key is None:
            return sorted(found)
        after = check.through_key


async def test_sessions_that_have_grown_are_found(store: Store) -> None:
    """Those that say themselves that memories are made of them, or all of them."""
    for number in range(5):
        config: JsonObject = {"labels": {"extract": "yes"}} if number % 2 else {}
        await append_offers(store, await open_key(store, f"s{number}", config), *offers(1, 1))
    await store.journal.ensure_user("p", "ann", NOW)
    for limit in (1, 2, 100):
        assert ["s1", "s3"] == await behind(store, limit=limit)
        assert [f"s{number}" for number in range(5)] == await behind(store, everywhere=True, limit=limit)


async def test_what_was_looked_at_is_found_when_it_grows(store: Store) -> None:
    """An older look does not take a newer one back; the row of the session says where its journal ends."""
    key = await open_key(store, "s", {"labels": {"extract": "yes"}})
    await append_offers(store, key, *offers(1, 2))
    await store.extractions.note_extracted(key, 2)
    await store.extractions.note_extracted(key, 1)
    assert [] == await behind(store)
    await append_offers(store, key, *offers(3, 3))
    assert ["s"] == await behind(store)


async def test_an_erased_session_is_never_found(store: Store) -> None:
    """Nor is anything noted of it."""
    key = await open_key(store, "s", {"labels": {"extract": "yes"}})
    await append_offers(store, key, *offers(1, 1))
    await store.retention.erase(key, NOW)
    await store.extractions.note_extracted(key, 1)
    assert [] == await behind(store, everywhere=True)
    while await store.retention.delete_erased([key]):
        pass


async def test_a_claim_is_one_node_s(store: Store) -> None:
    """Beside the claim of the session's summary; it runs out, is given back, or freed with its node."""
    key = await open_key(store)
    for node in "ab":
        await begin_node(store, node)
    assert await store.claims.claim(SUMMARY, key, "b", NOW, LEASE_MS)
    assert [True, True, False] == [await store.claims.claim(EXTRACTION, key, node, NOW, LEASE_MS) for node in "aab"]
    await store.claims.release(EXTRACTION, key, "b")
    assert not await store.claims.claim(EXTRACTION, key, "b", NOW + LEASE_MS - 1, LEASE_MS)
    assert await store.claims.claim(EXTRACTION, key, "b", NOW + LEASE_MS, LEASE_MS)
    await store.claims.release(EXTRACTION, key, "b")
    assert await store.claims.claim(EXTRACTION, key, "a", NOW, LEASE_MS)
    await store.nodes.retire_node("a", NOW)
    assert await store.claims.claim(EXTRACTION, key, "b", NOW, LEASE_MS)
    assert await store.claims.claim(SUMMARY, key, "b", NOW, LEASE_MS)


async def test_tokens_are_counted_by_project_and_day(store: Store) -> None:
    """Until they are too many; what was not used is given back."""
    assert await store.extractions.spend_tokens("p", 20_000, 60, 100)
    assert not await store.extractions.spend_tokens("p", 20_000, 41, 100)
    assert await store.extractions.spend_tokens("p", 20_000, 40, 100)
    assert await store.extractions.spend_tokens("other", 20_000, 100, 100)
    assert await store.extractions.spend_tokens("p", 20_001, 100, 100)
    assert await store.extractions.spend_tokens("p", 20_000, -50, 100)
    assert [True, False] == [
        await store.extractions.spend_tokens("p", 20_000, 50, 100),
        await store.extractions.spend_tokens("p", 20_000, 1, 100),
    ]
    assert await store.extractions.spend_tokens("p", 20_000, 1_000, 0)
    assert not await store.extractions.spend_tokens("new", 20_000, 101, 100)
    assert await store.extractions.spend_tokens("p", 20_009, 100, 100)
    assert await store.extractions.spend_tokens("p", 20_000, 100, 100)
