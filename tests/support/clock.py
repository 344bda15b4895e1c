"""A clock that only moves when a test says so."""

from __future__ import annotations

NOW = 1_778_390_400_000


class ManualClock:
    """A time that passes when a test says so."""

    def __init__(self) -> None:
        self.ms = NOW

    def __call__(self) -> int:
        return self.ms

    def wait(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)
