"""What readers of large answers hold: bounded over all of them, and no project's readers wait for another's."""

from __future__ import annotations

import asyncio
from functools import partial

from voicemem.runtime import ReadBudget, Reader


async def test_readers_of_a_project_wait_for_room() -> None:
    """But for its first; what is made is made again once there is room, and not kept until then."""
    room = ReadBudget(100)
    made: list[int] = []

    async def make() -> tuple[int, int]:
        made.append(room.used)
        return len(made), 60

    first, second, other = Reader(room, "a"), Reader(room, "a"), Reader(room, "b")
    assert first.take(500)
    waiting = asyncio.create_task(second.make(make))
    await asyncio.sleep(0)
    assert (made, waiting.done()) == ([500], False)
    assert await other.make(make) == 2
    first.close()
    assert await waiting == 3
    for reader in (second, other, first):
        reader.close()
    assert (room.used, room.shares) == (0, {})


async def test_what_several_hold_together_counts_once() -> None:
    """As much as the one that holds most of it."""
    room = ReadBudget(100)
    readers = [Reader(room, "a", "call") for _ in range(5)]
    assert all(reader.take(size) for size, reader in enumerate(readers, 56))
    assert room.used == 60
    assert not Reader(room, "a", "another call").take(41)
    readers.pop().close()
    assert room.used == 59
    assert Reader(room, "a", "another call").take(41)


async def test_projects_have_equal_shares() -> None:
    """Of two each has the half; one that ends leaves its half to the other."""
    room = ReadBudget(100)
    a, b = ([Reader(room, owner) for _ in range(3)] for owner in "ab")
    assert a[0].take(10)
    assert b[0].take(10)
    assert not a[1].take(41)
    waiting = asyncio.create_task(a[1].make(lambda: asyncio.sleep(0, ("made", 41))))
    await asyncio.sleep(0)
    assert not waiting.done()
    b[0].close()
    assert await waiting == "made"


async def test_a_reader_that_grows_and_one_that_has_left() -> None:
    """The oldest may always grow, so none waits for ever; one that was cancelled holds nothing."""
    room = ReadBudget(100)
    older, newer = Reader(room, "a"), Reader(room, "a")
    assert older.take(50)
    assert newer.take(40)
    growing = asyncio.create_task(newer.make(lambda: asyncio.sleep(0, ("made", 80))))
    await asyncio.sleep(0)
    assert older.take(300)
    growing.cancel()
    await asyncio.gather(growing, return_exceptions=True)
    newer.close()
    assert older.take(0)
    assert room.used == 0
    older.close()
    older.close()
    assert room.shares == {}


async def test_what_waited_for_room_is_made_again_once_it_has_it() -> None:
    """Those that wait do not all make their answers again when one ends: only the one whose bytes fit now."""
    room = ReadBudget(100)
    made: list[str] = []

    async def make(name: str) -> tuple[str, int]:
        made.append(name)
        return name, 60

    readers = {name: Reader(room, "a") for name in ("first", "second", "third")}
    assert await readers["first"].make(partial(make, "first")) == "first"
    later = [asyncio.create_task(readers[name].make(partial(make, name))) for name in ("second", "third")]
    await asyncio.sleep(0)
    assert made == ["first", "second", "third"]
    readers["first"].close()
    assert await later[0] == "second"
    assert made == ["first", "second", "third", "second"]
    readers["second"].close()
    assert await later[1] == "third"
    readers["third"].close()
    assert (len(made), room.used) == (5, 0)
