"""Fold states, kept at hand: each is a cache of its journal at a position, and nobody owns it (design, section 9).

Every read compares positions and folds what is missing, so whatever was acknowledged is visible, on every node.
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
from voicemem.sessions.read_model import Memory
from voicemem.store.port import Journal
from voicemem.store.records import Row, Snapshot
from voicemem.store.streams import Stream
from voicemem.transcript.fold import DecodedRow, fold_event
from voicemem.transcript.messages import Message
from voicemem.transcript.state import SNAPSHOT_VERSION, State, decode_state, encode_state

T = TypeVar("T")
PAGE = 500
"""Rows read and folded at once, so that a long journal does not hold up everybody else."""
SNAPSHOT_EVERY = 2_000
"""Entries after which a new snapshot is worth its writing."""
SAVED_TOGETHER = 200
"""Snapshots in one commit."""
PACKING_S = 1.0
"""Between two rounds of packing."""
PACKED_TOGETHER = 10
IDLE_ROUNDS, PRESSED_ROUNDS = 10, 2
"""Rounds without use after which a memory is packed: commonly, and while those in use take too much."""
WORTH_UNPACKING = 8
"""Entries that come together; fewer are left to the journal while a memory is packed."""
LAG = 64
"""Entries that it may be behind its journal so."""
CAUGHT_UP = 50
"""Memories in a round, at most."""


class Memories:
    """The memories of the sessions that were used last, at most `capacity` of them.

    `budget` is how many bytes they may take together, about, and `in_use` how many of these those that are not packed.
    """

    def __init__(
        self,
        journal: Journal,
        capacity: int = 20_000,
        budget: int = 512 * 1024 * 1024,
        in_use: int = 32 * 1024 * 1024,
    ) -> None:
        self.journal = journal
        self.capacity = capacity
        self.budget = budget
        self.in_use = in_use
        self.lagging: set[int] = set()
        """Memories that are too far behind."""
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
        return await self.made_as_of(key, position, Memory.messages)

    async def made_as_of(self, key: int, position: int, make: Callable[[Memory], T]) -> T:
        """What `make` makes at once of a session's memory as it was at a position."""
        memory = self.cached.get(key)
        if memory is None or memory.stands_at > position:
            memory = await self.load(key, position)
        async with memory.lock:
            await self.catch_up(key, memory, position)
            if memory.stands_at == position:
                return make(memory)
        memory = await self.load(key, position)  # somebody else folded on meanwhile
        await self.catch_up(key, memory, position)
        return make(memory)

    async def load(self, key: int, position: int) -> Memory:
        saved = await self.journal.load_snapshot(key, SNAPSHOT_VERSION, position)
        if saved is None:
            return Memory(State())
        memory = Memory(decode_state(saved.state), saved.position)
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
        self, key: int, position: int, received_ms: int, events: Sequence[IncomingEvent | JournaledEvent], size: int = 0
    ) -> None:
        """Fold events that were just committed, the first at `position`, when nothing is missing before it.

        A packed memory is not unpacked for a few: a read, or a round, folds what it has missed. `size` is that of their
        payloads in bytes.
        """
        memory = self.cached.get(key)
        if memory is None:
            return
        worth = memory.unpacked is not None or len(events) >= WORTH_UNPACKING
        if worth and memory.stands_at == position - 1 and not memory.lock.locked():
            state, memory.used = memory.state, self.round
            memory.folded_bytes += size
            for place, event in enumerate(events, position):
                fold_event(state, place, received_ms, event)
            return
        memory.noted = position + len(events) - 1
        if memory.noted - memory.stands_at > LAG:
            self.lagging.add(key)

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
                await self.journal.save_snapshot(key, Snapshot(position, SNAPSHOT_VERSION, encode_state(memory.state)))

    async def look_after(self) -> None:
        """One round: memories that nobody uses are packed, and those that lag behind catch up."""
        self.round += 1
        await self.pack_idle()
        await self.evict(weigh=True)
        await self.catch_up_lagging()

    async def catch_up_lagging(self) -> None:
        for key in list(islice(self.lagging, CAUGHT_UP)):
            self.lagging.discard(key)
            memory = self.cached.get(key)
            if memory is not None:
                memory.used = self.round
                with suppress(StoreUnavailable):  # a read tells
                    async with memory.lock:
                        await self.catch_up(key, memory, memory.noted)

    async def pack_idle(self) -> None:
        """A few at a time, so that nobody waits for it."""
        used = [memory for memory in self.cached.values() if memory.unpacked is not None]
        pressed = sum(memory.folded_bytes for memory in used) > self.in_use
        rounds = PRESSED_ROUNDS if pressed else IDLE_ROUNDS
        idle = [memory for memory in used if self.round - memory.used >= rounds]
        for count, memory in enumerate(idle, 1):
            if self.round - memory.used >= rounds and not memory.lock.locked():
                memory.pack()
            if count % PACKED_TOGETHER == 0:
                await asyncio.sleep(0)

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


def decoded(rows: Iterable[Row]) -> list[DecodedRow]:
    """Journal rows for the fold. Raises `StoreUnavailable` for what the store has not kept as it was."""
    try:
        return [DecodedRow(row.position, row.received_ms, codec.decode_journaled(row.payload)) for row in rows]
    except MALFORMED:
        raise StoreUnavailable("An event is damaged in the store.") from None


async def look_after_forever(memories: Memories) -> None:
    """Look after the memories, every second."""
    while True:
        await asyncio.sleep(PACKING_S)
        await memories.look_after()


MAX_APPEND_ATTEMPTS = 100
"""Attempts while the call goes on; each failed one means that something was journaled."""


async def append_made(
    memories: Memories, stream: Stream, make: Callable[[Memory], ServerEvent | None], now_ms: Callable[[], int]
) -> tuple[Stream, Memory]:
    """Journal what `make`, a pure function, makes of the memory, unless that is None; the session after it.

    Raises `Refused` (`unknown_session`, and what `make` raises), `StoreUnavailable`.
    """
    for _ in range(MAX_APPEND_ATTEMPTS):
        now = await memories.journal.stream(stream.project, stream.id)
        if now is None:
            raise Refused("unknown_session")
        memory = await memories.at(now)
        event = make(memory)
        if event is None:
            return now, memory
        appended = await memories.journal.append_own(stream.key, msgspec.json.encode(event), memory.stands_at, now_ms())
        if appended is not None:
            return appended, await memories.at(appended)
    raise StoreUnavailable("The session changes faster than this can be stored.")
