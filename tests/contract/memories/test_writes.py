"""Memories are written with the events about them, in one step, and read back as they were written."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.stores.contract import NOW, ODD_NAMES, event_types
from tests.support.stores.memories import (
    event_of,
    found,
    listed,
    memory_of,
    one,
    remember,
    session_of,
    stream_of,
    write,
)
from voicemem.errors import Refused
from voicemem.store.memories import MAX_ROWS, TOUCH_AGAIN_MS, ReplacedMemory, tombstone
from voicemem.store.port import Store


async def test_a_memory_is_read_as_it_was_written(store: Store) -> None:
    """Every field, of one that has all of them and of one that has only what it must."""
    stream = await stream_of(store)
    whole = memory_of(
        stream, "whole", "Ann is allergic to walnuts.", namespace="shop", session_id="s", said_ms=NOW - 5, pinned=True,
        event_at="2026-05-03", expires_ms=NOW + 9, last_accessed_ms=NOW - 1, access_count=7, topics=("food", "健康"),
        entities=("Ann",), details=b'{"confidence":0.9}', supersedes=("old", "older"), updated_ms=NOW + 1,
    )  # fmt: skip
    plain = memory_of(stream, "plain", kind="preference", position=stream.position + 2)
    assert await write(store, stream, whole, plain) is not None
    assert whole == await one(store, "whole")
    assert plain == await one(store, "plain")
    assert await store.memories.find_memories("p", ["nothing"]) == []
    assert await store.memories.find_memories("p", []) == []
    assert await store.memories.find_memories("q", ["whole"]) == []


async def test_a_text_may_have_any_character(store: Store) -> None:
    """But for U+0000, which does not come this far; it is found by its words, changed and removed."""
    stream = await stream_of(store)
    row = memory_of(
        stream, "m", "walnuts\ufffdand \x01 pecans", namespace="nul\x02", topics=("a\x02b",), details=b'{"a":"\\u0000"}'
    )
    assert await write(store, stream, row) is not None
    assert row == await one(store, "m")
    assert ["m"] == await found(store, "pecans")
    row = await remember(store, "m", "almonds\x7f")
    assert [[], ["m"]] == [await found(store, word) for word in ("pecans", "almonds")]
    assert await write(store, await stream_of(store), tombstone(row, row.position + 1, NOW + 9)) is not None
    assert await found(store, "almonds") == []


async def test_events_and_rows_are_one_step(store: Store) -> None:
    """The events stand at the positions after the expected one; where that is taken, nothing changes."""
    stream = await stream_of(store)
    rows = [memory_of(stream, f"m{number}", position=number + 1) for number in range(2)]
    written = await write(store, stream, *rows)
    assert written is not None
    assert 2 == written.position == (await stream_of(store)).position
    assert ["memory.added"] * 2 == await event_types(store, stream.key)
    late = memory_of(stream, "late")
    assert await store.memories.write_memories(stream.key, [b"{}"], 0, [late], NOW) is None
    assert await store.memories.find_memories("p", ["late"]) == []
    assert ["memory.added"] * 2 == await event_types(store, stream.key)


async def test_a_memory_goes_on_in_another_stream_in_one_step(store: Store) -> None:
    """Under its id; it is removed where it stood, with an event there, and found once."""
    session = await session_of(store)
    before = await remember(store, "m", "walnuts", stream=session)
    user = await stream_of(store)
    after = memory_of(user, "m", "pecans", created_ms=before.created_ms)
    replaced = [ReplacedMemory(before, b'{"type":"memory.removed","memory_id":"m"}')]
    written = await store.memories.write_memories(
        user.key, [event_of(after)], user.position, [after], NOW + 5, replaced
    )
    assert written is not None
    assert after == await one(store, "m")
    assert [[], ["m"], ["m"]] == [await found(store, "walnuts"), await found(store, "pecans"), await listed(store)]
    assert ["memory.added", "memory.removed"] == await event_types(store, session.key)
    assert ["memory.added"] == await event_types(store, user.key)


async def test_what_has_changed_meanwhile_is_not_replaced(store: Store) -> None:
    """Neither one that was edited nor one that was removed; nothing is written then, in either stream."""
    user = await stream_of(store)
    before = await remember(store, "m", stream=await session_of(store))
    edited = await remember(store, "m", "almonds", stream=await session_of(store))
    session = await session_of(store)
    after = memory_of(user, "m", "pecans")
    for stale in (before, replace(edited, position=edited.position + 1)):
        replaced = [ReplacedMemory(stale, b"{}")]
        assert (
            await store.memories.write_memories(user.key, [event_of(after)], user.position, [after], NOW, replaced)
            is None
        )
    assert await write(store, session, tombstone(edited, session.position + 1, NOW)) is not None
    replaced = [ReplacedMemory(edited, b"{}")]
    assert (
        await store.memories.write_memories(user.key, [event_of(after)], user.position, [after], NOW, replaced) is None
    )
    assert 3 == (await session_of(store)).position
    assert user.position == (await stream_of(store)).position
    assert [] == await listed(store)


async def test_rows_may_come_without_events(store: Store) -> None:
    """A journal that was restored has its events already."""
    stream = await stream_of(store)
    assert await store.memories.write_memories(stream.key, [], 0, [memory_of(stream, "m")], NOW) is not None
    assert await store.memories.write_memories(stream.key, [], 1, [memory_of(stream, "n")], NOW) is None
    assert ["m"] == await listed(store)
    assert await event_types(store, stream.key) == []


async def test_a_row_replaces_that_of_its_id(store: Store) -> None:
    """It is found by its new words only; when it was accessed last stays what the store has."""
    row = await remember(store, "m", "walnuts")
    await store.memories.touch_memories("p", ["m"], NOW + TOUCH_AGAIN_MS)
    edited = await remember(store, "m", "hazelnuts", updated_ms=NOW + 5, kind="preference", topics=("food",))
    stored = await one(store, "m")
    assert replace(edited, last_accessed_ms=NOW + TOUCH_AGAIN_MS, access_count=1) == stored
    assert row.position + 1 == stored.position
    assert [[], ["m"], ["m"]] == [await found(store, word) for word in ("walnuts", "hazelnuts", "food")]
    assert ["m"] == await listed(store)


async def test_a_removed_memory_leaves_a_row_without_content(store: Store) -> None:
    """It is not listed nor found any more, and can be written again."""
    row = await remember(store, "m", "walnuts", topics=("food",), details=b'{"metadata":{"a":1}}')
    gone = tombstone(row, row.position + 1, NOW + 9)
    stream = await stream_of(store)
    assert await write(store, stream, gone) is not None
    assert gone == await one(store, "m")
    assert ("", (), b"{}", NOW + 9) == (gone.text, gone.topics, gone.details, gone.removed_ms)
    assert await listed(store) == []
    assert await listed(store, as_of_ms=NOW, with_superseded=True) == []
    assert await found(store, "walnuts food") == []
    assert await write(store, await stream_of(store), gone) is not None
    again = await remember(store, "m", "walnuts again")
    assert again == await one(store, "m")
    assert ["m"] == await found(store, "walnuts")


async def test_a_memory_that_comes_back_was_never_accessed(store: Store) -> None:
    """What is noted of the removed one of its id does not count for it."""
    row = await remember(store, "m", "walnuts")
    await store.memories.touch_memories("p", ["m"], NOW + TOUCH_AGAIN_MS)
    assert await write(store, await stream_of(store), tombstone(row, row.position + 1, NOW + 9)) is not None
    again = await remember(store, "m", "walnuts again")
    assert again == await one(store, "m")
    assert (None, 0) == (again.last_accessed_ms, again.access_count)


async def test_an_id_is_taken_in_its_project(store: Store) -> None:
    """By a memory that is there, in another stream; one that was removed or erased gives it back."""
    row = await remember(store, "m", "walnuts")
    session = await session_of(store)
    with pytest.raises(Refused) as refused:
        await write(store, session, memory_of(session, "other"), memory_of(session, "m", position=2))
    assert "memory_exists" == refused.value.code
    assert await store.memories.find_memories("p", ["other"]) == []
    assert await event_types(store, session.key) == []
    await remember(store, "m", "almonds", stream=await stream_of(store, "ann", "q"))
    assert await write(store, await stream_of(store), tombstone(row, 2, NOW)) is not None
    await remember(store, "m", "pecans", stream=session)
    assert "pecans" == (await one(store, "m")).text
    assert ["m"] == await found(store, "pecans")
    await store.retention.erase(session.key, NOW)
    assert await found(store, "pecans") == []
    assert (await one(store, "m")).removed_ms is not None
    back = await remember(store, "m", "walnuts again")
    assert back == await one(store, "m")


async def test_unknown_and_erased_streams_are_refused(store: Store) -> None:
    """Nothing is written into them."""
    stream = await session_of(store)
    row = memory_of(stream, "m")
    await store.retention.erase(stream.key, NOW)
    for key in (stream.key, stream.key + 12_345):
        with pytest.raises(Refused) as refused:
            await store.memories.write_memories(key, [b"{}"], 0, [row], NOW)
        assert "unknown_session" == refused.value.code
    assert await store.memories.find_memories("p", ["m"]) == []


async def test_a_row_belongs_to_the_project_of_its_stream(store: Store) -> None:
    """Whatever it says itself."""
    stream = await stream_of(store)
    row = replace(memory_of(stream, "m"), project="q", key=stream.key + 1)
    assert await write(store, stream, row) is not None
    assert replace(row, project="p", key=stream.key) == await one(store, "m")
    assert await listed(store, "q") == []


async def test_what_no_caller_may_give_is_an_error(store: Store) -> None:
    """Too many rows, one memory twice, and a topic of two lines."""
    stream = await stream_of(store)
    rows = [memory_of(stream, f"m{number}") for number in range(MAX_ROWS + 1)]
    for given in (rows, [rows[0], rows[0]], [replace(rows[0], topics=("a\nb",))]):
        with pytest.raises(ValueError, match=r"At most 20|only once|line break"):
            await store.memories.write_memories(stream.key, [], 0, given, NOW)


async def test_odd_names_are_kept_apart(store: Store) -> None:
    """Ids, users and texts with any characters come back as they were, and are found by themselves alone."""
    names = [name for name in ODD_NAMES if name]
    for name in names:
        await remember(store, f"m{name}", f"{name} walnuts {name}", namespace=name, stream=await stream_of(store, name))
    for name in names:
        row = await one(store, f"m{name}")
        assert (f"{name} walnuts {name}", name, name) == (row.text, row.user_id, row.namespace)


async def test_a_memory_is_noted_as_accessed_once_a_minute(store: Store) -> None:
    """Those of the project that are given, and are there; no event says so."""
    await remember(store, "m")
    await remember(store, "n")
    await remember(store, "m", stream=await stream_of(store, project="q"))
    await store.memories.touch_memories("p", ["m", "unknown"], NOW)
    await store.memories.touch_memories("p", ["m"], NOW + TOUCH_AGAIN_MS - 1)
    row = await one(store, "m")
    assert (NOW, 1) == (row.last_accessed_ms, row.access_count)
    await store.memories.touch_memories("p", ["m"], NOW + TOUCH_AGAIN_MS)
    row = await one(store, "m")
    assert (NOW + TOUCH_AGAIN_MS, 2) == (row.last_accessed_ms, row.access_count)
    for other in (await one(store, "n"), await one(store, "m", "q")):
        assert (None, 0) == (other.last_accessed_ms, other.access_count)
    await store.memories.touch_memories("p", [], NOW)
    assert 2 == (await stream_of(store)).position


async def test_expired_memories_are_found_in_all_projects(store: Store) -> None:
    """The earliest first; without those that were removed or erased, or never expire."""
    await remember(store, "later", expires_ms=NOW + 2)
    await remember(store, "never")
    await remember(store, "first", expires_ms=NOW + 1, stream=await stream_of(store, project="q"))
    await remember(store, "not yet", expires_ms=NOW + 11)
    gone = await remember(store, "gone", expires_ms=NOW)
    await write(store, await stream_of(store), tombstone(gone, gone.position + 1, NOW))
    erased = await remember(store, "erased", expires_ms=NOW, stream=await session_of(store))
    await store.retention.erase(erased.key, NOW)
    assert ["first", "later"] == [row.id for row in await store.memories.find_expired_memories(NOW + 10, 10)]
    assert ["first"] == [row.id for row in await store.memories.find_expired_memories(NOW + 10, 1)]
