"""Vectors of memories are compared among those that a filter lets through, and go with their texts."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tests.support.stores.contract import NOW, close, example_numbers, open_key
from tests.support.stores.memories import (
    delete_content,
    event_of,
    memory_of,
    one,
    remember,
    session_of,
    stream_of,
    write,
)
from tests.support.stores.vectors import EMBEDDER, vector_of
from voicemem.store.memories import MemoryRow, tombstone
from voicemem.store.memory_filters import AnyOf, Between, MemoryFilter, Tags
from voicemem.store.port import Store
from voicemem.store.vectors import MemoryPlace, NearestTexts


@pytest.fixture
async def store(store: Store) -> Store:
    """A store that compares vectors."""
    assert (await store.transcript_vectors.prepare_vectors()).max_compared > 0
    return store


async def embed(store: Store, embedder: str = EMBEDDER) -> int:
    """Give all memories vectors; how many had none."""
    count = 0
    for key in await behind(store, embedder):
        texts = await store.memory_vectors.find_without_vector(embedder, [key], 1_000)
        await store.memory_vectors.save_vectors(embedder, [(text, vector_of(text.text)) for text in texts])
        count += len(texts)
    return count


async def behind(store: Store, embedder: str = EMBEDDER, limit: int = 2) -> list[int]:
    found: list[int] = []
    after: int | None = 0
    while after is not None:
        check = await store.memory_vectors.check_vectors(embedder, after, limit)
        found += check.behind
        after = check.through_key
    assert len(found) == len(set(found))
    return found


async def near(
    store: Store, text: str, project: str = "p", also: Sequence[MemoryPlace] = (), limit: int = 100, **conditions: Any
) -> NearestTexts[tuple[MemoryRow, float]]:
    vector = vector_of(text)
    assert vector is not None
    return await store.memory_vectors.find_near(
        MemoryFilter(project=project, **conditions), EMBEDDER, vector, limit, also
    )


async def near_ids(store: Store, text: str, **wanted: Any) -> list[str]:
    return [row.id for row, _ in (await near(store, text, **wanted)).found]


async def test_the_nearest_memories_are_first(store: Store) -> None:
    """With their cosines; one without a vector is not found."""
    for id, text in (("a", "east then"), ("b", "north it is"), ("c", "northeast"), ("d", "nothing"), ("e", "north")):
        await remember(store, id, text, created_ms=NOW + ord(id))
    assert 5 == await store.memory_vectors.count_without_vector(EMBEDDER)
    assert 5 == await embed(store)
    assert (0, []) == (await store.memory_vectors.count_without_vector(EMBEDDER), await behind(store))
    answer = await near(store, "north")
    assert [("e", 1.0), ("b", 1.0), ("c", 0.7071), ("a", 0.0)] == [(row.id, round(c, 4)) for row, c in answer.found]
    assert answer.found[1][0] == await one(store, "b")
    assert ["e"] == await near_ids(store, "north", limit=1)


async def test_only_what_the_filter_lets_through_is_compared(store: Store) -> None:
    """Users, kinds, topics, times, what was superseded."""
    ben = await stream_of(store, "ben")
    await remember(store, "a", "north", kind="fact", topics=("food",), said_ms=NOW)
    await remember(store, "b", "northeast", kind="preference", created_ms=NOW + 1, supersedes=("a",))
    await remember(store, "c", "north", stream=ben, expires_ms=NOW + 10)
    await embed(store)
    assert {"b", "c"} == set(await near_ids(store, "north"))
    assert {"a", "b", "c"} == set(await near_ids(store, "north", with_superseded=True))
    superseded = {row.id: row.superseded_by for row, _ in (await near(store, "north", with_superseded=True)).found}
    assert {"a": "b", "b": None, "c": None} == superseded
    assert ["c"] == await near_ids(store, "north", user_ids=AnyOf(("ben",)))
    assert ["b"] == await near_ids(store, "north", kinds=AnyOf(("preference",)))
    assert ["a"] == await near_ids(store, "north", topics=Tags(any=("food",)), with_superseded=True)
    assert ["a"] == await near_ids(store, "north", said=Between(NOW, NOW + 1), with_superseded=True)
    assert ["b"] == await near_ids(store, "north", unexpired_at_ms=NOW + 10)
    assert [] == await near_ids(store, "north", project="q")


names = st.sampled_from(["ann", "ben", "核桃", '"', "e\u0301"])


@examples(0.2)
@given(st.lists(st.tuples(names, names), min_size=1, max_size=5), names, names)
async def test_tenants_are_never_compared(
    store: Store, given_memories: list[tuple[str, str]], user_id: str, namespace: str
) -> None:
    """Whatever users and namespaces are called, in two projects."""
    number = next(example_numbers)
    projects = [f"p{number}", f"q{number}"]
    for place, (user, space) in enumerate(given_memories):
        stream = await stream_of(store, user, projects[place % 2])
        await remember(store, f"m{number}-{place}", f"north {place}", stream=stream, namespace=space)
    await embed(store)
    for first, project in enumerate(projects):
        own = {f"m{number}-{place}": given_memories[place] for place in range(first, len(given_memories), 2)}
        scope = {"user_ids": AnyOf((user_id,)), "namespaces": AnyOf((namespace,))}
        expected = sorted(id for id, owner in own.items() if owner == (user_id, namespace))
        assert expected == sorted(await near_ids(store, "north", project=project, **scope))


async def test_a_vector_goes_when_its_text_changes(store: Store) -> None:
    """And stays when something else does; one that was made of an older text is not kept."""
    row = await remember(store, "a", "north")
    old = await store.memory_vectors.find_without_vector(EMBEDDER, [row.key], 10)
    await embed(store)
    await remember(store, "a", "north", pinned=True)
    assert ["a"] == await near_ids(store, "north")
    await remember(store, "a", "east")
    assert [row.key] == await behind(store)
    assert [] == await near_ids(store, "north")
    await store.memory_vectors.save_vectors(EMBEDDER, [(old[0], vector_of("north"))])
    assert [] == await near_ids(store, "north")
    assert 1 == await embed(store)
    assert [("a", 1.0)] == [(row.id, round(cosine, 4)) for row, cosine in (await near(store, "east")).found]


async def test_a_vector_goes_with_a_removed_memory(store: Store) -> None:
    """Also when its removal and its vector come at once; it can get none any more."""
    row = await remember(store, "a", "north")
    texts = await store.memory_vectors.find_without_vector(EMBEDDER, [row.key], 10)
    await embed(store)
    stream = await stream_of(store)
    assert await write(store, stream, tombstone(row, stream.position + 1, NOW + 1), now_ms=NOW + 1) is not None
    await store.memory_vectors.save_vectors(EMBEDDER, [(texts[0], vector_of("north"))])
    assert [] == await near_ids(store, "north")
    assert {} == (await near(store, "north", also=[MemoryPlace(row.key, "a")])).also
    assert ([], 0) == (await behind(store), await store.memory_vectors.count_without_vector(EMBEDDER))


async def test_vectors_go_with_their_stream(store: Store) -> None:
    """Nothing of an erased session is compared, or handed to an embedder, also before it is deleted."""
    session = await session_of(store)
    rows = [memory_of(session, f"m{number}", "north", position=session.position + number + 1) for number in range(9)]
    await write(store, session, *rows)
    await remember(store, "kept", "north")
    await embed(store)
    await store.retention.erase(session.key, NOW)
    assert ["kept"] == await near_ids(store, "north")
    assert [] == await store.memory_vectors.find_without_vector("another 4", [session.key], 10)
    assert 1 == await store.memory_vectors.count_without_vector("another 4")
    await delete_content(store, [session.key])
    assert ["kept"] == await near_ids(store, "north")
    places = [MemoryPlace(session.key, "m0"), MemoryPlace((await one(store, "kept")).key, "kept")]
    also = (await near(store, "north", also=places)).also
    assert {places[1]: 1.0} == {place: round(cosine, 4) for place, cosine in also.items()}


async def test_no_more_is_compared_than_is_allowed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest memories come first, and the answer says that there are more."""
    for module in ("sqlite.store", "postgresql.store"):
        monkeypatch.setattr(f"voicemem.store.{module}.MAX_COMPARED", 3)
    for number in range(6):
        await remember(store, f"m{number}", "north", created_ms=NOW + number)
    await embed(store)
    answer = await near(store, "north")
    assert answer.is_capped
    assert {"m2", "m3", "m4", "m5"} == {row.id for row, _ in answer.found}
    assert not (await near(store, "north", created=Between(NOW + 4, None))).is_capped


async def test_a_memory_that_moves_takes_its_vector_along(store: Store) -> None:
    """When its session expires, to its user; nothing is asked of the embedder for it."""
    config = {"user_id": "ann", "ttl_seconds": 10, "reopen_window": 0}
    key = await open_key(store, "s", config)
    await remember(store, "a", "north", stream=await session_of(store), user_id="ann")
    await embed(store)
    await close(store, key)
    rows = await store.memories.list_memories_of(key, "", 10)
    assert await store.memories.move_memories(key, "ann", [event_of(rows[0])], rows, NOW + 10_000)
    assert await store.retention.expire(key, NOW + 10_000)
    await delete_content(store, [key])
    assert (["a"], []) == (await near_ids(store, "north", user_ids=AnyOf(("ann",))), await behind(store))
