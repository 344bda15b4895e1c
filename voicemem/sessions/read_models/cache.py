"""The cache of read models: each is the fold of a journal up to a position, and nothing owns it (docs/storage.md).

Every read compares positions and folds what is missing, so what was acknowledged is visible on every node.

Small work is done on the event loop, and all else on threads (`off_loop`), with the read model's lock held: while it is
held nobody else may look at the read model, and whoever got it from `get` may do so until the next `await`.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TypeVar

from voicemem.errors import DamagedEntry, SessionSetAside, StoreUnavailable, VoicememError
from voicemem.protocol.events import FrameEvent, IncomingEvent, JournaledEvent
from voicemem.protocol.strict_json import MALFORMED
from voicemem.runtime import Clock, now_ms
from voicemem.sessions.read_models.off_loop import BUDGET_S, BudgetExhausted, OffLoop
from voicemem.sessions.read_models.read_model import (
    LARGE_BYTES,
    LARGE_ROWS,
    SLOW_S,
    ReadModel,
    decompress_state,
    took_long,
)
from voicemem.sessions.read_models.set_aside import SetAsideSessions
from voicemem.store.port import Store
from voicemem.store.records import JournalRow, Snapshot
from voicemem.store.streams import Stream
from voicemem.transcript.fold import digest_of, fold_event, frame_id
from voicemem.transcript.state import SNAPSHOT_VERSION, State, decode_state

LOG = logging.getLogger("voicemem")
T = TypeVar("T")
FOLD_PAGE = 500
"""Rows read and folded at a time, so that a long journal does not block the event loop."""
SNAPSHOT_EVERY = 2_000
"""Entries after which a new snapshot is worth its cost."""
UNPACK_MIN = 8
"""A packed read model is unpacked for this many entries at a time; fewer wait in the journal."""
LARGE_PACKED = 16 * 1024
"""Bytes of a packed read model that is unpacked off the event loop."""
MAX_LAG = 64
"""Entries that a packed read model may be behind its journal."""
WATCHED_FOLDS = 2_000
"""Folds on the event loop that are measured after a commit that was slow: a commit has up to 1,000."""
IS_LARGE = attrgetter("is_large")


class ReadModelCache:
    """The read models of the sessions that were used last, at most `capacity` of them.

    Together they may take about `budget` bytes, and those that are not packed about `unpacked_budget` of these. A piece
    of work off the event loop may take `cpu_budget_s` seconds of CPU; a session that takes longer, or fails, is set
    aside. `count_ignored` is called with a bound and how many events the fold has left out because of it.
    """

    def __init__(
        self,
        journal: Store,
        capacity: int = 20_000,
        budget: int = 512 * 1024 * 1024,
        unpacked_budget: int = 32 * 1024 * 1024,
        *,
        cpu_budget_s: float = BUDGET_S,
        clock: Clock = now_ms,
        count_ignored: Callable[[str, int], None] = lambda bound, count: None,
    ) -> None:
        self.journal = journal
        self.capacity = capacity
        self.budget = budget
        self.unpacked_budget = unpacked_budget
        self.off_loop = OffLoop(cpu_budget_s)
        self.set_aside = SetAsideSessions(journal, clock)
        self.count_ignored = count_ignored
        self.lagging: set[int] = set()
        """Keys of read models that are to be folded further in the background."""
        self.failed: dict[int, int] = {}
        """By key, the position up to which a fold has just failed; the background looks whether it fails again."""
        self.cached: OrderedDict[int, ReadModel] = OrderedDict()
        self.rounds = 0
        self.watched_folds = 0
        """How many of the next folds on the event loop are measured."""

    # Reading

    async def get(self, stream: Stream) -> ReadModel:
        """The read model of a session, folded at least up to the position of its row, with its messages made.

        It is valid until the caller awaits. Raises `SessionSetAside`, `StoreUnavailable`.
        """
        return await self.prepare_cached(stream, with_messages=True)

    async def get_state(self, stream: Stream) -> State:
        """The fold state alone, where no messages are needed; valid until the caller awaits. Raises as `get`."""
        return (await self.prepare_cached(stream, with_messages=False)).state

    async def read(
        self, stream: Stream, make: Callable[[ReadModel], T], is_large: Callable[[ReadModel], bool] = IS_LARGE
    ) -> T:
        """What `make` returns for the read model of a session; it runs off the event loop where that `is_large`.

        `make` must not wait, and what it returns must not change with later events. Raises as `get`.
        """
        while True:
            memory = await self.get(stream)
            if not is_large(memory):
                return make(memory)
            async with memory.lock:
                if self.cached.get(stream.key) is memory and memory.unpacked is not None:
                    return await self.perform(stream.key, memory, partial(make, memory), off_loop=True)

    async def compute_as_of(
        self, key: int, position: int, make: Callable[[ReadModel], T], background: bool = False
    ) -> T:
        """The same for a session's read model as it was at a position."""
        memory = self.cached.get(key)
        if memory is not None and memory.loaded:
            async with memory.lock:
                if self.cached.get(key) is memory and memory.position <= position:
                    await self.prepare(key, memory, position, background)
                    if memory.position == position:
                        return await self.perform(key, memory, partial(make, memory), memory.is_large, background)
        memory = await self.load_as_of(key, position, background)
        return await self.perform(key, memory, partial(make, memory), memory.is_large, background)

    async def load_as_of(self, key: int, position: int, background: bool = False) -> ReadModel:
        """A read model as of a position, which belongs to the caller. Raises as `get`."""
        memory = new_read_model()
        await self.prepare(key, memory, position, background)
        return memory

    async def refold(self, stream: Stream) -> None:
        """Make a session's memory from its whole journal, and put it back if it was set aside. Raises as `get`."""
        memory = ReadModel(State())
        await self.catch_up(stream.key, memory, stream.position)
        await self.perform(stream.key, memory, memory.refresh, off_loop=True)
        await self.save_snapshot_if_due(stream.key, memory, every=1)
        self.discard(stream.key)
        await self.set_aside.put_back(stream.key)

    async def prepare_cached(self, stream: Stream, with_messages: bool) -> ReadModel:
        """The cached read model of a session, made ready for a caller that does not wait before it reads."""
        key, position, is_kept = stream.key, stream.position, False
        while True:
            memory = self.cached.get(key)
            if memory is None:
                memory = self.cached[key] = new_read_model()
            self.cached.move_to_end(key)
            memory.last_round = self.rounds
            if not is_ready(memory, position, with_messages):
                async with memory.lock:
                    if self.cached.get(key) is not memory:
                        continue
                    await self.prepare(key, memory, position)
                    if with_messages and memory.state.dirty_turns:
                        await self.perform(key, memory, memory.refresh, memory.has_large_refresh)
            if is_kept or not (self.is_worth_saving(memory, SNAPSHOT_EVERY) or len(self.cached) > self.capacity):
                return memory
            is_kept = True  # what follows awaits, so the read model may have to be made ready again
            await self.save_snapshot_if_due(key, memory)
            await self.evict()

    async def prepare(self, key: int, memory: ReadModel, position: int, background: bool = False) -> None:
        """Load, unpack and fold a read model, whose lock is held or which is the caller's own, up to a position."""
        if not memory.loaded:
            try:
                await self.load(key, memory, position, background)
            finally:
                if not memory.loaded:
                    self.drop(key, memory)
        if memory.unpacked is None:
            unpack = partial(decompress_state, memory.packed)
            memory.restore(await self.perform(key, memory, unpack, len(memory.packed) > LARGE_PACKED, background))
        await self.catch_up(key, memory, position, background)

    async def load(self, key: int, memory: ReadModel, position: int, background: bool = False) -> None:
        """Begin with the stored snapshot, if there is one up to a position. Raises `SessionSetAside` if it is."""
        await self.set_aside.check(key)
        saved = await self.journal.load_snapshot(key, SNAPSHOT_VERSION, position)
        if saved is not None:
            size = len(saved.state)
            decode = partial(decode_snapshot, saved.state)
            state = await self.perform(key, memory, decode, size > LARGE_BYTES, background)
        if saved is not None and state is not None:
            memory.restore(state)
            memory.saved_position, memory.folded_bytes = saved.position, 3 * size
            memory.counted = dict(memory.state.ignored) or None
        memory.loaded = True

    async def catch_up(self, key: int, memory: ReadModel, position: int, background: bool = False) -> None:
        """Fold what is missing up to a position, a page at a time."""
        while memory.position < position:
            rows = await self.read_rows(key, memory, memory.position, min(FOLD_PAGE, position - memory.position))
            if not rows:
                return  # the session was erased meanwhile
            size = sum(len(row.payload) for row in rows)
            off_loop = len(rows) > LARGE_ROWS or size > LARGE_BYTES or memory.slow_fold
            await self.perform(key, memory, partial(memory.fold_rows, rows), off_loop, background)
            if memory.unpacked is not None and memory.unpacked.ignored and self.cached.get(key) is memory:
                self.note_ignored(memory)

    async def read_rows(self, key: int, memory: ReadModel | None, after: int, limit: int) -> list[JournalRow]:
        """The next rows of the journal; a damaged one sets the session aside. Raises as `get`."""
        try:
            return await self.journal.read_rows(key, after, limit)
        except DamagedEntry as error:
            raise await self.give_up(key, memory, error) from None

    # Work

    async def perform(
        self,
        key: int,
        memory: ReadModel | None,
        work: Callable[[], T],
        off_loop: bool,
        background: bool = False,
    ) -> T:
        """The result of work on a session's read model; when it fails or takes too long the session is set aside.

        Whatever stops the work half-way, the read model is dropped, and never shown. Raises `SessionSetAside`.
        """
        try:
            return await self.off_loop.run(work, background) if off_loop else work()
        except (Exception, BudgetExhausted) as error:
            if isinstance(error, VoicememError) and not isinstance(error, DamagedEntry):
                raise
            raise await self.give_up(key, memory, error) from None
        except BaseException:
            self.drop(key, memory)
            raise

    async def give_up(self, key: int, memory: ReadModel | None, error: BaseException) -> SessionSetAside:
        """Set a session aside; the error to raise."""
        self.drop(key, memory)
        await self.set_aside.add(key, error)
        return SessionSetAside()

    def drop(self, key: int, memory: ReadModel | None) -> None:
        """Forget a read model, if it is the one that is cached."""
        if memory is not None and self.cached.get(key) is memory:
            del self.cached[key]

    # Commits

    def fold_committed(
        self,
        key: int,
        position: int,
        received_ms: int,
        events: Sequence[IncomingEvent | JournaledEvent],
        producer: str | None,
        size: int = 0,
    ) -> None:
        """Fold events that were just committed, the first at `position`, if nothing is missing before them.

        A packed read model is not unpacked for a few events, and many bytes are not folded on the event loop: a read or
        a round of maintenance folds them later. `size` is that of their payloads in bytes. It never raises: they are
        acknowledged already. This is the hot path: it runs for every commit, in the recorder's task.
        """
        memory = self.cached.get(key)
        if memory is None:
            return
        worth = memory.unpacked is not None or (len(events) >= UNPACK_MIN and len(memory.packed) <= LARGE_PACKED)
        large = size > LARGE_BYTES or memory.slow_fold
        if worth and not large and memory.position == position - 1 and not memory.lock.locked():
            began = time.thread_time() if self.watched_folds else None
            try:
                state, memory.last_round = memory.state, self.rounds
                memory.folded_bytes += size
                for place, event in enumerate(events, position):
                    fold_event(state, place, received_ms, event, producer)
            except Exception:  # read again off the loop, it fails there too, and is set aside
                self.drop(key, memory)
                self.failed[key] = position + len(events) - 1
                return
            if began is not None:
                self.watched_folds -= 1
                memory.slow_fold = took_long(time.thread_time() - began, len(events))
            if state.ignored:
                self.note_ignored(memory)
            return
        memory.known_position = position + len(events) - 1
        if large or memory.known_position - memory.position > MAX_LAG:
            self.lagging.add(key)

    def note_commit(self, seconds: float) -> None:
        """Note how long folding a whole commit took, by the wall's clock: after a long one it is measured who is slow.

        The CPU time of every fold would cost more than many a fold does.
        """
        if seconds > SLOW_S:
            self.watched_folds = WATCHED_FOLDS

    def note_ignored(self, memory: ReadModel) -> None:
        """Count the events that the fold has left out since the last time."""
        counted = memory.counted = memory.counted or {}
        for bound, count in memory.state.ignored.items():
            if count > counted.get(bound, 0):
                self.count_ignored(bound, count - counted.get(bound, 0))
                counted[bound] = count

    def has_frame(self, key: int, frame: FrameEvent) -> bool:
        """Whether a frame of this id was folded before, as far as that is known at once; the fold itself is sure."""
        memory = self.cached.get(key)
        state = None if memory is None or memory.lock.locked() else memory.unpacked
        return state is not None and digest_of(frame_id(frame)) in state.event_ids

    def discard(self, key: int) -> None:
        self.cached.pop(key, None)

    def discard_all(self) -> None:
        """Drop everything: after a commit of unknown outcome nothing cached can be trusted."""
        self.cached.clear()

    # Snapshots

    def is_worth_saving(self, memory: ReadModel, every: int) -> bool:
        return memory.position - memory.saved_position >= every

    async def save_snapshot_if_due(self, key: int, memory: ReadModel, every: int = SNAPSHOT_EVERY) -> None:
        if self.is_worth_saving(memory, every):
            position = memory.saved_position = memory.position
            encoded = await self.encode(memory, memory.encode_state)
            if encoded is not None and memory.position == position:
                with suppress(StoreUnavailable):  # a snapshot only saves time
                    await self.journal.save_snapshot(key, Snapshot(position, SNAPSHOT_VERSION, encoded))

    async def encode(self, memory: ReadModel, work: Callable[[], bytes]) -> bytes | None:
        """The result of work that only saves time or space; None if it fails, which harms nobody."""
        try:
            if memory.folded_bytes <= LARGE_BYTES:
                return None if memory.lock.locked() else work()
            async with memory.lock:
                return await self.off_loop.run(work)
        except (Exception, BudgetExhausted) as error:
            LOG.warning("A snapshot could not be made: %s", type(error).__name__)
            return None

    async def evict(self, weigh: bool = False) -> None:
        """Drop those that were read longest ago, while they are too many or (with `weigh`) too large together.

        Those on which a thread works at the moment stay.
        """
        excess, busy = sum(memory.weight for memory in self.cached.values()) - self.budget if weigh else 0, 0
        while len(self.cached) > busy and (len(self.cached) > self.capacity or excess > 0):
            key, memory = self.cached.popitem(last=False)
            if memory.lock.locked():
                self.cached[key] = memory
                busy += 1
                continue
            excess -= memory.weight
            await self.save_snapshot_if_due(key, memory, every=100)


def decode_snapshot(saved: bytes) -> State | None:
    """The state of a snapshot; None for a damaged one: the journal is folded again instead."""
    try:
        return decode_state(saved)
    except MALFORMED:
        return None


def new_read_model() -> ReadModel:
    """A read model that is still to be loaded."""
    memory = ReadModel(State())
    memory.loaded = False
    return memory


def is_ready(memory: ReadModel, position: int, with_messages: bool) -> bool:
    """Whether a read model can be read as it is."""
    state = memory.unpacked
    return (
        state is not None
        and memory.loaded
        and state.position >= position
        and not memory.lock.locked()
        and not (with_messages and state.dirty_turns)
    )
