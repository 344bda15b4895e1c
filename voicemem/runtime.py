"""What is not pure, handed in: the clock, randomness, and the making of ids and secrets."""

from __future__ import annotations

import random
import secrets
import string
import time
from collections.abc import Callable
from typing import NamedTuple

LETTERS = string.ascii_letters + string.digits
Clock = Callable[[], int]
"""Gives Unix ms."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def new_id() -> str:
    return secrets.token_hex(16)


def new_secret(length: int) -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(length))


class Runtime(NamedTuple):
    """The world outside; a test replaces what it wants to decide."""

    clock: Clock = now_ms
    new_id: Callable[[], str] = new_id
    """Gives a fresh random text of safe characters."""
    new_secret: Callable[[int], str] = new_secret
    """Gives a secret of so many letters and digits."""
    random: Callable[[], float] = random.random
    """Gives a number in [0, 1)."""
