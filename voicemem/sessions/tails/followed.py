"""The memories that tails follow: many tails of a session share its read model, and what they were sent of it.

For each message that was sent, a digest is kept, once for all tails of a session that send the same. A tail that has
not been sent the newest yet keeps what it was sent of the turns that have changed since, and of no others.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakSet, WeakValueDictionary

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from voicemem.protocol.types import JsonObject, SessionId
from voicemem.sessions.lifecycle import StateName
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import LARGE_BYTES, LARGE_ROWS, ReadModel, took_long
from voicemem.store.streams import Stream
from voicemem.transcript.diff import NO_MESSAGES, Changes, Comparison, MessageMarks, TurnMarks, compare, mark_messages
from voicemem.transcript.state import State
from voicemem.transcript.turns import turn_report

T = TypeVar("T")
TURN_BYTES, BEHIND_BYTES = 250, 100
"""Bytes of a turn's marks besides its messages' marks; and of a turn in which a reader is behind."""
DIGEST_BYTES = 16
TURN_ENTRY_BYTES = 150
"""Bytes of a turn's digest, in the memory budget."""


class Step(NamedTuple):
    """A step of a tail: the changes for a reader that has everything before, the same for every such reader."""

    position: int
    seen_bytes: int
    before: dict[int, TurnMarks]
    """The turns that it changes, as they were."""
    sent: Any


class Reader:
    """The state of one tail: what it was sent last of what is followed, except in the turns of `behind`."""

    def __init__(self, followed: Followed[Any], position: int = 0, is_new: bool = False) -> None:
        self.followed = followed
        self.position = position
        self.is_new = is_new
        """True if it is to be sent all turns, seen before or not."""
        self.behind: dict[int, TurnMarks] = {}
        self.step: Step | None = None
        """The newest step of another reader, if that is all that this one has not been sent."""
        self.seen_bytes = 0
        """How many bytes of the journal were folded when it was last sent something."""

    async def read_changes(self, stream: Stream) -> Any:
        """Return the changes since the last time, None for nothing. Raises as `ReadModelCache.get`."""
        followed = self.followed
        async with followed.lock:
            step = self.step
            if step is not None and step.position >= stream.position:  # another was sent it: it is not compared again
                self.position, self.seen_bytes, self.step = step.position, step.seen_bytes, None
                return step.sent
            self.leave_step()
            newest = replace(stream, position=max(stream.position, followed.position))  # it may be of before the lock
            changes = await followed.read_models.read(
                newest, partial(followed.compare, self), partial(followed.is_large, self)
            )
            return None if changes is None else followed.apply(changes, self)

    def leave_step(self) -> None:
        if self.step is not None:
            self.behind, self.step = dict(self.step.before), None

    def miss(self, step: Step, is_level: bool) -> None:
        """Note a step that another reader was sent, which with `is_level` had been sent everything before."""
        if is_level and not self.behind and self.step is None:
            self.step = step
            return
        self.leave_step()
        for number, before in step.before.items():
            self.behind.setdefault(number, before)


class Followed(Generic[T]):
    """The followed state of one session, as it was seen last; it is there as long as a tail follows it.

    `lock` is held while a thread may compare it, so it changes on the event loop only, in one step.
    """

    def __init__(self, read_models: ReadModelCache) -> None:
        self.read_models = read_models
        self.readers: WeakSet[Reader] = WeakSet()
        self.lock = asyncio.Lock()
        self.position = 0
        self.was_slow = False
        """True if comparing it took long the last time."""
        self.charged = 0
        """Bytes in the memory budget."""

    def __del__(self) -> None:
        self.read_models.budget.followed -= self.charged

    def charge(self, taken: int) -> None:
        self.read_models.budget.followed += taken - self.charged
        self.charged = taken

    def is_large(self, reader: Reader, read_model: ReadModel) -> bool:
        if self.was_slow or read_model.has_large_refresh or len(reader.behind) > LARGE_ROWS:
            return True
        if not reader.is_new and read_model.folded_bytes - reader.seen_bytes > LARGE_BYTES:
            return True
        changed = read_model.turns_changed_since(0 if reader.is_new else self.position)
        return sum(1 for _ in islice(changed, LARGE_ROWS + 1)) > LARGE_ROWS

    def compare(self, reader: Reader, read_model: ReadModel) -> T | None:
        """Return a read model's changes since the last comparison; None if the session has been erased."""
        if read_model.position < self.position:
            return None
        began, changed = time.thread_time(), set(read_model.turns_changed_since(self.position))
        changes = self.differences(reader, read_model.state, changed)
        more = read_model.state.turn_numbers if reader.is_new else reader.behind
        self.was_slow = took_long(time.thread_time() - began, len(changed) + len(more))
        reader.seen_bytes = read_model.folded_bytes
        return changes

    def note_step(self, reader: Reader, position: int, before: dict[int, TurnMarks], sent: Any) -> None:
        """Note that a reader is sent the changes, and let other readers that are up to date be sent the same."""
        is_level = not (reader.behind or reader.is_new)
        step = Step(position, reader.seen_bytes, before, sent)
        self.position = reader.position = position
        reader.behind, reader.is_new = {}, False
        for other in self.readers:
            if other is not reader and not other.is_new:
                other.miss(step, is_level)

    def differences(self, reader: Reader, state: State, changed: set[int]) -> T:
        raise NotImplementedError

    def apply(self, changes: T, reader: Reader) -> Any:
        """Apply the changes, and return what one reader is sent. The others keep what they were sent."""
        raise NotImplementedError


class FollowedMemory(Followed[Comparison]):
    """The messages of a session, with or without those in progress."""

    def __init__(self, read_models: ReadModelCache, unfinished: bool) -> None:
        super().__init__(read_models)
        self.unfinished = unfinished
        self.marks = MessageMarks()
        self.marks_bytes = 0

    async def begin_reading(self, key: int, position: int) -> Reader:
        """Return a reader that has the memory as it was at a position. Raises as `ReadModelCache.get`."""
        async with self.lock:
            reader = Reader(self, position)
            if position == 0:
                reader.behind = dict.fromkeys(self.marks.turns, NO_MESSAGES)
            elif position != self.position:
                sent = await self.read_models.compute_as_of(
                    key, position, lambda read_model: mark_messages(read_model.state, self.unfinished)
                )
                if self.position == 0:
                    self.marks, self.position = sent, sent.position
                else:
                    seen = self.marks.turns
                    pairs = ((number, sent.turns.get(number, NO_MESSAGES)) for number in {*sent.turns, *seen})
                    reader.behind = {
                        number: marks for number, marks in pairs if marks.packed != seen.get(number, NO_MESSAGES).packed
                    }
            self.readers.add(reader)
            self.marks_bytes = sum(map(weight_of, self.marks.turns.values()))
            self.charge_marks()
            return reader

    def charge_marks(self) -> None:
        self.charge(self.marks_bytes + BEHIND_BYTES * sum(len(reader.behind) for reader in self.readers))

    def differences(self, reader: Reader, state: State, changed: set[int]) -> Comparison:
        return compare(state, self.unfinished, self.marks, changed, reader.behind)

    def apply(self, comparison: Comparison, reader: Reader) -> Changes:
        marks = self.marks
        before = {number: marks.turns.get(number, NO_MESSAGES) for number in comparison.turns}
        marks.turns |= comparison.turns
        self.marks_bytes += sum(map(weight_of, comparison.turns.values()))
        self.marks_bytes -= sum(weight_of(was) for was in before.values() if was is not NO_MESSAGES)
        marks.position, marks.shown, marks.progress = comparison.position, comparison.shown, comparison.progress
        self.note_step(reader, comparison.position, before, comparison.changes)
        self.charge_marks()
        return comparison.changes


def weight_of(marks: TurnMarks) -> int:
    return TURN_BYTES + len(marks.packed)


class TurnChanges(NamedTuple):
    """The turns with other digests at a position, and what one reader is to be sent."""

    position: int
    digests: dict[int, bytes]
    rows: list[JsonObject]


class FollowedTurns(Followed[TurnChanges]):
    """The turns of a session."""

    def __init__(self, read_models: ReadModelCache) -> None:
        super().__init__(read_models)
        self.digests: dict[int, bytes] = {}

    def begin_reading(self) -> Reader:
        """Return a reader that was sent nothing yet."""
        reader = Reader(self, is_new=True)
        self.readers.add(reader)
        return reader

    def differences(self, reader: Reader, state: State, changed: set[int]) -> TurnChanges:
        rows, digests = [], {}
        for number in sorted({*changed, *(state.turn_numbers if reader.is_new else reader.behind)}):
            row = turn_report(state, state.turns[number], marks=True)
            if number in changed:
                digest = blake2b(msgspec.json.encode(row), digest_size=DIGEST_BYTES).digest()
                if digest != self.digests.get(number):
                    digests[number] = digest
            if reader.is_new or number in reader.behind or number in digests:
                rows.append(row)
        return TurnChanges(state.position, digests, rows)

    def apply(self, turns: TurnChanges, reader: Reader) -> list[JsonObject]:
        self.digests |= turns.digests
        self.note_step(reader, turns.position, dict.fromkeys(turns.digests, NO_MESSAGES), turns.rows)
        self.charge(TURN_ENTRY_BYTES * len(self.digests))
        return turns.rows


class FollowedSessions:
    """The followed state of sessions, by session."""

    def __init__(self, read_models: ReadModelCache) -> None:
        self.read_models = read_models
        self.memories: WeakValueDictionary[tuple[int, bool], FollowedMemory] = WeakValueDictionary()
        self.turns: WeakValueDictionary[int, FollowedTurns] = WeakValueDictionary()

    async def read_memory(self, key: int, unfinished: bool, position: int) -> Reader:
        """Return a reader that has the memory of a session as it was at a position. Raises as `ReadModelCache.get`."""
        memory = self.memories.get((key, unfinished))
        if memory is None:
            memory = self.memories[key, unfinished] = FollowedMemory(self.read_models, unfinished)
        return await memory.begin_reading(key, position)

    def read_turns(self, key: int) -> Reader:
        turns = self.turns.get(key)
        if turns is None:
            turns = self.turns[key] = FollowedTurns(self.read_models)
        return turns.begin_reading()


class DetailsReader(Protocol):
    """Reads what a memory has besides its messages."""

    async def version(self, stream: Stream) -> Any:
        """Return a value that changes with the details."""

    async def read(self, stream: Stream) -> Struct:
        """Return all details, to be sent as they are."""


class TurnChange(NamedTuple):
    """A turn as it is now, which replaces the earlier one."""

    stream: Stream
    row: JsonObject


class CallState(Struct, frozen=True):
    """The state of the call, running or not. Times are Unix ms."""

    session_id: SessionId
    state: StateName
    reason: str | None
    ended_at: int | None
    position: int


class CallReader:
    """The state of one tail of a call. It is never resumed: a reader that returns is sent all of it again."""

    def __init__(self, turns: Reader, memory_details: DetailsReader) -> None:
        self.turns = turns
        self.memory_details = memory_details
        self.position = -1
        self.memory_version: Any = None
        self.state: tuple[str, str | None, int | None] | None = None

    async def read_changes(self, stream: Stream) -> list[Struct | TurnChange]:
        """Return the changes since the last time, the first time everything. Raises as `ReadModelCache.get`."""
        changes: list[Struct | TurnChange] = []
        section = stream.config.get("working_memory")
        is_shared = isinstance(section, dict) and section.get("scope") == "user"  # other sessions change it too
        if stream.position != self.position or is_shared:
            changes += [TurnChange(stream, row) for row in await self.turns.read_changes(stream) or ()]
            version = await self.memory_details.version(stream)
            if self.memory_version is None or version != self.memory_version:
                changes.append(await self.memory_details.read(stream))
                self.memory_version = version
            self.position = stream.position
        state = stream.state, stream.reason, stream.ended_ms
        if state != self.state:
            changes.append(CallState(stream.id, *state, stream.position))
            self.state = state
        return changes
