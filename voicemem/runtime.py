"""Sources of what is not pure, passed in: clock, randomness, ids, secrets, and the RAM that caches share."""

import random
import secrets
import string
import time
from collections.abc import Callable
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
