"""Impure sources, passed in: clock, randomness, ids, secrets; and the RAM and slots that many share."""

import asyncio
import random
import secrets
import string
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
LETTERS = string.ascii_letters + string.digits
Clock = Callable[[], int]
"""Returns Unix ms."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def new_id() -> str:
    return secrets.token_hex(16)


def new_secret(length: int) -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(length))


class Runtime(NamedTuple):
    """The impure sources; tests replace those that they want to control."""

    clock: Clock = now_ms
    new_id: Callable[[], str] = new_id
    """Returns a new random id of hexadecimal digits."""
    new_secret: Callable[[int], str] = new_secret
    """Returns a new secret of this many letters and digits."""
    random: Callable[[], float] = random.random
    """Returns a number in [0, 1)."""


class NodeIdentity:
    """The identity of this process as a node of its store: a token, empty while it is no node."""

    def __init__(self) -> None:
        self.token = ""


SLICE_S, REST_S = 0.0005, 0.001


class TimeSlicer:
    """Divides long work on the event loop into slices: after each half ms of it, others have the loop for a ms.

    Their work takes several iterations of the loop, each of which would otherwise wait for another slice; and half a
    dozen long works may each have a slice in one iteration.
    """

    def __init__(self) -> None:
        self.ends_s = time.monotonic() + SLICE_S

    async def pause(self) -> None:
        """Sleep, if this slice is over."""
        if time.monotonic() >= self.ends_s:
            await asyncio.sleep(REST_S)
            self.ends_s = time.monotonic() + SLICE_S


K = TypeVar("K")


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and return once all of them have ended, however they did."""
    cancelled = list(tasks)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)


async def entries_of(entries: Mapping[K, T]) -> AsyncIterator[tuple[K, T]]:
    """Yield the items that a mapping has now, in slices, without those that are removed meanwhile.

    A list of all pairs would make Python collect garbage for several ms. Read it to its end.
    """
    slicer = TimeSlicer()
    for key in [*entries]:
        await slicer.pause()
        if (value := entries.get(key)) is not None:
            yield key, value


DEFAULT_BYTES = 512 * 1024 * 1024
ROWS_SHARE = 4
"""The store's rows may take one part in this many: reading one again costs little."""
READING_SHARE = 8
"""Readers may hold one part in this many."""


class ReadBudget:
    """The bytes that large answers under way may hold, over all readers; their owners have equal shares.

    The first reader of an owner never waits. Bytes that several readers of an owner hold together count once.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.shares: dict[str | None, OwnerReaders] = {}
        """The shares of the owners that have readers."""

    @property
    def used(self) -> int:
        return sum(share.used for share in self.shares.values())


class OwnerReaders:
    """The readers of one owner, and the bytes that they hold."""

    def __init__(self) -> None:
        self.used = 0
        self.readers: dict[Reader, None] = {}
        """Readers that hold or wait, the oldest first."""
        self.holders: dict[Hashable, dict[Reader, int]] = {}
        """By what is held: its readers, with their bytes."""
        self.waiting: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        """Let all waiting readers check again."""
        waiting, self.waiting = self.waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)


class Reader:
    """One answer under way, and the bytes that it holds until it is closed.

    `what` identifies the data, if others may hold the same.
    """

    def __init__(self, budget: ReadBudget, owner: str | None, what: Hashable = None) -> None:
        self.budget = budget
        self.owner = owner
        self.what = self if what is None else what
        self.share: OwnerReaders | None = None
        """None while it neither holds nor waits."""
        self.size = 0

    def take(self, size: int) -> bool:
        """Hold a number of bytes from now on; return False, and change nothing, if there is no room for them."""
        if self.share is None:
            self.share = self.budget.shares.setdefault(self.owner, OwnerReaders())
            self.share.readers[self] = None
        share, holders = self.share, self.share.holders.setdefault(self.what, {})
        others = max((held for reader, held in holders.items() if reader is not self), default=0)
        added = max(size, others) - max(self.size, others)
        most = self.budget.limit // len(self.budget.shares)
        if added > 0 and share.used + added > most and next(iter(share.readers)) is not self:
            return False
        holders[self] = self.size = size
        share.used += added
        if added < 0:
            share.wake()
        return True

    async def make(self, make: Callable[[], Awaitable[tuple[T, int]]]) -> T:
        """Return the result of `make`, and hold its bytes; while there is no room for them, wait, and make it again."""
        made, size = await make()
        while (size or self.size) and not self.take(size):
            del made
            await self.reserve(size)
            made, size = await make()
        return made

    async def reserve(self, size: int) -> None:
        """Hold a number of bytes as soon as other readers of the owner leave room for them."""
        while not self.take(size):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            assert self.share is not None
            self.share.waiting.append(turn)
            await turn

    def close(self) -> None:
        share = self.share
        if share is None:
            return
        self.take(0)
        self.share = None
        holders = share.holders[self.what]
        del share.readers[self], holders[self]
        if not holders:
            del share.holders[self.what]
        if share.readers:
            share.wake()
            return
        del self.budget.shares[self.owner]
        for other in self.budget.shares.values():
            other.wake()


class MemoryBudget:
    """The bytes that the caches of one service take, by kind, and may take together.

    Each cache keeps its own figures up to date, on its own thread, and evicts when they exceed the limit.
    """

    def __init__(self, limit: int = DEFAULT_BYTES) -> None:
        self.limit = limit
        self.reading = ReadBudget(limit // READING_SHARE)
        self.rows = 0
        """Bytes of the sessions' rows that the store caches, with their configurations."""
        self.memories_in_use = 0
        self.memories_packed = 0
        self.followed = 0
        """Bytes of the marks of turns and messages that tails were sent."""
        self.evicted_rows = 0
        """How many rows were evicted; memories likewise, below."""
        self.evicted_memories = 0

    @property
    def memories(self) -> int:
        return self.memories_in_use + self.memories_packed

    @property
    def room_for_rows(self) -> int:
        return self.limit // ROWS_SHARE

    @property
    def room_for_memories(self) -> int:
        """The bytes left by the rows, the tails and the readers."""
        return max(0, self.limit - min(self.rows, self.room_for_rows) - self.followed - self.reading.used)


class FairQueue:
    """A few slots for the work of many owners, who take turns; the oldest work of an owner comes first.

    An owner is a project, or None where it is unknown.
    """

    def __init__(self, slots: int) -> None:
        self.free = slots
        self.waiting: dict[str | None, deque[asyncio.Future[None]]] = {}
        """By owner, the next owner first."""

    async def enter(self, owner: str | None, is_resumed: bool = False) -> None:
        """Return once there is a slot; work that `is_resumed` comes before its owner's other work."""
        if self.free and not self.waiting:
            self.free -= 1
            return
        admitted = asyncio.get_running_loop().create_future()
        line = self.waiting.setdefault(owner, deque())
        (line.appendleft if is_resumed else line.append)(admitted)
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self.leave()
            raise

    @asynccontextmanager
    async def slot(self, owner: str | None) -> AsyncIterator[None]:
        await self.enter(owner)
        try:
            yield
        finally:
            self.leave()

    async def enter_for_round(self, owner: str | None) -> None:
        """Return once there is a slot, and keep it until the next round of the event loop."""
        await self.enter(owner)
        asyncio.get_running_loop().call_soon(self.leave)

    def leave(self) -> None:
        """Free a slot, and give it to the next in line."""
        self.free += 1
        while self.free and self.waiting:
            owner = next(iter(self.waiting))
            line = self.waiting.pop(owner)
            admitted = line.popleft()
            if line:
                self.waiting[owner] = line
            if not admitted.done():  # it may have been cancelled
                admitted.set_result(None)
                self.free -= 1

    def has_others(self, owner: str | None) -> bool:
        """Return whether any other owner waits."""
        return len(self.waiting) > (owner in self.waiting)
