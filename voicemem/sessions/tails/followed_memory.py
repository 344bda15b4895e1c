"""The memories that tails follow: many tails of a session share its read model, and what they were sent of it.

For each message that was sent, a digest is kept, once for all tails of a session that send the same. A tail that has
not been sent the newest yet keeps what it was sent of the turns that have changed since, and of no others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from itertools import islice
from weakref import WeakSet, WeakValueDictionary

from msgspec.structs import replace

from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import LARGE_BYTES, LARGE_ROWS, ReadModel, took_long
from voicemem.store.streams import Stream
from voicemem.transcript.diff import NO_MESSAGES, Changes, Comparison, MessageMarks, TurnMarks, compare, mark_messages

TURN_BYTES, BEHIND_BYTES = 250, 100
"""What the marks of a turn take besides those of its messages; and a turn that a reader was sent something else of."""


class FollowedMemories:
    """The memories of sessions, each as long as a tail follows it."""

    def __init__(self, read_models: ReadModelCache) -> None:
        self.read_models = read_models
        self.followed: WeakValueDictionary[tuple[int, bool], FollowedMemory] = WeakValueDictionary()

    async def begin_reading(self, key: int, unfinished: bool, position: int) -> MemoryReader:
        """A reader that has the memory of a session as it was at a position. Raises as `ReadModelCache.get`."""
        memory = self.followed.get((key, unfinished))
        if memory is None:
            memory = self.followed[key, unfinished] = FollowedMemory(self.read_models, unfinished)
        return await memory.begin_reading(key, position)


class FollowedMemory:
    """The memory of one session as it was seen last, with or without what is in progress.

    `lock` is held while a thread may compare it, so it changes on the event loop only, in one step.
    """

    def __init__(self, read_models: ReadModelCache, unfinished: bool) -> None:
        self.read_models = read_models
        self.unfinished = unfinished
        self.marks = MessageMarks()
        self.readers: WeakSet[MemoryReader] = WeakSet()
        self.lock = asyncio.Lock()
        self.was_slow = False
        """Whether comparing it took long the last time."""
        self.marks_bytes = 0
        """What the marks take, and with what readers were sent instead of them (`charged`) in the memory budget."""
        self.charged = 0

    def __del__(self) -> None:
        self.read_models.budget.followed -= self.charged

    @property
    def position(self) -> int:
        return self.marks.position

    async def begin_reading(self, key: int, position: int) -> MemoryReader:
        async with self.lock:
            reader = MemoryReader(self, position)
            if position == 0:
                reader.behind = dict.fromkeys(self.marks.turns, NO_MESSAGES)
            elif position != self.position:
                mark = partial(mark_memory, unfinished=self.unfinished)
                sent = await self.read_models.compute_as_of(key, position, mark)
                if self.position == 0:
                    self.marks = sent
                else:
                    reader.behind = differing(sent.turns, self.marks.turns)
            self.readers.add(reader)
            self.marks_bytes = sum(map(weight_of, self.marks.turns.values()))
            self.charge()
            return reader

    def charge(self) -> None:
        """Bring up to date what the budget knows of it."""
        taken = self.marks_bytes + BEHIND_BYTES * sum(len(reader.behind) for reader in self.readers)
        self.read_models.budget.followed += taken - self.charged
        self.charged = taken

    async def read_changes(self, stream: Stream, reader: MemoryReader) -> Changes:
        """What has changed for a reader, up to the newest of the session's memory."""
        async with self.lock:
            newest = replace(stream, position=max(stream.position, self.position))  # the row may be of before the lock
            is_large = partial(self.is_large, reader)
            comparison = await self.read_models.read(newest, partial(self.compare, reader), is_large)
            if comparison is None:
                return Changes([], [])
            self.apply(comparison, reader)
            return comparison.changes

    def is_large(self, reader: MemoryReader, read_model: ReadModel) -> bool:
        """Whether comparing is too much for the event loop."""
        if self.was_slow or read_model.slow_refresh or len(reader.behind) > LARGE_ROWS:
            return True
        if read_model.folded_bytes - reader.seen_bytes > LARGE_BYTES:
            return True
        changed = read_model.turns_changed_since(self.position)
        return sum(1 for _ in islice(changed, LARGE_ROWS + 1)) > LARGE_ROWS

    def compare(self, reader: MemoryReader, read_model: ReadModel) -> Comparison | None:
        """Compare a read model with what was seen and sent; None if the session was erased meanwhile."""
        if read_model.position < self.position:
            return None
        began, changed = time.thread_time(), set(read_model.turns_changed_since(self.position))
        comparison = compare(read_model.state, self.unfinished, self.marks, changed, reader.behind)
        self.was_slow = took_long(time.thread_time() - began, len(changed) + len(reader.behind))
        reader.seen_bytes = read_model.folded_bytes
        return comparison

    def apply(self, comparison: Comparison, reader: MemoryReader) -> None:
        """Note what was seen, and that one reader is sent it. The others keep what they were sent before."""
        marks = self.marks
        others = [other for other in self.readers if other is not reader]
        for number, now in comparison.turns.items():
            before = marks.turns.get(number, NO_MESSAGES)
            for other in others:
                other.behind.setdefault(number, before)
            marks.turns[number] = now
            self.marks_bytes += weight_of(now) - (0 if before is NO_MESSAGES else weight_of(before))
        marks.position, marks.shown, marks.progress = comparison.position, comparison.shown, comparison.progress
        reader.behind, reader.position = {}, comparison.position
        self.charge()


class MemoryReader:
    """What one tail was sent of a memory: what was seen last, except in the turns of `behind`."""

    def __init__(self, memory: FollowedMemory, position: int) -> None:
        self.memory = memory
        self.position = position
        self.behind: dict[int, TurnMarks] = {}
        self.seen_bytes = 0
        """How many bytes of the journal were folded when it was sent something last."""

    async def read_changes(self, stream: Stream) -> Changes:
        """What has changed since the last time; the first time, since its position. Raises as `ReadModelCache.get`."""
        return await self.memory.read_changes(stream, self)


def weight_of(marks: TurnMarks) -> int:
    """About how many bytes the marks of a turn take."""
    return TURN_BYTES + len(marks.packed)


def mark_memory(read_model: ReadModel, unfinished: bool) -> MessageMarks:
    return mark_messages(read_model.state, unfinished)


def differing(sent: Mapping[int, TurnMarks], seen: Mapping[int, TurnMarks]) -> dict[int, TurnMarks]:
    """What was sent of the turns in which something else was seen."""
    pairs = ((number, sent.get(number, NO_MESSAGES)) for number in {*sent, *seen})
    return {number: marks for number, marks in pairs if marks.packed != seen.get(number, NO_MESSAGES).packed}
