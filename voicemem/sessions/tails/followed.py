"""The memories that tails follow: many tails of a session share its read model, and what they were sent of it.

For each message that was sent, a digest is kept, once for all tails of a session that send the same. A tail that has
not been sent the newest yet keeps what it was sent of the turns that have changed since, and of no others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet, WeakValueDictionary

import msgspec
from msgspec.structs import replace

from voicemem.protocol.types import JsonObject
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import LARGE_BYTES, LARGE_ROWS, ReadModel, took_long
from voicemem.store.streams import Stream
from voicemem.transcript.diff import NO_MESSAGES, Changes, Comparison, MessageMarks, TurnMarks, compare, mark_messages
from voicemem.transcript.turns import turn_report

TURN_BYTES, BEHIND_BYTES = 250, 100
"""What the marks of a turn take besides those of its messages; and a turn that a reader was sent something else of."""
DIGEST_BYTES = 16
TURN_ENTRY_BYTES = 150
"""What the digest of a turn takes, in the memory budget."""


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
        """Compare a read model with what was seen and sent; None if the session has been erased."""
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


class FollowedTurns:
    """The turns of sessions, each as long as a tail follows it."""

    def __init__(self, read_models: ReadModelCache) -> None:
        self.read_models = read_models
        self.followed: WeakValueDictionary[int, TurnsOfSession] = WeakValueDictionary()

    def begin_reading(self, key: int) -> TurnReader:
        """A reader that was sent nothing yet."""
        turns = self.followed.get(key)
        if turns is None:
            turns = self.followed[key] = TurnsOfSession(self.read_models)
        reader = TurnReader(turns)
        turns.readers.add(reader)
        return reader


class TurnChanges(NamedTuple):
    """The turns with other digests at a position, and what one reader is to be sent."""

    position: int
    digests: dict[int, bytes]
    rows: list[JsonObject]


class TurnsOfSession:
    """The turns of one session as they were seen last. `lock` is held while a thread may compare them."""

    def __init__(self, read_models: ReadModelCache) -> None:
        self.read_models = read_models
        self.position = 0
        self.digests: dict[int, bytes] = {}
        self.readers: WeakSet[TurnReader] = WeakSet()
        self.lock = asyncio.Lock()
        self.was_slow = False
        """Whether comparing them took long the last time."""
        self.charged = 0

    def __del__(self) -> None:
        self.read_models.budget.followed -= self.charged

    async def read_changes(self, stream: Stream, reader: TurnReader) -> list[JsonObject]:
        """The turns that have changed for a reader. Raises as `ReadModelCache.get`."""
        async with self.lock:
            newest = replace(stream, position=max(stream.position, self.position))
            is_large = partial(self.is_large, reader)
            changes = await self.read_models.read(newest, partial(self.compare, reader), is_large)
            if changes is None:
                return []
            self.apply(changes, reader)
            return changes.rows

    def is_large(self, reader: TurnReader, read_model: ReadModel) -> bool:
        """Whether comparing is too much for the event loop."""
        if self.was_slow or read_model.slow_refresh or read_model.has_large_refresh or len(reader.behind) > LARGE_ROWS:
            return True
        changed = read_model.turns_changed_since(0 if reader.is_new else self.position)
        return sum(1 for _ in islice(changed, LARGE_ROWS + 1)) > LARGE_ROWS

    def compare(self, reader: TurnReader, read_model: ReadModel) -> TurnChanges | None:
        """Compare a read model with what was seen; None if the session has been erased."""
        if read_model.position < self.position:
            return None
        began, changed, state = time.thread_time(), set(read_model.turns_changed_since(self.position)), read_model.state
        wanted = state.turn_numbers if reader.is_new else sorted(changed | reader.behind)
        rows, digests = [], {}
        for number in sorted({*wanted, *changed}):
            row = turn_report(state, state.turns[number], marks=True)
            if number in changed:
                digest = blake2b(msgspec.json.encode(row), digest_size=DIGEST_BYTES).digest()
                if digest != self.digests.get(number):
                    digests[number] = digest
            if reader.is_new or number in reader.behind or number in digests:
                rows.append(row)
        self.was_slow = took_long(time.thread_time() - began, len(changed) + len(wanted))
        return TurnChanges(read_model.position, digests, rows)

    def apply(self, changes: TurnChanges, reader: TurnReader) -> None:
        """Note what was seen, and that one reader is sent it."""
        for other in self.readers:
            if other is not reader and not other.is_new:
                other.behind |= changes.digests.keys()
        self.digests |= changes.digests
        self.position = changes.position
        reader.behind, reader.is_new = set(), False
        taken = TURN_ENTRY_BYTES * len(self.digests)
        self.read_models.budget.followed += taken - self.charged
        self.charged = taken


class TurnReader:
    """What one tail was sent of the turns: all as they were seen last, except those in `behind`."""

    def __init__(self, turns: TurnsOfSession) -> None:
        self.turns = turns
        self.behind: set[int] = set()
        self.is_new = True
        """Whether it was sent nothing yet."""

    async def read_changes(self, stream: Stream) -> list[JsonObject]:
        """The turns that have changed since the last time, or all of them. Raises as `ReadModelCache.get`."""
        return await self.turns.read_changes(stream, self)


class AccountReader(Protocol):
    """Reads what a memory has besides its messages."""

    async def version(self, stream: Stream) -> Any:
        """Something that differs when that does."""

    async def read(self, stream: Stream) -> Any:
        """All of it, to be sent as it is."""


class TurnChange(NamedTuple):
    """A turn as it is now, in place of what was sent of it before."""

    stream: Stream
    row: JsonObject


class AccountChange(NamedTuple):
    """What the memory has besides its messages."""

    account: Any


class StateChange(NamedTuple):
    """Whether the session runs, as its row says."""

    stream: Stream


CallContent = TurnChange | AccountChange | StateChange


class CallReader:
    """What one tail was sent of a call. It is never resumed: a reader that returns is sent all of it again."""

    def __init__(self, turns: TurnReader, accounts: AccountReader) -> None:
        self.turns = turns
        self.accounts = accounts
        self.position = -1
        self.account_version: Any = None
        self.state: tuple[str, str | None, int | None] | None = None

    async def read_changes(self, stream: Stream) -> list[CallContent]:
        """What has changed since the last time, the first time everything. Raises as `ReadModelCache.get`."""
        found: list[CallContent] = []
        if stream.position != self.position or shares_document(stream):
            found += [TurnChange(stream, row) for row in await self.turns.read_changes(stream)]
            version = await self.accounts.version(stream)
            if self.account_version is None or version != self.account_version:
                found.append(AccountChange(await self.accounts.read(stream)))
                self.account_version = version
            self.position = stream.position
        state = stream.state, stream.reason, stream.ended_ms
        if state != self.state:
            found.append(StateChange(stream))
            self.state = state
        return found


def shares_document(stream: Stream) -> bool:
    """Whether the session works on its user's document, which other sessions change too."""
    section = stream.config.get("working_memory")
    return isinstance(section, dict) and section.get("scope") == "user"
