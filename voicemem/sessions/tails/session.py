"""One live tail: the journals of sessions, or their memories, as they grow.

A tail keeps no queue: whenever it is rung for, it reads from the store what comes after its place. So a reader that is
slow holds up nobody and costs one page, and nothing is missed or told twice. Who comes back with a place goes on there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import NamedTuple

from voicemem.sessions.cache import Memories, decoded
from voicemem.sessions.tails import cursor
from voicemem.store.port import Store
from voicemem.store.records import Row
from voicemem.store.streams import Stream, may_reopen
from voicemem.transcript.diff import Changes, MessageDiff
from voicemem.transcript.fold import fold_all

PAGE = 500
"""Entries that are read at a time."""
POLL_S = 0.5
"""What nobody rings for (closes, changes over REST, other processes on the store) is noticed so soon."""


class View(NamedTuple):
    """What is told of a session: its journal, or its memory, with what is in progress if that is wanted."""

    messages: bool = False
    unfinished: bool = False


class Entry(NamedTuple):
    """One entry of a session's journal."""

    session_id: str
    row: Row


class Changed(NamedTuple):
    """The memory at a position, as what has changed since it was told before."""

    session_id: str
    position: int
    changes: Changes


class End(NamedTuple):
    """Nothing more comes of this session; `state` is `ended` or `erased`."""

    session_id: str
    state: str
    reason: str | None


class Told(NamedTuple):
    """Something that is told; who has it goes on from `place`. With nothing it is only the place."""

    place: str
    what: Entry | Changed | End | None


class Followed:
    """A session in a tail, told up to a position."""

    def __init__(self, stream: Stream, at: int = 0) -> None:
        self.stream = stream
        self.at = at
        self.keyed: MessageDiff | None = None
        """The memory as it was told, where memories are."""


class Sources(NamedTuple):
    """What tails read. `clock` gives Unix ms; they end when `draining` is set."""

    store: Store
    memories: Memories
    clock: Callable[[], int]
    draining: asyncio.Event


class Tail:
    """Follows one session. `tell` is for one use."""

    endless = False
    """Whether it goes on when no session is followed any more."""

    def __init__(self, sources: Sources, view: View, followed: list[Followed]) -> None:
        self.sources = sources
        self.store = sources.store
        self.view = view
        self.followed = {one.stream.key: one for one in followed}
        self.rung = asyncio.Event()
        self.changed = set(self.followed)
        """Keys of sessions that may have more to tell."""

    @property
    def place(self) -> str:
        ((key, one),) = self.followed.items()
        return cursor.write_one(self.store.incarnation, key, one.at)

    @property
    def is_told(self) -> bool:
        """Whether nothing can come any more."""
        now = self.sources.clock()
        return all(is_over(one.stream, now) and one.at >= one.stream.position for one in self.followed.values())

    def ring(self, stream: Stream) -> None:
        """Note that something was journaled in a session."""
        if stream.key in self.followed:
            self.changed.add(stream.key)
            self.rung.set()

    async def look(self) -> None:
        """Look at what nobody rings for."""
        self.changed.update(self.followed)

    def holds_back(self, stream: Stream) -> bool:
        """Whether it is too early to tell of a session."""
        return False

    def finish(self, one: Followed, state: str, reason: str | None) -> Told:
        """The end of the session; its reader gets nothing but the end again when it comes back."""
        place = self.place
        del self.followed[one.stream.key]
        return Told(place, End(one.stream.id, state, reason))

    async def tell(self) -> AsyncIterator[list[Told]]:
        """What there is to tell, as it comes, and now and then nothing. Ends with its session, or with the service.

        Raises `StoreUnavailable`.
        """
        time = asyncio.get_running_loop().time
        look_at = time() + POLL_S
        while not self.sources.draining.is_set():
            async for told in self.tell_changed():
                yield told
            if not (self.followed or self.endless):
                return
            if not self.changed:
                await self.wait(look_at - time())
            if time() >= look_at:
                await self.look()
                look_at = time() + POLL_S
                yield []

    async def wait(self, at_most_s: float) -> None:
        """Until somebody rings."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self.rung.wait()
        self.rung.clear()

    async def tell_changed(self) -> AsyncIterator[list[Told]]:
        """A page of each session that may have more."""
        keys, self.changed = sorted(self.changed), set()
        for key in keys:
            one = self.followed.get(key)
            if one is None:
                continue
            stream = await self.store.stream(one.stream.project, one.stream.id)
            if stream is None:
                yield [self.finish(one, "erased", None)]
                continue
            one.stream = stream
            if self.holds_back(stream):
                continue
            before = one.at
            if before < stream.position:
                told = await (self.changes_of(one) if self.view.messages else self.entries_of(one))
                if told:
                    yield told
            if one.at >= stream.position and is_over(stream, self.sources.clock()):
                yield [self.finish(one, stream.state, stream.reason)]
            elif before < one.at < stream.position:
                self.changed.add(key)

    async def entries_of(self, one: Followed) -> list[Told]:
        told = []
        for row in await self.store.rows(one.stream.key, one.at, PAGE):
            one.at = row.position
            told.append(Told(self.place, Entry(one.stream.id, row)))
        return told

    async def changes_of(self, one: Followed) -> list[Told]:
        """What has changed in a memory, in one piece: with its place a reader has the history of that position."""
        key, memories = one.stream.key, self.sources.memories
        if one.keyed is None:
            memory = await memories.load(key, one.at)
            await memories.catch_up(key, memory, one.at)
            one.keyed = MessageDiff(memory.state, self.view.unfinished)
            if one.at:
                one.keyed.changes()
        state = one.keyed.state
        fold_all(state, decoded(await self.store.rows(key, state.position, PAGE)))
        one.at = max(one.at, state.position)
        changes = one.keyed.changes()
        return [Told(self.place, Changed(one.stream.id, one.at, changes))] if changes else []


def is_over(stream: Stream, now_ms: int) -> bool:
    """Whether a session is closed for good: nothing opens it again."""
    return stream.state == "ended" and not may_reopen(stream, now_ms)
