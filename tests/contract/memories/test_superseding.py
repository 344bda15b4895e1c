"""A memory takes the place of older ones for as long as it is there."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.stores.contract import NOW
from tests.support.stores.memories import (
    delete_content,
    found,
    listed,
    one,
    remember,
    session_of,
    stream_of,
    write,
)
from voicemem.store.memories import tombstone
from voicemem.store.port import Store


async def test_what_was_superseded_is_found_on_request_only(store: Store) -> None:
    """It says what took its place, and when; the journal and the row of the older one do not change."""
    old = await remember(store, "old", "walnuts")
    await remember(store, "new", "almonds", supersedes=("old",), created_ms=NOW + 5, updated_ms=NOW + 5)
    assert ["new"] == await listed(store)
    assert await found(store, "walnuts") == []
    assert ["new", "old"] == await listed(store, with_superseded=True)
    assert ["old"] == await found(store, "walnuts", with_superseded=True)
    stored = await one(store, "old")
    assert ("new", NOW + 5) == (stored.superseded_by, stored.superseded_ms)
    assert old.position == stored.position
    assert ("old",) == (await one(store, "new")).supersedes


async def test_as_of_a_time_it_is_as_it_was(store: Store) -> None:
    """What came later is not there, and supersedes nothing."""
    await remember(store, "old", "walnuts")
    await remember(store, "new", "walnuts too", supersedes=("old",), created_ms=NOW + 5, updated_ms=NOW + 5)
    assert ["old"] == await listed(store, as_of_ms=NOW + 4)
    assert ["old"] == await found(store, "walnuts", as_of_ms=NOW + 4)
    assert ["new"] == await listed(store, as_of_ms=NOW + 5)
    assert await listed(store, as_of_ms=NOW - 1) == []
    (row,) = [row for row in await rows_of(store, NOW + 4) if row[0] == "old"]
    assert ("old", None) == row
    assert ("old", "new") in await rows_of(store, NOW + 5)


async def rows_of(store: Store, as_of_ms: int) -> list[tuple[str, str | None]]:
    """The memories of a time, superseded ones too, and what they were superseded by."""
    from voicemem.store.memory_filters import MemoryFilter

    wanted = MemoryFilter(project="p", with_superseded=True, as_of_ms=as_of_ms)
    return [(row.id, row.superseded_by) for row in await store.memories.list_memories(wanted)]


async def test_an_older_memory_comes_back_when_the_newer_one_goes(store: Store) -> None:
    """When that is removed, edited so that it supersedes nothing, or erased with its session."""
    await remember(store, "old", "walnuts")
    newer = await remember(store, "new", "almonds", supersedes=("old",))
    await write(store, await stream_of(store), tombstone(newer, newer.position + 1, NOW + 1))
    assert ["old"] == await listed(store)
    await remember(store, "new", "almonds", supersedes=("old",))
    assert ["new"] == await listed(store)
    await remember(store, "new", "almonds")
    assert ["old", "new"] == await listed(store)
    session = await session_of(store)
    await remember(store, "newest", "pecans", supersedes=("old", "new"), stream=session)
    assert ["newest"] == await listed(store)
    await store.retention.erase(session.key, NOW)
    assert ["old", "new"] == await listed(store)
    await delete_content(store, [session.key])
    assert ["old", "new"] == await listed(store)
    assert ["old"] == await found(store, "walnuts")


async def test_the_first_that_took_its_place_counts(store: Store) -> None:
    """Of several; once that is gone it is the next one. An edit of a newer memory does not change since when."""
    await remember(store, "old")
    await remember(store, "late", supersedes=("old",), created_ms=NOW + 9, updated_ms=NOW + 9)
    first = await remember(store, "first", supersedes=("old",), created_ms=NOW + 5, updated_ms=NOW + 5)
    await remember(store, "first", "edited", supersedes=("old",), created_ms=NOW + 5, updated_ms=NOW + 50)
    stored = await one(store, "old")
    assert ("first", NOW + 5) == (stored.superseded_by, stored.superseded_ms)
    gone = tombstone(first, 4, NOW + 60)
    await write(store, await stream_of(store), gone)
    stored = await one(store, "old")
    assert ("late", NOW + 9) == (stored.superseded_by, stored.superseded_ms)


async def test_superseding_stays_in_its_project(store: Store) -> None:
    """A memory of the same id elsewhere is not touched."""
    await remember(store, "old")
    await remember(store, "old", stream=await stream_of(store, project="q"))
    await remember(store, "new", supersedes=("old",))
    assert ["old"] == await listed(store, "q")
    assert ["new"] == await listed(store)
