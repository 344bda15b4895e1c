"""Memories whose session expires may go on in the stream of its user: whole, findable, and erased with the user."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.support.stores.contract import NOW, close, open_key
from tests.support.stores.memories import (
    delete_content,
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
from voicemem.store.memories import MemoryRow
from voicemem.store.memory_filters import AnyOf
from voicemem.store.port import Store
from voicemem.store.streams import Stream

TTL_MS = 10_000
LATER = NOW + TTL_MS


async def ended_call(store: Store, *texts: str, session_id: str = "s", **more: Any) -> Stream:
    """A session with memories, which has ended and expires at `LATER`."""
    key = await open_key(store, session_id, {"user_id": "ann", "ttl_seconds": TTL_MS // 1000, "reopen_window": 0})
    for number, text in enumerate(texts):
        await remember(store, f"m{number}", text, stream=await session_of(store, session_id), user_id="ann", **more)
    await close(store, key)
    return await session_of(store, session_id)


async def move(store: Store, key: int, *rows: MemoryRow, user_id: str = "ann", now_ms: int = LATER) -> bool:
    return await store.memories.move_memories(key, user_id, [event_of(row) for row in rows], rows, now_ms)


async def test_moved_memories_stay_when_their_session_expires(store: Store) -> None:
    """With what is new in their rows; they are found by their words, and stand in the user's journal."""
    session = await ended_call(store, "walnuts", "marzipan")
    rows = await store.memories.list_memories_of(session.key, "", 10)
    assert ["m0", "m1"] == [row.id for row in rows]
    assert await move(store, session.key, *[replace(row, details=b'{"moved":1}', expires_ms=LATER + 5) for row in rows])
    assert [] == await store.memories.list_memories_of(session.key, "", 10)
    assert await store.retention.expire(session.key, LATER)
    await delete_content(store, [session.key])
    user = await stream_of(store)
    kept = await one(store, "m0")
    assert (user.key, 1, b'{"moved":1}', LATER + 5) == (kept.key, kept.position, kept.details, kept.expires_ms)
    assert (2, ["m0", "m1"]) == (
        user.position,
        [row.id for row in await store.memories.list_memories_of(user.key, "", 10)],
    )
    assert (["m0"], ["m1"]) == (await found(store, "walnuts"), await found(store, "marzipan", user_ids=AnyOf(("ann",))))


async def test_the_list_goes_on_behind_an_id(store: Store) -> None:
    """A few at a time, and without those that were removed."""
    session = await ended_call(store, "a", "b", "c", session_id="s")
    assert ["m0", "m1"] == [row.id for row in await store.memories.list_memories_of(session.key, "", 2)]
    assert ["m2"] == [row.id for row in await store.memories.list_memories_of(session.key, "m1", 2)]


async def test_nothing_moves_unless_the_session_is_due(store: Store) -> None:
    """Nor of one that is erased, nor a memory that has changed since, with any others."""
    session = await ended_call(store, "walnuts", "marzipan")
    rows = await store.memories.list_memories_of(session.key, "", 10)
    assert not await move(store, session.key, *rows, now_ms=LATER - 1)
    assert not await move(store, session.key, rows[0], replace(rows[1], position=rows[1].position + 1))
    assert session.key == (await one(store, "m0")).key
    await store.retention.erase(session.key, NOW)
    assert not await move(store, session.key, *rows)
    assert [] == await listed(store)
    assert await store.journal.find_user("p", "ann") is None


async def test_moved_memories_are_erased_with_the_user(store: Store) -> None:
    """Nothing of them is found, and their content is deleted."""
    session = await ended_call(store, "walnuts")
    assert await move(store, session.key, *await store.memories.list_memories_of(session.key, "", 10))
    await store.retention.expire(session.key, LATER)
    user = await stream_of(store)
    await store.retention.erase(user.key, LATER)
    assert ([], []) == (await listed(store), await found(store, "walnuts"))
    await delete_content(store, [session.key, user.key])
    assert [] == await store.memories.find_memories("p", ["m0"])


async def test_a_memory_that_moves_still_supersedes(store: Store) -> None:
    """The older one comes back once the newer one's new stream is erased."""
    old = await stream_of(store, "ben")
    assert await write(store, old, memory_of(old, "old", "walnuts"))
    session = await ended_call(store, "no walnuts", supersedes=("old",))
    assert await move(store, session.key, *await store.memories.list_memories_of(session.key, "", 10))
    await store.retention.expire(session.key, LATER)
    await delete_content(store, [session.key])
    assert "m0" == (await one(store, "old")).superseded_by
    await store.retention.erase((await stream_of(store)).key, LATER)
    assert None is (await one(store, "old")).superseded_by


async def test_a_memory_moves_to_where_one_of_its_id_was_removed(store: Store) -> None:
    """The row that is left of that one gives way."""
    user = await stream_of(store)
    row = memory_of(user, "m0", "earlier")
    assert await write(store, user, row)
    user = await stream_of(store)
    assert await write(store, user, replace(row, text="", removed_ms=NOW, position=user.position + 1))
    session = await ended_call(store, "walnuts")
    assert await move(store, session.key, *await store.memories.list_memories_of(session.key, "", 10))
    assert ("walnuts", 3) == ((await one(store, "m0")).text, (await one(store, "m0")).position)


async def test_one_that_gets_another_user_is_found_with_that_one(store: Store) -> None:
    """Its words are those of the new scope."""
    session = await ended_call(store, "walnuts")
    (row,) = await store.memories.list_memories_of(session.key, "", 10)
    assert await move(store, session.key, replace(row, user_id="ben"), user_id="ben")
    assert (["m0"], []) == (
        await found(store, "walnuts", user_ids=AnyOf(("ben",))),
        await found(store, "walnuts", user_ids=AnyOf(("ann",))),
    )
