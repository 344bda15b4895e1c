"""The cache of read models: each is the fold of a journal up to a position, and nothing owns it (docs/storage.md).

Every read compares positions and folds what is missing, so what was acknowledged is visible on every node.

Small work is done on the event loop, and all else on threads (`OffLoop`), with the read model's lock held: meanwhile no
one else may use the read model. The caller of `get` may use it until the next `await`.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec

from voicemem.errors import DamagedEntry, SessionQuarantined, StoreUnavailable, VoicememError
from voicemem.protocol.codec import MALFORMED
from voicemem.protocol.events import FrameEvent, IncomingEvent, JournaledEvent, ServerEvent, SessionClosed
from voicemem.runtime import Clock, MemoryBudget, now_ms
from voicemem.sessions.off_loop import BUDGET_S, OffLoop
from voicemem.sessions.read_models.quarantine import QuarantinedSessions
from voicemem.sessions.read_models.read_model import LARGE_BYTES, LARGE_ROWS, Committed, ReadModel, decompress_state
from voicemem.store.port import Store
from voicemem.store.records import Snapshot
from voicemem.store.streams import ClosedSession, Stream
from voicemem.transcript.state import SNAPSHOT_VERSION, State, decode_state, digest_of

LOG = logging.getLogger("voicemem")
T = TypeVar("T")
UNCHARGED_SHARE = 192
"""One part in this many of the budget may be folded before weights are updated; it takes up to thirty times as much."""
FIRST_RATIO = 4.0
"""The typical ratio until a read model has been weighed."""
WORST_RATIO = 64
"""The most bytes in memory for a byte of a journal."""
USUAL_RATIO = 24
"""Speech takes fewer bytes in memory for a byte of a journal; empty objects take thirty."""
RATIO_MEMORY = 16
"""How many weighings the typical ratio goes back."""
SNAPSHOT_EVERY = 2_000
"""Entries after which a new snapshot is worth its cost."""
SNAPSHOT_BYTES = 16 * 1024 * 1024
"""Bytes of a journal up to which a snapshot is made: a larger one would take too much memory besides the state."""
UNPACK_MIN = 8
"""A packed read model is unpacked for this many entries at a time; fewer wait in the journal."""
LARGE_PACKED = 16 * 1024
"""Bytes of a packed read model that is unpacked off the event loop."""
MAX_LAG = 64
"""Entries that a packed read model may be behind its journal."""
FLOOD = 200
"""Events of a session in one round above which its read model is not folded further: that would slow the others down,
and none of it may ever be read."""
OTHERS_FOLLOW = 7
"""A use in the background counts as this many rounds old: the state stays unpacked for three more, for others."""
ROW_BYTES = 512
"""Bytes of text that take as long as an event without its text."""
FOLD_PAGE = 500
"""Rows read and folded at a time, so that a long journal does not block the event loop."""
IS_LARGE = attrgetter("is_large")


class ReadModelCache:
    """The read models of the sessions that were used last: at most `capacity` of them, and as many as `budget` holds.

    They are kept by the key of their session, the least recently read first; those of ended sessions are evicted first.
    The weight of each is updated in the budget whenever it is read, and in each round of maintenance
    (`voicemem.sessions.read_models.maintenance`).
    """

    def __init__(
        self,
        store: Store,
        budget: MemoryBudget | None = None,
        capacity: int = 20_000,
        *,
        cpu_budget_s: float = BUDGET_S,
        clock: Clock = now_ms,
        count_ignored: Callable[[str, int], None] = lambda bound, count: None,
    ) -> None:
        """Create an empty cache.

        A piece of work off the event loop may take `cpu_budget_s` seconds of CPU, and more for a long journal; a
        session that takes longer, or fails, is quarantined. `count_ignored` is called with a bound and how many events
        the fold has left out because of it.
        """
        self.store = store
        self.budget = budget or MemoryBudget()
        self.capacity = capacity
        self.off_loop = OffLoop(cpu_budget_s)
        self.quarantined = QuarantinedSessions(store.quarantine, clock)
        self.count_ignored = count_ignored
        self.cached: OrderedDict[int, ReadModel] = OrderedDict()
        self.ended: OrderedDict[int, None] = OrderedDict()
        """The keys of ended sessions, in the same order."""
        self.lagging: dict[int, int] = {}
        """Read models to be folded further in the background: by key, the end of the journal at the last look."""
        self.failed: dict[int, int] = {}
        """By key, the position up to which a fold has just failed; maintenance checks whether it fails again."""
        self.beside: WeakValueDictionary[int, ReadModel] = WeakValueDictionary()
        """By key, read models that background work uses and that are not cached (any more): several tasks read a call
        that has just ended, and its index is made in parts."""
        self.to_fold: dict[int, ReadModel] = {}
        """By key, read models with committed events to fold."""
        self.waiting_bytes = 0
        """Bytes of these events."""
        self.rounds = 0
        """Rounds of maintenance so far."""
        self.typical_ratio = FIRST_RATIO
        """How many bytes read models take for each byte of their journals, assumed of those not weighed yet."""
        self.uncharged = 0
        """Bytes of journals that were folded on the event loop since the weights were last updated."""
        self.under_pressure = asyncio.Event()
        """Set when these may be so many that the weights should be updated at once."""

    # Reading

    async def get(self, stream: Stream) -> ReadModel:
        """Return the read model of a session, folded at least up to the position of its row, with its messages made.

        It is valid until the caller awaits. Raises `SessionQuarantined`, `StoreUnavailable`.
        """
        return self.find_ready(stream) or await self.prepare_cached(stream, with_messages=True)

    def find_ready(self, stream: Stream) -> ReadModel | None:
        """Return the read model of a session if next to nothing has to be done first; valid until the caller awaits."""
        read_model = self.find(stream.key)
        if read_model is None or not is_ready(read_model, stream.position, with_messages=False):
            return None
        if read_model.position - read_model.saved_position >= SNAPSHOT_EVERY:
            return None
        if read_model.state.dirty_turns:
            if self.is_full or not read_model.has_small_refresh:
                return None
            try:
                read_model.refresh()
            except Exception:  # a full read fails too, and quarantines it
                return None
            self.charge(stream.key, read_model)
        self.keep(stream.key, stream.project)
        self.note_read(stream, read_model)
        return read_model

    async def get_state(self, stream: Stream) -> State:
        """Return the fold state alone, where no messages are needed; valid until the caller awaits. Raises as `get`."""
        return (await self.prepare_cached(stream, with_messages=False)).state

    async def read(
        self, stream: Stream, make: Callable[[ReadModel], T], is_large: Callable[[ReadModel], bool] = IS_LARGE
    ) -> T:
        """Return `make` of a session's read model; it runs off the event loop where that `is_large`.

        `make` must not wait, and what it returns must not change with later events. Raises as `get`.
        """
        while True:
            read_model = await self.get(stream)
            if not is_large(read_model):
                made = make(read_model)
                self.charge(stream.key, read_model)
                return made
            async with read_model.lock:
                if self.cached.get(stream.key) is read_model and read_model.unpacked is not None:
                    made = await self.make_of(stream.key, read_model, make, off_loop=True)
                    self.charge(stream.key, read_model)
                    return made

    async def compute_as_of(
        self,
        key: int,
        position: int,
        make: Callable[[ReadModel], T],
        background: bool = False,
        or_later: bool = False,
        owner: str | None = None,
    ) -> T:
        """Return `make` of a session's read model as it was at a position, `or_later` where the cached one is."""
        cached = self.cached.get(key)
        if cached is not None and cached.waiting and (or_later or cached.waiting[-1].last <= position):
            self.fold_waiting(key, cached)
        for known in cached, self.beside.get(key) if background else None:
            if known is None or not (known.loaded or known.lock.locked()):
                continue
            async with known.lock:
                if known in (self.cached.get(key), self.beside.get(key)) and (or_later or known.position <= position):
                    known.last_round = max(known.last_round, self.rounds - OTHERS_FOLLOW)
                    await self.prepare(key, known, position, background)
                    if or_later or known.position == position:
                        return await self.make_of(key, known, make, known.is_large, background)
        own = ReadModel(State(), loaded=False, owner=owner)
        if background:
            self.beside[key] = own
        async with own.lock:
            await self.prepare(key, own, position, background)
            return await self.make_of(key, own, make, own.is_large, background)

    async def load_as_of(
        self, key: int, position: int, background: bool = False, owner: str | None = None
    ) -> ReadModel:
        """Return a read model as of a position, which belongs to the caller. Raises as `get`."""
        read_model = ReadModel(State(), loaded=False, owner=owner)
        await self.prepare(key, read_model, position, background)
        return read_model

    async def refold(self, stream: Stream) -> None:
        """Make a session's memory from its whole journal, and release it from quarantine. Raises as `get`."""
        read_model = ReadModel(State(), owner=stream.project)
        await self.catch_up(stream.key, read_model, stream.position)
        await self.perform(stream.key, read_model, read_model.refresh, off_loop=True)
        await self.save_snapshot_if_due(stream.key, read_model, every=1)
        self.discard(stream.key)
        await self.quarantined.release(stream.key)

    async def prepare_cached(self, stream: Stream, with_messages: bool) -> ReadModel:
        """Return the cached read model of a session, made ready for a caller that does not wait before it reads."""
        key, position, is_kept = stream.key, stream.position, False
        while True:
            self.find(key)
            read_model = self.keep(key, stream.project)
            if not is_ready(read_model, position, with_messages):
                async with read_model.lock:
                    if self.cached.get(key) is not read_model:
                        continue
                    await self.prepare(key, read_model, position)
                    if with_messages and read_model.state.dirty_turns:
                        await self.make_of(key, read_model, ReadModel.refresh, read_model.has_large_refresh)
                self.charge(key, read_model)
            self.note_read(stream, read_model)
            if is_kept or not (read_model.position - read_model.saved_position >= SNAPSHOT_EVERY or self.is_full):
                return read_model
            is_kept = True  # what follows awaits, so the read model may have to be made ready again
            await self.save_snapshot_if_due(key, read_model)
            await self.evict(but=key)

    def note_read(self, stream: Stream, read_model: ReadModel) -> None:
        read_model.round_position = stream.position  # events after a read are not a flood yet
        if stream.state == "ended":
            self.ended[stream.key] = None
            self.ended.move_to_end(stream.key)
        else:
            self.ended.pop(stream.key, None)

    async def prepare(self, key: int, read_model: ReadModel, position: int, background: bool = False) -> None:
        """Load, unpack and fold a read model up to a position. Its lock must be held, unless it is the caller's own."""
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
        saved = await self.store.journal.load_snapshot(key, SNAPSHOT_VERSION, position)
        if saved is not None:
            size = len(saved.state)
            state = await self.perform(
                key, read_model, partial(decode_snapshot, saved.state), size > LARGE_BYTES, background
            )
        if saved is not None and state is not None:
            read_model.restore(state)
            read_model.saved_position, read_model.folded_bytes = saved.position, 3 * size
            read_model.counted = dict(read_model.state.ignored) or None
        read_model.loaded = True

    async def catch_up(self, key: int, read_model: ReadModel, position: int, background: bool = False) -> None:
        while read_model.position < position:
            after = read_model.position
            try:
                rows = await self.store.journal.read_rows(key, after, min(FOLD_PAGE, position - after))
            except DamagedEntry as error:
                raise await self.give_up(key, read_model, error) from None
            if not rows:
                return  # the session has been erased
            size = sum(len(row.payload) for row in rows)
            off_loop = len(rows) > LARGE_ROWS or size > LARGE_BYTES or read_model.slow_fold
            await self.perform(key, read_model, partial(read_model.fold_rows, rows), off_loop, background)
            if read_model.folded_bytes > self.budget.limit // WORST_RATIO:
                if read_model.has_grown or read_model.weight > self.budget.limit:
                    read_model.weigh()
                if read_model.weight > max(self.budget.limit, USUAL_RATIO * read_model.folded_bytes):
                    raise await self.give_up(key, read_model, MemoryError())
            if read_model.unpacked is not None and read_model.unpacked.ignored and self.cached.get(key) is read_model:
                self.note_ignored(read_model)

    def find(self, key: int) -> ReadModel | None:
        """Return the cached read model of a session, with committed events folded if that can be done at once."""
        read_model = self.cached.get(key)
        if read_model is not None and read_model.waiting:
            self.fold_waiting(key, read_model)
            return self.cached.get(key)
        return read_model

    def has_frame(self, key: int, frame: FrameEvent) -> bool:
        """Return whether a frame of this id is known to be folded; only the fold itself can be sure."""
        read_model = self.find(key)
        state = None if read_model is None or read_model.lock.locked() else read_model.unpacked
        return state is not None and digest_of(frame) in state.event_ids

    # Commits

    def add_committed(
        self,
        key: int,
        position: int,
        received_ms: int,
        events: Sequence[IncomingEvent | JournaledEvent],
        producer: str | None,
        size: int = 0,
    ) -> None:
        """Keep events that were just committed, the first at `position`, until they are folded: soon, or at a read.

        A packed read model is not unpacked for a few events, and a flood is not folded on the event loop: its events,
        and those after it, wait in the journal for a read or for its end. `size` is the size of the payloads in bytes.
        This is the hot path: it runs for every batch, in the recorder's task.
        """
        read_model = self.cached.get(key)
        if read_model is None:
            return
        read_model.last_round = self.rounds
        if read_model.commit_round != self.rounds:
            read_model.commit_round, read_model.round_position = self.rounds, position
        waiting, is_flood = read_model.waiting, position - read_model.round_position > FLOOD
        is_large = size > LARGE_BYTES or is_flood or read_model.slow_fold
        before, last = waiting[-1].last if waiting else read_model.position, position + len(events) - 1
        if before == position - 1 and not is_large and is_worth_folding(read_model, len(events)):
            waiting.append(Committed(position, last, received_ms, events, producer, size))
            read_model.waiting_bytes += size
            self.waiting_bytes += size
            self.to_fold[key] = read_model
            if self.waiting_bytes > self.budget.limit // UNCHARGED_SHARE:
                self.fold_waiting(*next(iter(self.to_fold.items())))
            return
        read_model.known_position = last
        if is_large or read_model.known_position - read_model.position > MAX_LAG:
            self.lagging.setdefault(key, last)

    async def append(
        self, key: int, event: ServerEvent, position: int, now_ms: int, for_caller: bool = False
    ) -> Stream | None:
        """Journal an event of the server's own right after a position, to be folded like any other that was committed.

        None, and nothing changes, where that position is taken. Raises as `Journal.append_server_event`.
        """
        payload = msgspec.json.encode(event)
        after = await self.store.journal.append_server_event(key, payload, position, now_ms, for_caller)
        if after is not None:
            self.add_committed(key, position + 1, now_ms, [event], None, len(payload))
        return after

    def fold_waiting(self, key: int, read_model: ReadModel) -> None:
        """Fold a session's committed events, unless its read model is in use. It never raises."""
        self.to_fold.pop(key, None)
        if read_model.lock.locked():
            self.to_fold[key] = read_model  # as the last, so that it holds up no other
            return
        last = read_model.waiting[-1].last
        self.uncharged += read_model.waiting_bytes
        self.waiting_bytes -= read_model.waiting_bytes
        try:
            read_model.fold_waiting()
        except Exception:  # read again off the loop, it fails there too, and is quarantined
            self.drop(key, read_model)
            self.failed[key] = last
            return
        if read_model.state.ignored:
            self.note_ignored(read_model)
        if self.uncharged > self.budget.limit // UNCHARGED_SHARE:
            self.under_pressure.set()

    def note_ignored(self, read_model: ReadModel) -> None:
        counted = read_model.counted = read_model.counted or {}
        for bound, count in read_model.state.ignored.items():
            if count > counted.get(bound, 0):
                self.count_ignored(bound, count - counted.get(bound, 0))
                counted[bound] = count

    # Work on read models

    async def perform(
        self, key: int, read_model: ReadModel | None, work: Callable[[], T], off_loop: bool, background: bool = False
    ) -> T:
        """Return the result of work on a session's read model; quarantine the session if it fails or takes too long.

        Whatever stops the work half-way, the read model is dropped, and never shown. Raises `SessionQuarantined`.
        """
        try:
            if not off_loop:
                return work()
            owner, size = None, 0
            if read_model is not None:
                owner, size = read_model.owner, read_model.folded_bytes + ROW_BYTES * read_model.position
            return await self.off_loop.run(work, background, owner, size)
        except Exception as error:  # a fault of the fold: it would come again with each read
            if isinstance(error, VoicememError) and not isinstance(error, DamagedEntry):
                raise
            raise await self.give_up(key, read_model, error) from None
        except BaseException:
            self.drop(key, read_model)
            raise

    async def make_of(
        self, key: int, read_model: ReadModel, make: Callable[[ReadModel], T], off_loop: bool, background: bool = False
    ) -> T:
        """Return `make` of a read model, and leave nothing of a heavy call unpacked. Raises `SessionQuarantined`."""

        def work() -> T:
            made = make(read_model)
            read_model.release()
            return made

        return await self.perform(key, read_model, work, off_loop, background)

    async def give_up(self, key: int, read_model: ReadModel | None, error: BaseException) -> SessionQuarantined:
        self.drop(key, read_model)
        await self.quarantined.add(key, error)
        return SessionQuarantined()

    # Snapshots

    async def save_snapshot_if_due(self, key: int, read_model: ReadModel, every: int = SNAPSHOT_EVERY) -> None:
        is_due = read_model.position - read_model.saved_position >= every
        if is_due and read_model.folded_bytes <= SNAPSHOT_BYTES:
            position = read_model.saved_position = read_model.position
            encoded = await self.encode(read_model, read_model.encode_state)
            if encoded is not None and read_model.position == position:
                with suppress(StoreUnavailable):  # a snapshot only saves time
                    await self.store.journal.save_snapshot(key, Snapshot(position, SNAPSHOT_VERSION, encoded))

    async def encode(self, read_model: ReadModel, work: Callable[[], bytes]) -> bytes | None:
        """Return the result of work that only saves time or space; None if it fails, which does no harm."""
        try:
            if read_model.folded_bytes <= LARGE_BYTES:
                return None if read_model.lock.locked() else work()
            async with read_model.lock:
                return await self.off_loop.run(work, owner=read_model.owner, size=read_model.folded_bytes)
        except Exception as error:  # the journal has everything
            LOG.warning("A snapshot could not be made: %s", type(error).__name__)
            return None

    # Which read models are kept

    def keep(self, key: int, owner: str) -> ReadModel:
        """Return the read model of a session, and mark it as used last; a new one is still to be loaded."""
        read_model = self.cached.get(key)
        if read_model is None:
            read_model = self.cached[key] = ReadModel(State(), loaded=False, owner=owner)
            read_model.ratio = self.typical_ratio
        self.cached.move_to_end(key)
        read_model.last_round = self.rounds
        return read_model

    def note_closed(self, closed: ClosedSession) -> None:
        """Fold the close of a session with its other committed events; it is evicted before running sessions."""
        stream = closed.stream
        if stream.key in self.cached:
            self.ended[stream.key] = None
            event = SessionClosed(ts=closed.ending.ts, reason=closed.ending.reason)
            self.add_committed(stream.key, stream.position, closed.received_ms, [event], None)

    def drop(self, key: int, read_model: ReadModel | None) -> None:
        """Drop a read model, if it is the cached one."""
        if read_model is not None and self.cached.get(key) is read_model:
            self.discard(key)
        elif read_model is not None and self.beside.get(key) is read_model:
            del self.beside[key]

    def keep_beside(self, key: int) -> ReadModel:
        """Take a read model out of the cache; background work that uses it still finds it."""
        read_model = self.cached[key]
        self.discard(key)
        self.beside[key] = read_model
        return read_model

    def discard(self, key: int) -> None:
        read_model = self.cached.pop(key, None)
        self.beside.pop(key, None)
        for by_key in self.ended, self.to_fold, self.lagging:
            by_key.pop(key, None)
        if read_model is not None:
            self.waiting_bytes -= read_model.waiting_bytes
            self.recharge(read_model, 0)

    def discard_all(self, may_differ: Callable[[int], bool] = lambda key: True) -> None:
        """Drop the read models whose key `may_differ`: after a commit of unknown outcome they cannot be trusted."""
        for key in [key for key in (*self.cached, *self.beside) if may_differ(key)]:
            self.discard(key)

    async def evict(self, but: int | None = None) -> None:
        """Drop read models while they are too many or too large together, except `but`, which is about to be read.

        Those that a thread works on stay. One that has grown is weighed first, since it may be smaller than its
        estimate.
        """
        while self.is_full:
            oldest_first = chain(self.ended, self.cached)
            key = next((key for key in oldest_first if key != but and not self.cached[key].lock.locked()), None)
            if key is None:
                return
            read_model = self.cached[key]
            if read_model.has_grown:
                self.weigh(key, read_model)
                await asyncio.sleep(0)
                continue
            self.keep_beside(key)
            self.budget.evicted_memories += 1
            await self.save_snapshot_if_due(key, read_model, every=100)

    # Weights

    @property
    def is_full(self) -> bool:
        return self.budget.memories > self.budget.room_for_memories or len(self.cached) > self.capacity

    def charge(self, key: int, read_model: ReadModel) -> None:
        """Update the bytes that a read model counts for, if it is the cached one."""
        counted = read_model.charged, read_model.charged_packed
        if self.cached.get(key) is read_model and counted != (read_model.weight, read_model.unpacked is None):
            self.recharge(read_model, read_model.weight)

    def keep_answer(self, question: str, stream: Stream, answer: bytes) -> None:
        """Cache an answer that was made only from the memory at the position of the session's row."""
        read_model = self.cached.get(stream.key)
        if read_model is not None and read_model.unpacked is not None:
            read_model.keep_answer(question, stream, answer)
            self.charge(stream.key, read_model)

    def recharge(self, read_model: ReadModel, weight: int) -> None:
        for change in -read_model.charged, weight:
            if read_model.charged_packed:
                self.budget.memories_packed += change
            else:
                self.budget.memories_in_use += change
            read_model.charged_packed = read_model.unpacked is None
        read_model.charged = weight

    def weigh(self, key: int, read_model: ReadModel) -> None:
        """Measure the memory that a read model takes. No thread may be using it."""
        read_model.weigh()
        self.typical_ratio += (read_model.ratio - self.typical_ratio) / RATIO_MEMORY
        self.charge(key, read_model)


def decode_snapshot(saved: bytes) -> State | None:
    """Return the state of a snapshot; None for a damaged one: the journal is folded again instead."""
    try:
        return decode_state(saved)
    except MALFORMED:
        return None


def is_worth_folding(read_model: ReadModel, count: int) -> bool:
    """Return whether so many committed events are folded from memory: a packed state is unpacked for several only."""
    if read_model.unpacked is None and not read_model.waiting:
        return count >= UNPACK_MIN and len(read_model.packed) <= LARGE_PACKED
    return read_model.waiting_bytes <= LARGE_BYTES


def is_ready(read_model: ReadModel, position: int, with_messages: bool) -> bool:
    state = read_model.unpacked
    return (
        state is not None
        and read_model.loaded
        and state.position >= position
        and not read_model.lock.locked()
        and not (with_messages and state.dirty_turns)
    )
