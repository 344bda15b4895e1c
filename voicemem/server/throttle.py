"""The rate of a key on one websocket connection: nothing is dropped, but over it the connection is not read on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MOST_AHEAD = 64
"""Events that a connection takes from the rate of its key ahead of their coming, to ask for few of them."""
TELL_AGAIN_S = 1.0
"""A connection that is over the rate of its key is told so this often."""


class Throttle:
    """Counts what comes on a connection.

    `take` takes so many events from the rate and gives 0.0, or takes none and gives the seconds to wait; None is for
    nobody who is counted now. `hold` stops the reading for these seconds, and is told whether to say so; `go_on` is
    called when they are over.
    """

    __slots__ = ("allowance", "go_on", "held", "hold", "take", "taken_ahead", "told_s")

    def __init__(
        self, take: Callable[[int], float | None], hold: Callable[[float, bool], None], go_on: Callable[[], None]
    ) -> None:
        self.take = take
        self.hold = hold
        self.go_on = go_on
        self.allowance = 0
        """So many events may still come before the rate is asked again."""
        self.taken_ahead = 0
        """So many were taken from it at the last time, beyond what had come."""
        self.held = False
        """Whether the connection is not read because its key is over its rate."""
        self.told_s = -TELL_AGAIN_S
        """When it was last told so, on the loop's clock."""

    def count(self, events: int) -> None:
        """Count what has come."""
        self.allowance -= events
        if self.allowance < 0:
            self.ask()

    def ask(self) -> None:
        """Take what has come from the rate, and some ahead; or hold the connection."""
        if self.held:
            return
        ahead = min(2 * self.taken_ahead + 1, MOST_AHEAD)
        wait_s = self.take(ahead - self.allowance)
        if wait_s is None:
            return
        if not wait_s:
            self.allowance = self.taken_ahead = ahead
            return
        self.held = True
        loop = asyncio.get_running_loop()
        tell = loop.time() - self.told_s >= TELL_AGAIN_S
        if tell:
            self.told_s = loop.time()
        self.hold(wait_s, tell)
        loop.call_later(wait_s, self.release)

    def release(self) -> None:
        """The time is over."""
        self.held = False
        self.ask()
        self.go_on()
