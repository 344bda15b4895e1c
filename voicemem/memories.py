"""Fold states, kept at hand: each is a cache of its journal at a position, and nobody owns it (design, section 9).

Every read compares positions and folds what is missing, so whatever was acknowledged is visible, on every node.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress

from voicemem import history, wire
from voicemem.admission import Stream
from voicemem.errors import StoreUnavailable
from voicemem.events import Journaled, RefusedEvent
from voicemem.fold import Entry, fold_all
from voicemem.messages import Message, ToolUse
from voicemem.state import VERSION, State, restore, snapshot
from voicemem.store.base import Journal, Row, Snapshot

PAGE = 500
"""Rows read and folded at once, so that a long journal does not hold up everybody else."""
SNAPSHOT_EVERY = 2_000
"""Entries after which a new snapshot is worth its writing."""


REFUSED = RefusedEvent(code="")
"""Stands in for any refused event: none of them changes a memory."""


class Memory:
    """One session's fold state, and its messages as they were last made."""

    def __init__(self, state: State, saved: int = 0) -> None:
        self.state = state
        self.saved = saved
        """Position of the snapshot that was last saved."""
        self.made: dict[int, list[Message]] = {}
        self.lock = asyncio.Lock()

    def fold(self, entries: Iterable[Entry]) -> None:
        fold_all(self.state, entries)

    def messages(self, unfinished: bool = False) -> list[Message]:
        """The memory in its order; with `unfinished`, what is in progress as well."""
        if unfinished:
            return history.messages(self.state, unfinished=True)
        for number in self.state.dirty:
            self.made[number] = history.turn_messages(self.state, self.state.turns[number])
        self.state.dirty.clear()
        return [message for number in self.state.numbers for message in self.made[number]]

    def tool_uses(self) -> list[ToolUse]:
        return history.tool_uses(self.state)


class Memories:
    """The memories of the sessions that were used last, at most `capacity` of them."""

    def __init__(self, journal: Journal, capacity: int = 10_000) -> None:
        self.journal = journal
        self.capacity = capacity
        self.cached: OrderedDict[int, Memory] = OrderedDict()

    async def at(self, stream: Stream) -> Memory:
        """The memory of a session, with at least everything up to its row's position."""
        memory = self.cached.get(stream.key)
        if memory is None:
            memory = self.cached.setdefault(stream.key, await self.load(stream.key, stream.position))
        self.cached.move_to_end(stream.key)
        async with memory.lock:
            await self.catch_up(stream.key, memory, stream.position)
        await self.save_when_worth(stream.key, memory)
        await self.evict()
        return memory

    async def as_of(self, key: int, position: int) -> list[Message]:
        """The messages of a session as they were at a position, whatever came after it."""
        memory = self.cached.get(key)
        if memory is None or memory.state.position > position:
            memory = await self.load(key, position)
        async with memory.lock:
            await self.catch_up(key, memory, position)
            if memory.state.position == position:
                return memory.messages()
        memory = await self.load(key, position)  # somebody else folded on meanwhile
        await self.catch_up(key, memory, position)
        return memory.messages()

    async def load(self, key: int, position: int) -> Memory:
        saved = await self.journal.load_snapshot(key, VERSION, position)
        if saved is None:
            return Memory(State())
        return Memory(restore(saved.state), saved.position)

    async def catch_up(self, key: int, memory: Memory, position: int) -> None:
        while memory.state.position < position:
            missing = position - memory.state.position
            rows = await self.journal.rows(key, memory.state.position, min(PAGE, missing))
            if not rows:
                return  # erased meanwhile
            memory.fold(decoded(rows))

    def note(self, key: int, position: int, received_ms: int, events: Sequence[Journaled | None]) -> None:
        """Fold what was just committed, when nothing is missing before it; a read finds the others.

        `events` begin at `position`; None stands for an entry that changes no memory.
        """
        memory = self.cached.get(key)
        if memory is not None and memory.state.position == position - 1 and not memory.lock.locked():
            memory.fold(
                Entry(place, received_ms, REFUSED if event is None else event)
                for place, event in enumerate(events, position)
            )

    def forget(self, key: int) -> None:
        self.cached.pop(key, None)

    def forget_all(self) -> None:
        """After a commit of unknown outcome nothing cached is trusted."""
        self.cached.clear()

    async def save_when_worth(self, key: int, memory: Memory, every: int = SNAPSHOT_EVERY) -> None:
        position = memory.state.position
        if position - memory.saved >= every:
            memory.saved = position
            with suppress(StoreUnavailable):  # a snapshot saves time, nothing else
                await self.journal.save_snapshot(key, Snapshot(position, VERSION, snapshot(memory.state)))

    async def evict(self) -> None:
        while len(self.cached) > self.capacity:
            key, memory = self.cached.popitem(last=False)
            await self.save_when_worth(key, memory, every=100)

    async def save_all(self) -> None:
        """At drain: the next process then replays little."""
        for key, memory in list(self.cached.items()):
            await self.save_when_worth(key, memory, every=100)


def decoded(rows: Iterable[Row]) -> list[Entry]:
    return [Entry(row.position, row.received_ms, wire.decode_journaled(row.payload)) for row in rows]
