"""Sources of what is not pure, passed in: clock, randomness, ids, secrets; and RAM and slots that many share."""

import asyncio
import random
import secrets
import string
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

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
    """The sources of everything that is not pure; tests replace what they want to control."""

    clock: Clock = now_ms
    new_id: Callable[[], str] = new_id
    """Returns a new random id of hexadecimal digits."""
    new_secret: Callable[[int], str] = new_secret
    """Returns a new secret of this many letters and digits."""
    random: Callable[[], float] = random.random
    """Returns a number in [0, 1)."""


class NodeToken:
    """The token of this process as a node of its store; empty before it is one, and after."""

    def __init__(self) -> None:
        self.token = ""


DEFAULT_BYTES = 512 * 1024 * 1024
ROWS_SHARE = 4
"""One part of this many is the most that the store's rows may take: reading one again costs little."""


class MemoryBudget:
    """Bytes that the caches of one service take, by kind, and may take together.

    Each cache keeps its own figures up to date, on its own thread, and evicts what is too much.
    """

    def __init__(self, limit: int = DEFAULT_BYTES) -> None:
        self.limit = limit
        self.rows = 0
        """Bytes of sessions' rows that the store keeps at hand, with their configurations."""
        self.memories_in_use = 0
        self.memories_packed = 0
        self.followed = 0
        """Bytes of what tails were sent of memories."""
        self.evicted_rows = 0
        """How many were dropped because they were too much; likewise below."""
        self.evicted_memories = 0

    @property
    def memories(self) -> int:
        return self.memories_in_use + self.memories_packed

    @property
    def room_for_rows(self) -> int:
        return self.limit // ROWS_SHARE

    @property
    def room_for_memories(self) -> int:
        """The bytes left by the rows and the tails."""
        return max(0, self.limit - min(self.rows, self.room_for_rows) - self.followed)


class FairQueue:
    """A few slots for the work of many owners: of those who wait, one of each owner after the other, the oldest first.

    An owner is a project, or None where it is unknown.
    """

    def __init__(self, slots: int) -> None:
        self.free = slots
        self.waiting: dict[str | None, deque[asyncio.Future[None]]] = {}
        """By owner; the owner that is next comes first."""

    async def enter(self, owner: str | None, is_resumed: bool = False) -> None:
        """Return once there is a slot; work that `is_resumed` comes before what else its owner waits for."""
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
        if self.free and not self.waiting:
            self.free -= 1
        else:
            await self.enter(owner)
        asyncio.get_running_loop().call_soon(self.leave)

    def leave(self) -> None:
        """Free a slot, and give it to who is next."""
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
        """Tell whether any other owner waits."""
        return len(self.waiting) > (owner in self.waiting)
