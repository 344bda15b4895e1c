"""LiveKit's times: Unix seconds in Python, ms in JavaScript."""

from __future__ import annotations

NEWEST_S = 100_000_000_000
"""Larger times are ms."""


def ms(seconds: float | None) -> int | None:
    """A time in Unix ms; None for what is not one."""
    if seconds is None or not 0 <= seconds < NEWEST_S * 1_000:
        return None
    return round(seconds if seconds >= NEWEST_S else seconds * 1_000)
