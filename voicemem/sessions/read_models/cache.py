"""The cache of read models: each is the fold of a journal up to a position, and nothing owns it (docs/storage.md).

Every read compares positions and folds what is missing, so what was acknowledged is visible on every node.

Small work is done on the event loop, and all else on threads (`off_loop`), with the read model's lock held: while it is
held nobody else may look at the read model, and whoever got it from `get` may do so until the next `await`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import TypeVar

from voicemem.errors import DamagedEntry
from voicemem.protocol.events import FrameEvent
from voicemem.protocol.strict_json import MALFORMED
from voicemem.runtime import Clock, now_ms
from voicemem.sessions.read_models.commits import LARGE_PACKED, CommitFolds
from voicemem.sessions.read_models.kept import new_read_model
from voicemem.sessions.read_models.off_loop import BUDGET_S
from voicemem.sessions.read_models.read_model import LARGE_BYTES, LARGE_ROWS, ReadModel, decompress_state
from voicemem.sessions.read_models.work import SNAPSHOT_EVERY
from voicemem.store.memory_budget import MemoryBudget
from voicemem.store.port import Store
from voicemem.store.records import JournalRow
from voicemem.store.streams import Stream
from voicemem.transcript.fold import digest_of, frame_id
from voicemem.transcript.state import SNAPSHOT_VERSION, State, decode_state

T = TypeVar("T")
FOLD_PAGE = 500
"""Rows read and folded at a time, so that a long journal does not block the event loop."""
IS_LARGE = attrgetter("is_large")


class ReadModelCache(CommitFolds):
    """The read models of the sessions that were used last: at most `capacity` of them, and as many as `budget` holds.

    A piece of work off the event loop may take `cpu_budget_s` seconds of CPU; a session that takes longer, or fails, is
    quarantined. `count_ignored` is called with a bound and how many events the fold has left out because of it.
    """

    def __init__(
        self,
        journal: Store,
        budget: MemoryBudget | None = None,
        capacity: int = 20_000,
        *,
        cpu_budget_s: float = BUDGET_S,
        clock: Clock = now_ms,
        count_ignored: Callable[[str, int], None] = lambda bound, count: None,
    ) -> None:
        super().__init__(journal, budget or MemoryBudget(), capacity, cpu_budget_s, clock, count_ignored)

    # Reading

    async def get(self, stream: Stream) -> ReadModel:
        """The read model of a session, folded at least up to the position of its row, with its messages made.

        It is valid until the caller awaits. Raises `SessionQuarantined`, `StoreUnavailable`.
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
            read_model = await self.get(stream)
            if not is_large(read_model):
                return make(read_model)
            async with read_model.lock:
                if self.cached.get(stream.key) is read_model and read_model.unpacked is not None:
                    return await self.perform(stream.key, read_model, partial(make, read_model), off_loop=True)

    async def compute_as_of(
        self, key: int, position: int, make: Callable[[ReadModel], T], background: bool = False
    ) -> T:
        """The same for a session's read model as it was at a position."""
        read_model = self.cached.get(key)
        if read_model is not None and read_model.loaded:
            async with read_model.lock:
                if self.cached.get(key) is read_model and read_model.position <= position:
                    await self.prepare(key, read_model, position, background)
                    if read_model.position == position:
                        return await self.perform(
                            key, read_model, partial(make, read_model), read_model.is_large, background
                        )
        read_model = await self.load_as_of(key, position, background)
        return await self.perform(key, read_model, partial(make, read_model), read_model.is_large, background)

    async def load_as_of(self, key: int, position: int, background: bool = False) -> ReadModel:
        """A read model as of a position, which belongs to the caller. Raises as `get`."""
        read_model = new_read_model()
        await self.prepare(key, read_model, position, background)
        return read_model

    async def refold(self, stream: Stream) -> None:
        """Make a session's memory from its whole journal, and put it back if it was quarantined. Raises as `get`."""
        read_model = ReadModel(State())
        await self.catch_up(stream.key, read_model, stream.position)
        await self.perform(stream.key, read_model, read_model.refresh, off_loop=True)
        await self.save_snapshot_if_due(stream.key, read_model, every=1)
        self.discard(stream.key)
        await self.quarantined.put_back(stream.key)

    async def prepare_cached(self, stream: Stream, with_messages: bool) -> ReadModel:
        """The cached read model of a session, made ready for a caller that does not wait before it reads."""
        key, position, is_kept = stream.key, stream.position, False
        while True:
            read_model = self.keep(key)
            if not is_ready(read_model, position, with_messages):
                async with read_model.lock:
                    if self.cached.get(key) is not read_model:
                        continue
                    await self.prepare(key, read_model, position)
                    if with_messages and read_model.state.dirty_turns:
                        await self.perform(key, read_model, read_model.refresh, read_model.has_large_refresh)
                self.charge(key, read_model)
            self.note_state(key, stream.state == "ended")
            if is_kept or not (self.is_worth_saving(read_model, SNAPSHOT_EVERY) or self.is_full):
                return read_model
            is_kept = True  # what follows awaits, so the read model may have to be made ready again
            await self.save_snapshot_if_due(key, read_model)
            await self.evict(but=key)

    async def prepare(self, key: int, read_model: ReadModel, position: int, background: bool = False) -> None:
        """Load, unpack and fold a read model, whose lock is held or which is the caller's own, up to a position."""
        if not read_model.loaded:
            try:
                await self.load(key, read_model, position, background)
            finally:
                if not read_model.loaded:
                    self.drop(key, read_model)
        if read_model.unpacked is None:
            unpack = partial(decompress_state, read_model.packed)
            read_model.restore(
                await self.perform(key, read_model, unpack, len(read_model.packed) > LARGE_PACKED, background)
            )
        await self.catch_up(key, read_model, position, background)

    async def load(self, key: int, read_model: ReadModel, position: int, background: bool = False) -> None:
        """Begin with the stored snapshot, if there is one up to a position. Raises `SessionQuarantined` if it is."""
        await self.quarantined.check(key)
        saved = await self.journal.load_snapshot(key, SNAPSHOT_VERSION, position)
        if saved is not None:
            size = len(saved.state)
            decode = partial(decode_snapshot, saved.state)
            state = await self.perform(key, read_model, decode, size > LARGE_BYTES, background)
        if saved is not None and state is not None:
            read_model.restore(state)
            read_model.saved_position, read_model.folded_bytes = saved.position, 3 * size
            read_model.counted = dict(read_model.state.ignored) or None
        read_model.loaded = True

    async def catch_up(self, key: int, read_model: ReadModel, position: int, background: bool = False) -> None:
        """Fold what is missing up to a position, a page at a time."""
        while read_model.position < position:
            rows = await self.read_rows(
                key, read_model, read_model.position, min(FOLD_PAGE, position - read_model.position)
            )
            if not rows:
                return  # the session was erased meanwhile
            size = sum(len(row.payload) for row in rows)
            off_loop = len(rows) > LARGE_ROWS or size > LARGE_BYTES or read_model.slow_fold
            await self.perform(key, read_model, partial(read_model.fold_rows, rows), off_loop, background)
            if read_model.unpacked is not None and read_model.unpacked.ignored and self.cached.get(key) is read_model:
                self.note_ignored(read_model)

    async def read_rows(self, key: int, read_model: ReadModel | None, after: int, limit: int) -> list[JournalRow]:
        """The next rows of the journal; a damaged one quarantines the session. Raises as `get`."""
        try:
            return await self.journal.read_rows(key, after, limit)
        except DamagedEntry as error:
            raise await self.give_up(key, read_model, error) from None

    def has_frame(self, key: int, frame: FrameEvent) -> bool:
        """Whether a frame of this id was folded before, as far as that is known at once; the fold itself is sure."""
        read_model = self.cached.get(key)
        state = None if read_model is None or read_model.lock.locked() else read_model.unpacked
        return state is not None and digest_of(frame_id(frame)) in state.event_ids


def decode_snapshot(saved: bytes) -> State | None:
    """The state of a snapshot; None for a damaged one: the journal is folded again instead."""
    try:
        return decode_state(saved)
    except MALFORMED:
        return None


def is_ready(read_model: ReadModel, position: int, with_messages: bool) -> bool:
    """Whether a read model can be read as it is."""
    state = read_model.unpacked
    return (
        state is not None
        and read_model.loaded
        and state.position >= position
        and not read_model.lock.locked()
        and not (with_messages and state.dirty_turns)
    )
