"""The memory that the caches of one service share, in bytes of what they really take."""

from __future__ import annotations

DEFAULT_BYTES = 512 * 1024 * 1024
ROWS_SHARE = 4
"""One part of this many is the most that the store's rows may take: reading one again costs little."""


class MemoryBudget:
    """What the caches take, by kind, and what they may take together.

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
        """What the rows and the tails do not take."""
        return max(0, self.limit - min(self.rows, self.room_for_rows) - self.followed)
