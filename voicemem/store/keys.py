"""Keys of streams, endpoints and deliveries: numbers of 53 bits that begin with the time, made without a sequence."""

import secrets
import threading
from collections.abc import Callable
from datetime import UTC, datetime

EPOCH_MS = 1_735_689_600_000
"""The start of 2025: 41 bits of milliseconds last until 2094."""
RANDOM_BITS = 12


class KeySource:
    """Draws keys that rise with the database's time, also within one millisecond; safe for threads.

    Two nodes may draw the same key at the same time, so whoever inserts one must be ready to draw another.
    """

    def __init__(self, now_ms: int, monotonic: Callable[[], float]) -> None:
        self.offset_ms = now_ms - monotonic() * 1000
        self.monotonic = monotonic
        self.last = 0
        self.lock = threading.Lock()

    def now_ms(self) -> int:
        """The database's time, as of the connection that asked for it."""
        return int(self.offset_ms + self.monotonic() * 1000)

    def draw(self) -> int:
        with self.lock:
            drawn = first_key(self.now_ms()) + secrets.randbelow(1 << RANDOM_BITS)
            self.last = max(self.last + 1, drawn)
            return self.last


def first_key(ms: int) -> int:
    """The lowest key of a time in Unix ms."""
    return (ms - EPOCH_MS) << RANDOM_BITS


def month_of(ms: int) -> tuple[int, int]:
    time = datetime.fromtimestamp(ms / 1000, UTC)
    return time.year, time.month


def month_after(year: int, month: int) -> tuple[int, int]:
    return (year + 1, 1) if month == 12 else (year, month + 1)


def month_start_ms(year: int, month: int) -> int:
    return int(datetime(year, month, 1, tzinfo=UTC).timestamp() * 1000)
