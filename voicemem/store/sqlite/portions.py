"""Deleting at leisure: a portion of rows in a transaction, so that the writer is never held up for long."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

ROWS = 200
BYTES = 1024 * 1024
"""Of content; the row that goes over it is the portion's last."""


class Portion:
    """How much of a portion is left; `take` says which rows go."""

    def __init__(self) -> None:
        self.rows = ROWS
        self.bytes = BYTES

    @property
    def begun(self) -> bool:
        return self.rows < ROWS

    @property
    def full(self) -> bool:
        return self.rows <= 0 or self.bytes <= 0

    def take(self, sizes: Iterable[tuple[Any, int]]) -> str:
        """The keys of the first rows, given as (key, bytes), as a JSON array for one statement; empty for none."""
        keys: list[Any] = []
        for key, size in sizes:
            if self.full:
                break
            keys.append(key)
            self.rows -= 1
            self.bytes -= size
        return json.dumps(keys) if keys else ""
