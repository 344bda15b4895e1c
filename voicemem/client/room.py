"""Room for unacknowledged events that several sessions share, also those of several clients."""

from __future__ import annotations

import threading


class Room:
    """So many bytes. May be used from any thread. Raises `ValueError` for less than one."""

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 1:
            raise ValueError("max_bytes must be at least 1")
        self.max_bytes = max_bytes
        self.used = 0
        self.lock = threading.Lock()

    def take(self, size: int, ignore_limit: bool = False) -> bool:
        """Whether there is room for so many bytes, which are then used."""
        with self.lock:
            if self.used + size > self.max_bytes and not ignore_limit:
                return False
            self.used += size
            return True

    def give_back(self, size: int) -> None:
        with self.lock:
            self.used -= size
