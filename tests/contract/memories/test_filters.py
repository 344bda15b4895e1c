"""Which memories are listed and found, by what they are and when they were."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest

from tests.support.rows import every_row
from tests.support.stores.contract import NOW
from tests.support.stores.memories import found, listed, remember, session_of, stream_of
from voicemem.search.words import QueryWord, query_words
from voicemem.store.memories import event_ms_of
from voicemem.store.memory_filters import AnyOf, Between, MemoryFilter, NoneOf, StartsWith, Tags
from voicemem.store.port import Store
from voicemem.store.scopes import Scope

DAY_MS = 86_400_000
MAY_3 = 1_777_766_400_000
"""3 May 2026, UTC."""


@pytest.fixture
async def six(store: Store) -> Store:
    """A store with memories `a` to `f`, each a millisecond after the one before."""
    ben, session = await stream_of(store, "ben"), await session_of(store, "call-1")
    await remember(store, "a", topics=("food", "health"), entities=("Ann",), said_ms=NOW)
    await remember(store, "b", kind="preference", namespace="shop", topics=("food",), created_ms=NOW + 1)
    await remember(store, "c", stream=ben, namespace="bank", event_at="2026-05-03", created_ms=NOW + 2, pinned=True)
    await remember(store, "d", stream=ben, namespace="shop", said_ms=NOW + 7, expires_ms=NOW + 50, created_ms=NOW + 3)
    await remember(store, "e", kind="episode", stream=session, event_at="2026-05-04T01:00:00+02:00", created_ms=NOW + 4)
    await remember(store, "f", stream=session, topics=("health",), created_ms=NOW + 5)
    return store


@every_row(
    ("conditions", "expected"),
    [
        ({}, "fedcba"),
        ({"user_ids": AnyOf(("ann",))}, "ba"),
        ({"user_ids": AnyOf(("ann", "ben", "x"))}, "dcba"),
        ({"user_ids": AnyOf((None,))}, "fe"),
        ({"user_ids": AnyOf(("ann", None))}, "feba"),
        ({"user_ids": AnyOf(())}, ""),
        ({"user_ids": NoneOf(("ann",))}, "fedc"),
        ({"user_ids": NoneOf((None,))}, "dcba"),
        ({"user_ids": NoneOf(("ann", None))}, "dc"),
        ({"user_ids": NoneOf(())}, "fedcba"),
        ({"user_ids": StartsWith("a")}, "ba"),
        ({"user_ids": StartsWith("%")}, ""),
        ({"user_ids": StartsWith("")}, "dcba"),
        ({"session_ids": AnyOf(("call-1",))}, "fe"),
        ({"session_ids": StartsWith("call-")}, "fe"),
        ({"namespaces": AnyOf(("shop",))}, "db"),
        ({"namespaces": AnyOf(("shop",)), "user_ids": AnyOf(("ben",))}, "d"),
        ({"kinds": AnyOf(("fact", "preference"))}, "fdcba"),
        ({"kinds": NoneOf(("fact",))}, "eb"),
        ({"topics": Tags(any=("food", "x"))}, "ba"),
        ({"topics": Tags(any=())}, ""),
        ({"topics": Tags(all=("food", "health"))}, "a"),
        ({"topics": Tags(none=("food",))}, "fedc"),
        ({"topics": Tags(any=("health",), none=("food",))}, "f"),
        ({"topics": Tags(any=("foo",))}, ""),
        ({"topics": Tags()}, "fedcba"),
        ({"entities": Tags(any=("Ann",))}, "a"),
        ({"entities": Tags(any=("ann",))}, ""),
        ({"created": Between(NOW + 1, NOW + 3)}, "cb"),
        ({"created": Between(until_ms=NOW + 1)}, "a"),
        ({"accessed": Between(since_ms=NOW + 4)}, "fe"),
        ({"said": Between(NOW, NOW + 7)}, "a"),
        ({"event": Between(since_ms=MAY_3)}, "ec"),
        ({"event": Between(MAY_3 + 1, MAY_3 + DAY_MS)}, "e"),
        ({"pinned": True}, "c"),
        ({"pinned": False}, "fedba"),
        ({"as_of_ms": NOW + 2}, "cba"),
        ({"unexpired_at_ms": NOW + 49}, "fedcba"),
        ({"unexpired_at_ms": NOW + 50}, "fecba"),
    ],
)
async def test_a_filter_is_all_of_its_conditions(six: Store, conditions: dict[str, Any], expected: str) -> None:
    """The same memories are listed, the newest first, and found by a word that all have."""
    assert [*expected] == await listed(six, **conditions)
    assert set(expected) == set(await found(six, "walnut", **conditions))


async def test_accessed_counts_from_the_last_time(six: Store) -> None:
    """One that was never accessed counts from when it was made."""
    await six.memories.touch_memories("p", ["a"], NOW + DAY_MS)
    assert ["a"] == await listed(six, accessed=Between(since_ms=NOW + 10))
    assert ["f", "e", "d", "c", "b"] == await listed(six, accessed=Between(until_ms=NOW + 10))


async def test_pages_follow_each_other(store: Store) -> None:
    """By time and id, the newest first; of one time by id."""
    times = [NOW, NOW, NOW + 1, NOW + 1, NOW + 1, NOW + 2, NOW]
    for number, created_ms in enumerate(times):
        await remember(store, f"m{number}", created_ms=created_ms)
    whole = await listed(store)
    assert ["m5", "m4", "m3", "m2", "m6", "m1", "m0"] == whole
    pages, after = list[str](), None
    while page := await store.memories.list_memories(MemoryFilter(project="p", after=after, limit=2)):
        pages += [row.id for row in page]
        after = page[-1].created_ms, page[-1].id
    assert whole == pages


async def test_memories_are_found_by_words_best_first(store: Store) -> None:
    """By their text, topics, entities and the day, in any form; more and rarer words come first; scores fall."""
    await remember(store, "a", "Ann is allergic to walnuts.", topics=("health",))
    await remember(store, "b", "Ann likes her dog Rex.", event_at="2026-05-03")
    await remember(store, "c", "Ann drinks tea.", said_ms=MAY_3 + DAY_MS, entities=("Darjeeling",))
    await remember(store, "d", "安喜欢核桃。")
    for query, expected in (
        ("walnut", ["a"]),
        ("allergic", ["a"]),
        ("HEALTH", ["a"]),
        ("darjeeling", ["c"]),
        ("3 May", ["b", "c"]),
        ("May 4 2026", ["c", "b"]),
        ("Ann dogs", ["b"]),
        ("核桃", ["d"]),
        ("核", ["d"]),
        ("cat", []),
        ("???", []),
    ):
        assert expected == (await found(store, query))[: len(expected) or 1]
    rows = await store.memories.find_memories_by_words(MemoryFilter(project="p"), query_words("Ann and her dog"), 2)
    assert ["b"] == [row.id for row, _ in rows][:1]
    assert 2 == len(rows)
    assert rows[0][1] > rows[1][1] > 0
    assert rows[0][0] in await store.memories.find_memories("p", ["b"])


async def test_words_may_be_asked_for_as_beginnings(store: Store) -> None:
    """Of any length; German queries ask so."""
    await remember(store, "a", "Ann hat zwei Hunde und eine Katze.")
    await remember(store, "b", "Ann wohnt am See.")
    for text, expected in (("hund", ["a"]), ("h", ["a"]), ("wohn", ["b"]), ("hunden", []), ("z", ["a"])):
        words = [QueryWord(text, is_prefix=True)]
        rows = await store.memories.find_memories_by_words(MemoryFilter(project="p"), words, 10)
        assert expected == [row.id for row, _ in rows]
    assert ["a"] == await found(store, "Wie viele Hunde hat Ann?", limit=1)


async def test_of_equal_memories_the_newest_is_first(store: Store) -> None:
    """Where they fit equally well."""
    for number in range(3):
        await remember(store, f"m{number}", created_ms=NOW + number)
    assert ["m2", "m1", "m0"] == await found(store, "walnut")
    assert ["m2"] == await found(store, "walnut", limit=1)


def test_days_and_instants_are_compared_in_utc() -> None:
    """Without a zone they are UTC; what is neither has no time."""
    assert MAY_3 == event_ms_of("2026-05-03") == event_ms_of("2026-05-03T02:00:00+02:00")
    assert MAY_3 + 1_500 == event_ms_of("2026-05-03T00:00:01.5") == event_ms_of("2026-05-03T00:00:01.500Z")
    assert [None] * 4 == [event_ms_of(text) for text in (None, "", "May", "2026-02-30")]


async def test_the_same_text_is_found_among_many_with_its_words(store: Store) -> None:
    """Of its owner alone, however many others share its words, until it is changed or removed."""
    session = await session_of(store)
    await remember(store, "a", "I like black tea.", stream=session, user_id="ann")
    for number, text in enumerate(("Tea: I like black", "black like I tea", "like black tea I", "I tea like black")):
        await remember(store, f"b{number}", text, created_ms=NOW + 1 + number)
    await remember(store, "c", "I like black tea.", stream=await stream_of(store, "ben"))
    query, owner = MemoryFilter(project="p", of_ids_alone=True), Scope("p", user_id="ann")
    assert ["a"] == [row.id for row in await store.memories.list_same(query, owner, "i  like black TEA")]
    assert [] == await store.memories.list_same(query, owner._replace(namespace="shop"), "I like black tea.")
    await remember(store, "a", "I like tea.", stream=session, user_id="ann", updated_ms=NOW + 9)
    assert [] == await store.memories.list_same(query, owner, "I like black tea.")
    assert ["a"] == [row.id for row in await store.memories.list_same(query, owner, "I like tea")]
