"""Memories go with their stream: unreadable at once, then deleted in portions; and two handles see the same."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio

import pytest

from tests.support.stores.contract import END, NOW, close, open_key
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
from voicemem.errors import Refused
from voicemem.store.memories import MAX_ROWS
from voicemem.store.port import Store


async def test_memories_go_with_their_session(store: Store) -> None:
    """Nothing finds them from then on; their rows and words are deleted in several portions, those of others stay."""
    session = await session_of(store)
    for first in range(0, 3 * MAX_ROWS, MAX_ROWS):
        stream = await session_of(store)
        rows = [
            memory_of(stream, f"m{first + number}", f"walnuts {first + number}", position=stream.position + number + 1)
            for number in range(MAX_ROWS)
        ]
        assert await write(store, stream, *rows) is not None
    await remember(store, "kept", "walnuts of another")
    assert 61 == len(await found(store, "walnuts"))
    await store.retention.erase(session.key, NOW)
    for expected in (["kept"], ["kept"]):
        assert expected == await listed(store) == await found(store, "walnuts")
        assert await store.memories.find_memories("p", ["m0"]) == []
        await delete_content(store, [session.key])
        assert await store.retention.finish_erased()
    await store.memories.touch_memories("p", ["m0", "kept"], NOW)
    assert 1 == (await one(store, "kept")).access_count


async def test_a_session_that_was_erased_is_known(store: Store) -> None:
    """By its id, in its project; one that never was and one that is there are not."""
    session = await session_of(store)
    assert not await store.journal.was_erased("p", session.id)
    await store.retention.erase(session.key, NOW)
    assert [True, False, False] == [
        await store.journal.was_erased(*of) for of in (("p", session.id), ("q", session.id), ("p", "never"))
    ]


async def test_memories_go_with_their_user(store: Store) -> None:
    """A later user of the same id has none of them."""
    row = await remember(store, "m", "walnuts")
    await store.retention.erase(row.key, NOW)
    await stream_of(store)
    assert await listed(store) == await found(store, "walnuts") == []
    await delete_content(store, [row.key])
    await remember(store, "m", "almonds")
    assert ["m"] == await listed(store) == await found(store, "almonds")


async def test_memories_go_with_a_session_that_expires(store: Store) -> None:
    """Once its `ttl_seconds` are over."""
    key = await open_key(store, "s", {"ttl_seconds": 60})
    await remember(store, "m", stream=await session_of(store))
    await close(store, key, END)
    assert not await store.retention.expire(key, NOW + 59_999)
    assert ["m"] == await found(store, "walnuts")
    assert await store.retention.expire(key, NOW + 60_000)
    assert await found(store, "walnuts") == []
    assert [key] == await store.retention.claim_erased("", NOW + 60_000, 1_000, 10)
    await delete_content(store, [key])
    assert await store.memories.find_memories("p", ["m"]) == []


async def test_another_handle_finds_what_was_acknowledged(two_handles: tuple[Store, Store]) -> None:
    """At once; and what the other one erased, it does not find."""
    ours, theirs = two_handles
    row = await remember(ours, "m", "walnuts")
    assert row == await one(theirs, "m")
    assert ["m"] == await found(theirs, "walnuts")
    await remember(theirs, "m", "almonds")
    assert [] == await found(ours, "walnuts")
    assert ["m"] == await found(ours, "almonds")
    await theirs.retention.erase(row.key, NOW)
    assert await found(ours, "almonds") == await listed(ours) == []


async def test_of_two_at_once_one_gets_the_position(two_handles: tuple[Store, Store]) -> None:
    """The other one changes nothing."""
    stream = await stream_of(two_handles[0])
    await stream_of(two_handles[1])
    rows = [memory_of(stream, f"m{number}", position=1) for number in range(2)]
    written = await asyncio.gather(
        *(
            store.memories.write_memories(stream.key, [event_of(row)], 0, [row], NOW)
            for store, row in zip(two_handles, rows, strict=True)
        )
    )
    assert 1 == sum(one is not None for one in written)
    winner = rows[0] if written[0] is not None else rows[1]
    for store in two_handles:
        assert [winner] == await store.memories.find_memories("p", ["m0", "m1"])


async def test_of_two_at_once_one_gets_the_id(two_handles: tuple[Store, Store]) -> None:
    """The other one, of another stream, is refused."""
    streams = [await stream_of(store, user) for store, user in zip(two_handles, ("ann", "ben"), strict=True)]
    rows = [memory_of(stream, "m", f"walnuts of {stream.id}") for stream in streams]
    written = await asyncio.gather(
        *(
            store.memories.write_memories(stream.key, [event_of(row)], 0, [row], NOW)
            for store, stream, row in zip(two_handles, streams, rows, strict=True)
        ),
        return_exceptions=True,
    )
    refused = [one for one in written if isinstance(one, Refused)]
    assert ["memory_exists"] == [one.code for one in refused]
    assert ["m"] == await found(two_handles[0], "walnuts")


async def test_touches_at_once_count_once(two_handles: tuple[Store, Store]) -> None:
    """Of many in a minute, over both handles."""
    await remember(two_handles[0], "m")
    await remember(two_handles[0], "n")
    await asyncio.gather(*(store.memories.touch_memories("p", ["m", "n"], NOW) for store in two_handles * 4))
    assert [1, 1] == [(await one(two_handles[1], name)).access_count for name in ("m", "n")]


@pytest.mark.parametrize("is_erased", [False, True])
async def test_a_write_and_an_erasure_at_once(two_handles: tuple[Store, Store], is_erased: bool) -> None:
    """Whichever is first, nothing of an erased stream is found, nor left."""
    stream = await session_of(two_handles[0])
    row = memory_of(stream, "m")
    jobs = [
        two_handles[0].memories.write_memories(stream.key, [b"{}"], 0, [row], NOW),
        two_handles[1].retention.erase(stream.key, NOW),
    ]
    await asyncio.gather(*(jobs[::-1] if is_erased else jobs), return_exceptions=True)
    for store in two_handles:
        assert await found(store, "walnuts") == []
    await delete_content(two_handles[0], [stream.key])
    assert await two_handles[1].memories.find_memories("p", ["m"]) == []
    assert await remember(two_handles[1], "m", stream=await stream_of(two_handles[1])) is not None
