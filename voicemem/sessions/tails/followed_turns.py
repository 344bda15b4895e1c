"""The turns that tails of calls follow: what has changed since a reader was sent something, for many readers of a call.

A digest of each turn is kept, once for all tails of a session. A turn never goes, so a reader that begins or returns is
sent all of them, each in place of what it has.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple
from weakref import WeakSet, WeakValueDictionary

import msgspec
from msgspec.structs import replace

from voicemem.protocol.types import JsonObject
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import LARGE_ROWS, ReadModel, took_long
from voicemem.store.streams import Stream
from voicemem.transcript.turns.report import turn_report

DIGEST_BYTES = 16
TURN_BYTES = 150
"""What the digest of a turn takes, in the memory budget."""


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
        """Compare a read model with what was seen; None if the session was erased meanwhile."""
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
        taken = TURN_BYTES * len(self.digests)
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
