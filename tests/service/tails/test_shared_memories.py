"""Tails of memories share one fold: what many of them cost, and that each is sent what it has not been sent."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager

import msgspec
import pytest

from tests.support.callers.rest import RestClient
from tests.support.events import delta, done, final
from tests.support.samples.history_reader import HistoryReader, exact_json
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.protocol.types import JsonObject
from voicemem.server.rest.tails import CHUNK_BYTES, encode_in_pieces
from voicemem.sessions.tails.tail import MemoryChange, TailItem, TailView
from voicemem.store.streams import Stream

TURNS, TAILS, MORE_TURNS = 300, 20, 10
VIEW = TailView(messages=True)
Watched = AsyncIterator[list[TailItem]]


@contextmanager
def measured() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def exchange(turn: int) -> list[JsonObject]:
    text = f"{turn} " + "and so it goes on for a while " * 5
    return [final(turn, text, turn), delta(turn, text, turn), done(turn, turn)]


def held_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def session_of(app: App) -> Stream:
    stream = await app.services.store.journal.find_session("default", "s")
    assert stream is not None
    return stream


async def begin(app: App, stack: AsyncExitStack, after: int = 0, view: TailView = VIEW) -> Watched:
    tail = await app.services.tails.tail_session(await session_of(app), view, None, after)
    return await stack.enter_async_context(aclosing(app.services.tails.watch(tail)))


async def next_change(watched: Watched) -> MemoryChange:
    """The next item, let go by the tail as when it is written."""
    while True:
        items = await anext(watched)
        if items:
            change = items.pop().content
            assert isinstance(change, MemoryChange)
            return change


def take(reader: HistoryReader, change: MemoryChange) -> None:
    reader.take(json.loads(msgspec.json.encode(change)))


@pytest.mark.long
async def test_twenty_tails_of_a_large_call_cost_about_one_fold(api: RestClient, app: App) -> None:
    """The first tail of a large call brings its fold into memory; 19 more add less than a hundredth of it each."""
    for first in range(1, TURNS, 100):
        await api.send(*(event for turn in range(first, first + 100) for event in exchange(turn)))
    app.services.read_models.discard_all()
    async with AsyncExitStack() as stack:
        stack.enter_context(measured())
        before = held_bytes()
        tails = [await begin(app, stack)]
        await next_change(tails[0])
        fold = held_bytes() - before
        for _ in range(TAILS - 1):
            tails.append(await begin(app, stack))
            await next_change(tails[-1])
        more = held_bytes() - before - fold
        assert fold > 500_000, fold
        assert more < fold * (TAILS - 1) / 100, (fold, more)

        for turn in range(TURNS + 1, TURNS + 1 + MORE_TURNS):  # only the first reads on; the others are slow
            await api.send(*exchange(turn))
            await next_change(tails[0])
        slow = held_bytes() - before - fold
        assert slow < fold / 3, (fold, slow)
        for tail in tails[1:]:
            assert 2 * MORE_TURNS == len((await next_change(tail)).upserts)


@pytest.mark.parametrize("unfinished", [False, True])
async def test_each_reader_gets_what_it_has_not_been_sent(api: RestClient, app: App, unfinished: bool) -> None:
    """Readers that come early, late, or from a position, and read often or seldom, all end with the history."""
    view = TailView(messages=True, unfinished=unfinished)
    readers = [HistoryReader() for _ in range(4)]
    async with AsyncExitStack() as stack:
        often, seldom = await begin(app, stack, view=view), await begin(app, stack, view=view)
        for turn in range(1, 4):
            await api.send(*exchange(turn))
            take(readers[0], await next_change(often))
        take(readers[1], await next_change(seldom))
        place = (await session_of(app)).position
        await api.send(final(1, "Said late.", 9, item="late"), *exchange(5))
        late = await begin(app, stack, view=view)
        take(readers[2], await next_change(late))
        readers[3] = readers[1].copy()
        resumed = await begin(app, stack, place, view)
        read_model = app.services.read_models.cached[(await session_of(app)).key]
        read_model.pack()
        await api.send(delta(6, "In progress"), final(2, "Said later.", 10, item="later"))
        for reader, watched in zip(readers, (often, seldom, late, resumed), strict=True):
            change = await next_change(watched)
            take(reader, change)
            assert (await session_of(app)).position == change.position
            history = await api.contents(query="?open=true" if unfinished else "")
            assert exact_json(history) == exact_json(reader.shown())


async def test_readers_that_are_level_are_sent_the_same_comparison(api: RestClient, app: App) -> None:
    """What changed is compared for the first of them alone; one that missed a change is sent both at once."""
    await api.send(*exchange(1))
    async with AsyncExitStack() as stack:
        watched = [await begin(app, stack) for _ in range(3)]
        for one in watched:
            await next_change(one)
        await api.send(*exchange(2))
        first, second = [(await next_change(one)).upserts for one in watched[:2]]
        assert first is second
        await api.send(*exchange(3))
        assert 4 == len((await next_change(watched[2])).upserts)
        assert 2 == len((await next_change(watched[0])).upserts)


async def test_a_memory_is_let_go_with_its_last_tail(api: RestClient, app: App) -> None:
    """Nothing is kept of what was sent once no tail follows the session; until then the memory budget counts it."""
    await api.send(*exchange(1))
    async with AsyncExitStack() as stack:
        watched = await begin(app, stack)
        await next_change(watched)
        followed = app.services.tails.sources.followed.memories
        assert 1 == len(followed)
        assert app.services.budget.followed > 0
    del watched
    await eventually(0, lambda: asyncio.sleep(0, len(followed)))
    assert 0 == app.services.budget.followed


def test_an_item_is_written_in_pieces() -> None:
    """A large item leaves in pieces of one size, and is let go before the first of them is sent."""
    items = [TailItem("here", MemoryChange("s", 1, ["x" * 5 * CHUNK_BYTES], [])) for _ in range(2)]
    pieces = encode_in_pieces(items)
    first = next(pieces)
    assert 1 == len(items)
    rest = [*pieces]
    assert {CHUNK_BYTES} == {len(one) for one in (first, *rest[:-1])}
    assert 2 == b"".join((first, *rest)).count(b"event: messages")
