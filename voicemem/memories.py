"""Fold states, kept at hand: each is a cache of its journal at a position, and nobody owns it (design, section 9).

Every read compares positions and folds what is missing, so whatever was acknowledged is visible, on every node.
"""

from __future__ import annotations

import asyncio
import zlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from voicemem import history, wire
from voicemem.admission import Stream
from voicemem.errors import StoreUnavailable
from voicemem.events import Incoming, Journaled
from voicemem.fold import Entry, advance, fold_all
from voicemem.messages import Message, ToolUse
from voicemem.state import VERSION, State, restore, snapshot
from voicemem.store.base import Journal, Row, Snapshot

PAGE = 500
"""Rows read and folded at once, so that a long journal does not hold up everybody else."""
SNAPSHOT_EVERY = 2_000
"""Entries after which a new snapshot is worth its writing."""


SAVED_TOGETHER = 200
"""Snapshots in one commit."""
PACKED_TOGETHER = 10
PACKING_S = 5.0
"""Between two rounds of packing; a memory is packed after two without use."""


class Memory:
    """One session's fold state, and its messages as they were last made.

    A memory that nobody used for a while is packed: a few KiB of compressed snapshot, unpacked by the next use.
    """

    def __init__(self, state: State, saved: int = 0) -> None:
        self.unpacked: State | None = state
        self.packed = b""
        self.position = state.position
        """Where a packed memory stands; see `stands_at`."""
        self.saved = saved
        """Position of the snapshot that was last saved."""
        self.made: dict[int, list[Message]] = {}
        """By turn."""
        self.joined: list[Message] = []
        self.begins: dict[int, int] = {}
        """Where each turn's messages begin among the joined ones."""
        self.text = b"[]"
        """The messages of the first turns as JSON; those of a turn that is over are encoded once."""
        self.ends: list[int] = []
        """Where each of these turns ends in it."""
        self.folded_bytes = 0
        """Of the journal, about: what it takes while it is in use."""
        self.lock = asyncio.Lock()
        self.used = 0
        """The round of packing before which it was used last."""

    @property
    def state(self) -> State:
        if self.unpacked is None:
            self.unpacked, self.packed = restore(zlib.decompress(self.packed)), b""
        return self.unpacked

    @property
    def stands_at(self) -> int:
        """The position up to which it is folded."""
        return self.position if self.unpacked is None else self.unpacked.position

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        return self.folded_bytes if self.unpacked is not None else len(self.packed)

    def pack(self) -> None:
        if self.unpacked is not None:
            self.position = self.unpacked.position
            self.packed = zlib.compress(snapshot(self.unpacked), 1)
            self.unpacked = None
            self.made, self.joined, self.begins = {}, [], {}
            self.text, self.ends = b"[]", []

    def fold(self, entries: Iterable[Entry]) -> None:
        fold_all(self.state, entries)

    def messages(self, unfinished: bool = False) -> list[Message]:
        """The memory in its order; with `unfinished`, what is in progress as well."""
        if unfinished:
            return history.messages(self.state, unfinished=True)
        self.make()
        return self.joined.copy()

    def contents(self) -> bytes:
        """The memory as a JSON array of messages."""
        self.make()
        missing = self.state.numbers[len(self.ends) :]
        if missing:
            pieces = [self.text[: self.ends[-1] if self.ends else 1]]
            end = len(pieces[0])
            for number in missing:
                piece = msgspec.json.encode(self.made[number])[1:-1]
                pieces.append(b"," + piece if piece and end > 1 else piece)
                end += len(pieces[-1])
                self.ends.append(end)
            self.text = b"".join((*pieces, b"]"))
        return self.text

    def make(self) -> None:
        """Make the messages of the turns that have changed, and join all from the first of these on."""
        state = self.state
        if not state.dirty:
            return
        for number in state.dirty:
            self.made[number] = history.turn_messages(state, state.turns[number])
        place = bisect_left(state.numbers, min(state.dirty))
        state.dirty.clear()
        before = state.numbers[place - 1] if place else None
        del self.ends[place:]
        del self.joined[0 if before is None else self.begins[before] + len(self.made[before]) :]
        for number in state.numbers[place:]:
            self.begins[number] = len(self.joined)
            self.joined += self.made[number]

    def tool_uses(self) -> list[ToolUse]:
        return history.tool_uses(self.state)


class Memories:
    """The memories of the sessions that were used last, at most `capacity` of them."""

    def __init__(self, journal: Journal, capacity: int = 20_000, budget: int = 512 * 1024 * 1024) -> None:
        self.journal = journal
        self.capacity = capacity
        self.budget = budget
        """Bytes that they may take together, about."""
        self.cached: OrderedDict[int, Memory] = OrderedDict()
        self.round = 0

    async def at(self, stream: Stream) -> Memory:
        """The memory of a session, with at least everything up to its row's position."""
        memory = self.cached.get(stream.key)
        if memory is None:
            memory = self.cached.setdefault(stream.key, await self.load(stream.key, stream.position))
        self.cached.move_to_end(stream.key)
        memory.used = self.round
        if memory.stands_at < stream.position:
            async with memory.lock:
                await self.catch_up(stream.key, memory, stream.position)
        await self.save_when_worth(stream.key, memory)
        await self.evict()
        return memory

    async def as_of(self, key: int, position: int) -> list[Message]:
        """The messages of a session as they were at a position, whatever came after it."""
        memory = self.cached.get(key)
        if memory is None or memory.stands_at > position:
            memory = await self.load(key, position)
        async with memory.lock:
            await self.catch_up(key, memory, position)
            if memory.stands_at == position:
                return memory.messages()
        memory = await self.load(key, position)  # somebody else folded on meanwhile
        await self.catch_up(key, memory, position)
        return memory.messages()

    async def load(self, key: int, position: int) -> Memory:
        saved = await self.journal.load_snapshot(key, VERSION, position)
        if saved is None:
            return Memory(State())
        memory = Memory(restore(saved.state), saved.position)
        memory.folded_bytes = 3 * len(saved.state)
        return memory

    async def catch_up(self, key: int, memory: Memory, position: int) -> None:
        while memory.stands_at < position:
            missing = position - memory.stands_at
            rows = await self.journal.rows(key, memory.stands_at, min(PAGE, missing))
            if not rows:
                return  # erased meanwhile
            memory.fold(decoded(rows))
            memory.folded_bytes += sum(len(row.payload) for row in rows)

    def note(
        self, key: int, position: int, received_ms: int, events: Sequence[Incoming | Journaled], size: int = 0
    ) -> None:
        """Fold events that were just committed, the first at `position`, when nothing is missing before it.

        A read finds the others. `size` is that of their payloads in bytes.
        """
        memory = self.cached.get(key)
        if memory is not None and memory.stands_at == position - 1 and not memory.lock.locked():
            state, memory.used = memory.state, self.round
            memory.folded_bytes += size
            for place, event in enumerate(events, position):
                advance(state, place, received_ms, event)

    def forget(self, key: int) -> None:
        self.cached.pop(key, None)

    def forget_all(self) -> None:
        """After a commit of unknown outcome nothing cached is trusted."""
        self.cached.clear()

    async def save_when_worth(self, key: int, memory: Memory, every: int = SNAPSHOT_EVERY) -> None:
        position = memory.stands_at
        if position - memory.saved >= every:
            memory.saved = position
            with suppress(StoreUnavailable):  # a snapshot saves time, nothing else
                await self.journal.save_snapshot(key, Snapshot(position, VERSION, snapshot(memory.state)))

    async def pack_idle(self) -> None:
        """Pack what was not used since the round before the last; a few at a time, so that nobody waits for it."""
        idle = [one for one in self.cached.values() if one.unpacked is not None and one.used < self.round]
        self.round += 1
        for count, memory in enumerate(idle, 1):
            if memory.used < self.round - 1 and not memory.lock.locked():
                memory.pack()
            if count % PACKED_TOGETHER == 0:
                await asyncio.sleep(0)
        await self.evict(weigh=True)

    async def evict(self, weigh: bool = False) -> None:
        """Let go of those that were read longest ago while they are too many, or (when weighed) too large."""
        excess = sum(memory.weight for memory in self.cached.values()) - self.budget if weigh else 0
        while self.cached and (len(self.cached) > self.capacity or excess > 0):
            excess -= next(iter(self.cached.values())).weight
            key, memory = self.cached.popitem(last=False)
            await self.save_when_worth(key, memory, every=100)

    async def save_all(self, timeout_s: float) -> None:
        """At drain, as many as there is time for: the next process then replays little."""
        waiting = list(self.cached.items())
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for first in range(0, len(waiting), SAVED_TOGETHER):
                    together = waiting[first : first + SAVED_TOGETHER]
                    await asyncio.gather(*(self.save_when_worth(key, memory, every=100) for key, memory in together))


def decoded(rows: Iterable[Row]) -> list[Entry]:
    """Journal rows for the fold. Raises `StoreUnavailable` for what the store has not kept as it was."""
    try:
        return [Entry(row.position, row.received_ms, wire.decode_journaled(row.payload)) for row in rows]
    except wire.MALFORMED:
        raise StoreUnavailable("An event is damaged in the store.") from None


async def pack_forever(memories: Memories) -> None:
    """Pack what is idle, every few seconds."""
    while True:
        await asyncio.sleep(PACKING_S)
        await memories.pack_idle()
