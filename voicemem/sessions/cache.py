"""The cache of read models: each is the fold of a journal up to a position, and nothing owns it (docs/storage.md).

Every read compares positions and folds what is missing, so what was acknowledged is visible on every node.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import TypeVar

import msgspec

from voicemem.errors import Refused, StoreUnavailable
from voicemem.protocol import codec
from voicemem.protocol.events import IncomingEvent, JournaledEvent, ServerEvent
from voicemem.protocol.strict_json import MALFORMED
from voicemem.sessions.read_model import ReadModel
from voicemem.store.port import Journal
from voicemem.store.records import JournalRow, Snapshot
from voicemem.store.streams import Stream
from voicemem.transcript.fold import DecodedRow, fold_event
from voicemem.transcript.messages import Message
from voicemem.transcript.state import SNAPSHOT_VERSION, State, decode_state, encode_state

T = TypeVar("T")
FOLD_PAGE = 500
"""Rows read and folded at a time, so that a long journal does not block the event loop."""
SNAPSHOT_EVERY = 2_000
"""Entries after which a new snapshot is worth its cost."""
SNAPSHOTS_PER_COMMIT = 200
"""Snapshots saved at a time, in one commit."""
MAINTENANCE_S = 1.0
"""Pause between two rounds of maintenance."""
PACK_SLICE = 10
"""Read models packed before other tasks get their turn."""
IDLE_ROUNDS, PRESSURE_ROUNDS = 10, 2
"""Rounds without use after which a read model is packed: usually, and while those in use exceed `unpacked_budget`."""
UNPACK_MIN = 8
"""A packed read model is unpacked for this many entries at a time; fewer wait in the journal."""
MAX_LAG = 64
"""Entries that a packed read model may be behind its journal."""
CATCH_UP_SLICE = 50
"""Read models that catch up in one round, at most."""


class ReadModelCache:
    """The read models of the sessions that were used last, at most `capacity` of them.

    Together they may take about `budget` bytes, and those that are not packed about `unpacked_budget` of these.
    """

    def __init__(
        self,
        journal: Journal,
        capacity: int = 20_000,
        budget: int = 512 * 1024 * 1024,
        unpacked_budget: int = 32 * 1024 * 1024,
    ) -> None:
        self.journal = journal
        self.capacity = capacity
        self.budget = budget
        self.unpacked_budget = unpacked_budget
        self.lagging: set[int] = set()
        """Keys of read models that are more than `LAG` entries behind."""
        self.cached: OrderedDict[int, ReadModel] = OrderedDict()
        self.rounds = 0

    async def get(self, stream: Stream) -> ReadModel:
        """The read model of a session, folded at least up to the position of its row. Raises `StoreUnavailable`."""
        memory = self.cached.get(stream.key)
        if memory is None:
            memory = self.cached.setdefault(stream.key, await self.load(stream.key, stream.position))
        self.cached.move_to_end(stream.key)
        memory.last_round = self.rounds
        if memory.position < stream.position:
            async with memory.lock:
                await self.catch_up(stream.key, memory, stream.position)
        await self.save_snapshot_if_due(stream.key, memory)
        await self.evict()
        return memory

    async def messages_as_of(self, key: int, position: int) -> list[Message]:
        """The messages of a session as they were at a position."""
        return await self.compute_as_of(key, position, ReadModel.messages)

    async def compute_as_of(self, key: int, position: int, make: Callable[[ReadModel], T]) -> T:
        """What `make` returns for a session's read model as it was at a position.

        `make` runs before anything else is folded; it must not wait.
        """
        memory = self.cached.get(key)
        if memory is None or memory.position > position:
            memory = await self.load(key, position)
        async with memory.lock:
            await self.catch_up(key, memory, position)
            if memory.position == position:
                return make(memory)
        memory = await self.load(key, position)  # the cached one was folded further meanwhile
        await self.catch_up(key, memory, position)
        return make(memory)

    async def load(self, key: int, position: int) -> ReadModel:
        saved = await self.journal.load_snapshot(key, SNAPSHOT_VERSION, position)
        if saved is None:
            return ReadModel(State())
        memory = ReadModel(decode_state(saved.state), saved.position)
        memory.folded_bytes = 3 * len(saved.state)
        return memory

    async def catch_up(self, key: int, memory: ReadModel, position: int) -> None:
        while memory.position < position:
            missing = position - memory.position
            rows = await self.journal.read_rows(key, memory.position, min(FOLD_PAGE, missing))
            if not rows:
                return  # the session was erased meanwhile
            memory.fold(decode_rows(rows))
            memory.folded_bytes += sum(len(row.payload) for row in rows)

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

        A packed read model is not unpacked for a few events: a read or a round of maintenance folds them later. `size`
        is that of their payloads in bytes. This is the hot path: it runs for every commit, in the recorder's task.
        """
        memory = self.cached.get(key)
        if memory is None:
            return
        worth = memory.unpacked is not None or len(events) >= UNPACK_MIN
        if worth and memory.position == position - 1 and not memory.lock.locked():
            state, memory.last_round = memory.state, self.rounds
            memory.folded_bytes += size
            for place, event in enumerate(events, position):
                fold_event(state, place, received_ms, event, producer)
            return
        memory.known_position = position + len(events) - 1
        if memory.known_position - memory.position > MAX_LAG:
            self.lagging.add(key)

    def discard(self, key: int) -> None:
        self.cached.pop(key, None)

    def discard_all(self) -> None:
        """Drop everything: after a commit of unknown outcome nothing cached can be trusted."""
        self.cached.clear()

    async def save_snapshot_if_due(self, key: int, memory: ReadModel, every: int = SNAPSHOT_EVERY) -> None:
        position = memory.position
        if position - memory.saved_position >= every:
            memory.saved_position = position
            with suppress(StoreUnavailable):  # a snapshot only saves time
                await self.journal.save_snapshot(key, Snapshot(position, SNAPSHOT_VERSION, encode_state(memory.state)))

    async def maintain(self) -> None:
        """One round of maintenance: pack what is not used, evict what is too much, catch up what lags."""
        self.rounds += 1
        await self.pack_idle()
        await self.evict(weigh=True)
        await self.catch_up_lagging()

    async def catch_up_lagging(self) -> None:
        for key in list(islice(self.lagging, CATCH_UP_SLICE)):
            self.lagging.discard(key)
            memory = self.cached.get(key)
            if memory is not None:
                memory.last_round = self.rounds
                with suppress(StoreUnavailable):  # the next read reports it
                    async with memory.lock:
                        await self.catch_up(key, memory, memory.known_position)

    async def pack_idle(self) -> None:
        """Pack the read models that were not used for a while, a few at a time so that other tasks get their turn."""
        used = [memory for memory in self.cached.values() if memory.unpacked is not None]
        pressed = sum(memory.folded_bytes for memory in used) > self.unpacked_budget
        rounds = PRESSURE_ROUNDS if pressed else IDLE_ROUNDS
        idle = [memory for memory in used if self.rounds - memory.last_round >= rounds]
        for count, memory in enumerate(idle, 1):
            if self.rounds - memory.last_round >= rounds and not memory.lock.locked():
                memory.pack()
            if count % PACK_SLICE == 0:
                await asyncio.sleep(0)

    async def evict(self, weigh: bool = False) -> None:
        """Drop those that were read longest ago, while they are too many or (with `weigh`) too large together."""
        excess = sum(memory.weight for memory in self.cached.values()) - self.budget if weigh else 0
        while self.cached and (len(self.cached) > self.capacity or excess > 0):
            excess -= next(iter(self.cached.values())).weight
            key, memory = self.cached.popitem(last=False)
            await self.save_snapshot_if_due(key, memory, every=100)

    async def save_all(self, timeout_s: float) -> None:
        """Save as many snapshots as there is time for, at drain, so that the next process has little to fold."""
        waiting = list(self.cached.items())
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for first in range(0, len(waiting), SNAPSHOTS_PER_COMMIT):
                    together = waiting[first : first + SNAPSHOTS_PER_COMMIT]
                    await asyncio.gather(
                        *(self.save_snapshot_if_due(key, memory, every=100) for key, memory in together)
                    )


def decode_rows(rows: Iterable[JournalRow]) -> list[DecodedRow]:
    """Decode journal rows for the fold. Raises `StoreUnavailable` for a damaged one."""
    try:
        return [
            DecodedRow(row.position, row.received_ms, codec.decode_journaled(row.payload), row.producer) for row in rows
        ]
    except MALFORMED:
        raise StoreUnavailable("An event is damaged in the store.") from None


async def maintain_forever(memories: ReadModelCache) -> None:
    """Background task: keep the cache in bounds, once a second."""
    while True:
        await asyncio.sleep(MAINTENANCE_S)
        await memories.maintain()


MAX_APPEND_ATTEMPTS = 100
"""Each failed attempt means that another event was journaled first."""


async def append_derived(
    memories: ReadModelCache, stream: Stream, make: Callable[[ReadModel], ServerEvent | None], now_ms: Callable[[], int]
) -> tuple[Stream, ReadModel]:
    """Journal the event that `make` derives from the read model; return the session and the read model after it.

    `make` is pure; when it returns None nothing is journaled. The event may only stand right after what it was derived
    from, so the append expects that position, and is tried again when another event came first.

    Raises `Refused` (`unknown_session`, and what `make` raises), `StoreUnavailable`.
    """
    for _ in range(MAX_APPEND_ATTEMPTS):
        current = await memories.journal.find_session(stream.project, stream.id)
        if current is None:
            raise Refused("unknown_session")
        memory = await memories.get(current)
        event = make(memory)
        if event is None:
            return current, memory
        appended = await memories.journal.append_server_event(
            stream.key, msgspec.json.encode(event), memory.position, now_ms()
        )
        if appended is not None:
            return appended, await memories.get(appended)
    raise StoreUnavailable("The session changes faster than this change can be stored; try again.")
