"""What is not pure, handed in: the clock, and the making of ids and secrets."""

from __future__ import annotations

import secrets
import string
import time
from collections.abc import Callable

LETTERS = string.ascii_letters + string.digits
Clock = Callable[[], int]
"""Gives Unix ms."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def new_id() -> str:
    return secrets.token_hex(16)


def new_secret(length: int) -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(length))
