"""The sessions that a tail of several knows already, by key, in bounded memory.

A session is new when its key is not known. Clocks play no part: a session may have been restored with any start, or
made while a clock was wrong. Nor is the highest key enough: a lower one may become visible after it, when several nodes
make sessions at the same time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

LOOK_BACK = 256
"""Keys below the newest among which late ones are still found, however long ago these became visible."""
MOST_SEEN = 4_096
"""The same for those that became visible in the last `SETTLED_AFTER` looks: many sessions may begin while one of them
is slow to be committed."""
MAX_NAMED = 32
"""Keys that a place names, at most, apart from those of followed sessions: it must fit into a header."""
SETTLED_AFTER = 20
"""Looks after which a key need not be named in a place any more: whatever is below it has become visible."""


class KnownKeys:
    """The keys up to `floor`, and those in `seen` above it."""

    def __init__(self, floor: int = 0, seen: Iterable[int] = ()) -> None:
        self.floor = floor
        self.seen: list[int] = []
        """In order; at most `LOOK_BACK` and recent ones, `MOST_SEEN` in all, after `forget`."""
        self.first_looks: dict[int, int] = {}
        """By key, at which look it was seen first."""
        self.looks = 0
        self.settled = 0
        """How many of the first keys in `seen` have settled."""
        for key in seen:
            self.add(key)

    def __contains__(self, key: int) -> bool:
        return key <= self.floor or key in self.first_looks

    @property
    def settled_floor(self) -> int:
        """A key up to which everything is known, and nothing more is expected to become visible."""
        return self.seen[self.settled - 1] if self.settled else self.floor

    @property
    def recent(self) -> list[int]:
        """The known keys above `settled_floor`."""
        return self.seen[self.settled :]

    def add(self, key: int) -> None:
        if key in self:
            return
        self.settled = min(self.settled, bisect_left(self.seen, key))
        insort(self.seen, key)
        self.first_looks[key] = self.looks
        self.settle()

    def is_old(self, key: int) -> bool:
        """Whether a key was seen so long ago that whatever is below it has become visible."""
        return self.looks - self.first_looks[key] >= SETTLED_AFTER

    def settle(self) -> None:
        """Move `settled` on, over keys that are old enough, and over the lowest where too many are recent."""
        while self.settled < len(self.seen) and (
            self.is_old(self.seen[self.settled]) or len(self.seen) - self.settled > MAX_NAMED
        ):
            self.settled += 1

    def finish_look(self) -> None:
        """Note that everything visible was looked at, and is known."""
        self.looks += 1
        self.settle()
        self.forget(self.seen[-1] if self.seen else 0)

    def forget(self, up_to: int) -> None:
        """Forget the lowest keys of those that are old enough, if all that is visible up to this key is known."""
        most, count = min(len(self.seen) - LOOK_BACK, bisect_left(self.seen, up_to + 1)), 0
        while count < most and (len(self.seen) - count > MOST_SEEN or self.is_old(self.seen[count])):
            count += 1
        if count > 0:
            self.floor = self.seen[count - 1]
            for key in self.seen[:count]:
                del self.first_looks[key]
            del self.seen[:count]
            self.settled = max(0, self.settled - count)
