"""The rate of a key on one websocket connection: over it nothing is dropped, but what comes waits for its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from voicemem.security.rate_limits import Charged

MOST_AHEAD = 64
"""Events that a connection takes from the rate of its key ahead of their coming, to ask for few of them."""
TELL_AGAIN_S = 1.0
"""A connection that is over the rate of its key is told so this often."""
SHORTEST_HOLD_S = 0.02
"""Two thousand times a second for one event each would be work for nothing."""


class Throttle:
    """Counts what is taken from a connection.

    `charge` takes so many events from the rate, and ahead of their coming what there is; it gives None for nobody who
    is counted now. While `held` nothing may be taken; `hold` is called when that begins, and told whether to say so,
    `go_on` when it is over.
    """

    __slots__ = ("allowance", "charge", "go_on", "held", "hold", "over", "taken_ahead", "told_s")

    def __init__(
        self,
        charge: Callable[[int, int], Charged | None],
        hold: Callable[[bool], None],
        go_on: Callable[[], None],
    ) -> None:
        self.charge = charge
        self.hold = hold
        self.go_on = go_on
        self.allowance = 0
        """So many events may still come before the rate is asked again; below zero, so many are to be charged."""
        self.taken_ahead = 0
        """So many were taken from it at the last time, beyond what had come."""
        self.held = False
        """Whether what comes must wait, because its key is over its rate."""
        self.over = False
        """Whether nothing is held any more, since the connection ends."""
        self.told_s = -TELL_AGAIN_S
        """When it was last told so, on the loop's clock."""

    def count(self, events: int) -> None:
        """Count what is taken."""
        self.allowance -= events
        if self.allowance < 0:
            self.ask()

    def ask(self) -> None:
        """Charge what was taken, and some ahead; hold the connection when that is more than there is."""
        charged = self.charge(-self.allowance, min(2 * self.taken_ahead + 1, MOST_AHEAD))
        if charged is None:
            return
        self.allowance = self.taken_ahead = charged.ahead
        if not charged.wait_s or self.held or self.over:
            return
        self.held = True
        loop = asyncio.get_running_loop()
        tell = loop.time() - self.told_s >= TELL_AGAIN_S
        if tell:
            self.told_s = loop.time()
        self.hold(tell)
        loop.call_later(max(charged.wait_s, SHORTEST_HOLD_S), self.release)

    def let_go(self) -> None:
        """Hold nothing from now on, and charge it only."""
        self.held, self.over = False, True

    def release(self) -> None:
        """The time is over; others who share the rate may have been faster."""
        if self.held:
            self.held = False
            self.ask()
            if not self.held:
                self.go_on()
