"""One live tail: the journals of sessions, or their memories, as they grow.

A tail keeps no queue: whenever it is rung for, it reads from the store what comes after its place. So a reader that is
slow holds up nobody and costs one page, and nothing is missed or told twice. Who comes back with a place goes on there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import NamedTuple

from voicemem import places
from voicemem.admission import Stream, may_reopen
from voicemem.fold import fold_all
from voicemem.keyed import Changes, Keyed
from voicemem.memories import Memories, decoded
from voicemem.places import Several
from voicemem.store.base import Row, Store, StreamFilter

PAGE = 500
"""Entries that are read at a time."""
POLL_S = 0.5
"""What nobody rings for (closes, changes over REST, other processes on the store) is noticed so soon."""
MOST_SESSIONS = 256
"""Followed at a time by one tail: its places name each of them, and go into a header."""
LISTED = 1000
SLACK_MS = 5_000
"""New sessions are looked for from so long before the newest that is known."""


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
        self.keyed: Keyed | None = None
        """The memory as it was told, where memories are."""


class Sources(NamedTuple):
    """What tails read. `clock` gives Unix ms; they end when `draining` is set."""

    store: Store
    memories: Memories
    clock: Callable[[], int]
    draining: asyncio.Event


class Tail:
    """Follows the given session, or those that match a filter; `tell` is for one use.

    Of several, each that runs when the tail begins, or starts later, is told whole (with the state `ended`: once it
    has). `frontier` is the key up to which all were looked at: what is over and below it was told, or is not wanted.
    """

    def __init__(
        self, sources: Sources, view: View, followed: list[Followed], wanted: StreamFilter | None = None
    ) -> None:
        self.sources = sources
        self.store = sources.store
        self.view = view
        self.wanted = wanted
        self.followed = {one.stream.key: one for one in followed}
        self.frontier = 0
        self.seen_ms = 0
        """When the newest session that was looked at began, Unix ms."""
        self.rung = asyncio.Event()
        self.changed = set(self.followed)
        """Keys of sessions that may have more to tell."""
        self.found: dict[int, Stream] = {}
        """Sessions that match, were rung for, and are not followed."""

    @property
    def place(self) -> str:
        incarnation = self.store.incarnation
        positions = {key: one.at for key, one in self.followed.items()}
        if self.wanted is not None:
            return places.write_several(incarnation, Several(self.frontier, positions))
        ((key, position),) = positions.items()
        return places.write_one(incarnation, key, position)

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
        elif self.wanted is not None and self.has_room and matches(stream, self.wanted):
            self.found[stream.key] = stream
            self.rung.set()

    @property
    def has_room(self) -> bool:
        return len(self.followed) + len(self.found) < MOST_SESSIONS

    # Telling

    async def tell(self) -> AsyncIterator[list[Told]]:
        """What there is to tell, as it comes, and now and then nothing. Ends with its session, or with the service.

        Raises `StoreUnavailable`.
        """
        if self.wanted is not None:
            yield [Told(self.place, None)]
        time = asyncio.get_running_loop().time
        look_at = time() + POLL_S
        while not self.sources.draining.is_set():
            async for told in self.tell_changed():
                yield told
            if not self.followed and self.wanted is None:
                return
            if not self.changed:
                await self.wait(look_at - time())
            await self.take_found()
            if time() >= look_at:
                self.changed.update(self.followed)
                await self.look_for_new()
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
            if self.wanted is not None and self.wanted.state == "ended" != stream.state:
                continue
            before = one.at
            if before < stream.position:
                yield await (self.changes_of(one) if self.view.messages else self.entries_of(one))
            if one.at >= stream.position and is_over(stream, self.sources.clock()):
                yield [self.finish(one, stream.state, stream.reason)]
            elif before < one.at < stream.position:
                self.changed.add(key)

    def finish(self, one: Followed, state: str, reason: str | None) -> Told:
        """The end of a session; from the place of a lone one its reader gets nothing but the end again."""
        place = self.place
        del self.followed[one.stream.key]
        return Told(place if self.wanted is None else self.place, End(one.stream.id, state, reason))

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
            one.keyed = Keyed(memory.state, self.view.unfinished)
            if one.at:
                one.keyed.changes()
        state = one.keyed.state
        fold_all(state, decoded(await self.store.rows(key, state.position, PAGE)))
        one.at = max(one.at, state.position)
        changes = one.keyed.changes()
        return [Told(self.place, Changed(one.stream.id, one.at, changes))] if changes else []

    # Finding sessions

    async def listed(self, some: StreamFilter) -> list[Stream]:
        """Those of some sessions that match, by key."""
        assert self.wanted is not None
        found: list[Stream] = []
        after = None
        while True:
            page = await self.store.streams(
                StreamFilter(
                    project=some.project,
                    state=some.state,
                    started_after=some.started_after,
                    user_id=self.wanted.user_id,
                    label=self.wanted.label,
                    after=after,
                    limit=LISTED,
                )
            )
            found += page
            if len(page) < LISTED:
                return sorted(found, key=lambda stream: stream.key)
            after = page[-1].started_ms, page[-1].key

    async def look_for_new(self) -> None:
        """Follow what has begun; beyond the bound it waits until another one is over."""
        if self.wanted is None or len(self.followed) >= MOST_SESSIONS:
            return
        since = StreamFilter(project=self.wanted.project, started_after=self.seen_ms - SLACK_MS)
        self.admit([stream for stream in await self.listed(since) if stream.key > self.frontier])

    async def take_found(self) -> None:
        """Follow what was rung for: what is new, and older sessions that match only now."""
        if not self.found:
            return
        found, self.found = self.found, {}
        self.admit([stream for key, stream in sorted(found.items()) if key <= self.frontier])
        if max(found) > self.frontier:
            await self.look_for_new()

    def admit(self, streams: list[Stream]) -> None:
        """Follow these, as far as there is room."""
        for stream in streams:
            if stream.key in self.followed:
                continue
            if len(self.followed) >= MOST_SESSIONS:
                return
            self.followed[stream.key] = Followed(stream)
            self.changed.add(stream.key)
            self.see([stream])

    def see(self, streams: list[Stream]) -> None:
        """Note how far sessions were looked at."""
        self.frontier = max([self.frontier, *(stream.key for stream in streams)])
        self.seen_ms = max([self.seen_ms, *(stream.started_ms for stream in streams)])


def matches(stream: Stream, wanted: StreamFilter) -> bool:
    """Whether a session that runs is one of those wanted, whatever their state is to be."""
    if stream.project != wanted.project or stream.state != "running":
        return False
    if wanted.user_id is not None and stream.config.get("user_id") != wanted.user_id:
        return False
    return wanted.label is None or wanted.label in stream.config.get("labels", {}).items()


def is_over(stream: Stream, now_ms: int) -> bool:
    """Whether a session is closed for good: nothing opens it again."""
    return stream.state == "ended" and not may_reopen(stream, now_ms)
