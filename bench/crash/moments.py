"""The moments of a run at which something is done to a service: how they are drawn, and noticed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bench.crash.server import Server

MOMENTS = {
    "time": 30,
    "acknowledged": 20,
    "end sent": 10,
    "end acknowledged": 10,
    "webhook arrived": 8,
    "webhook answered": 12,
    "opened": 4,
}
"""How often each is drawn."""


class Moment(NamedTuple):
    """The n-th moment of one kind."""

    kind: str
    number: int


def draw_moment(rng: random.Random, more: dict[str, int] | None = None) -> Moment:
    """Draw a moment; `more` are kinds that only some runs have."""
    moments = MOMENTS | (more or {})
    kind = rng.choices([*moments], [*moments.values()])[0]
    return Moment(kind, rng.choice([1, 10, 100, 300] if kind == "acknowledged" else [1, 2, 4]))


class Trigger:
    """Does something at exactly the n-th moment of one kind."""

    def __init__(self) -> None:
        self.kind = ""
        self.left = 0
        self.act: Callable[[Server | None], object] = lambda server: None
        self.fired = asyncio.Event()
        self.hits: Counter[str] = Counter()

    def arm(self, moment: Moment, act: Callable[[Server | None], object]) -> None:
        """Call `act` at that moment, with the server that it concerns, where that is known."""
        (self.kind, self.left), self.act = moment, act
        self.fired.clear()

    def disarm(self) -> None:
        """Wait for nothing any more."""
        self.kind = ""

    def hit(self, kind: str, server: Server | None = None) -> None:
        """Note a moment of this kind."""
        if kind != self.kind or self.fired.is_set():
            return
        self.left -= 1
        if self.left <= 0:
            self.act(server)
            self.fired.set()
