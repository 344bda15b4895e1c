"""What is not pure, passed in: the clock, randomness, and new ids and secrets."""

from __future__ import annotations

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
