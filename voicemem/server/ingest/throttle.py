"""The rate of a key on one websocket connection: over it nothing is dropped, but what comes waits for its time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from voicemem.security.rate_limits import Bucket

MAX_AHEAD = 64
"""Events that a connection takes from the rate of its key ahead of their coming, to ask for few of them."""
NOTICE_INTERVAL_S = 1.0
"""A connection that is over the rate of its key is told so this often."""
MIN_HOLD_S = 0.02
"""Two thousand times a second for one event each would be work for nothing."""


class Throttle:
    """Counts what is taken from a connection, and charges it to the rate of its key.

    While `held` nothing may be taken. `on_hold` is called when that begins, with whether to say so, and `on_resume`
    when it is over. `clock` gives Unix ms.
    """

    __slots__ = (
        "allowance",
        "bucket",
        "clock",
        "held",
        "last_notice_s",
        "metered",
        "on_hold",
        "on_resume",
        "released",
        "reserved",
    )

    def __init__(
        self, clock: Callable[[], int], on_hold: Callable[[bool], None], on_resume: Callable[[], None]
    ) -> None:
        self.clock = clock
        self.on_hold = on_hold
        self.on_resume = on_resume
        self.bucket: Bucket | None = None
        """What events are charged to; None where there is no limit."""
        self.metered = False
        """Whether it is known whom to charge; until then events are only counted."""
        self.allowance = 0
        """So many events may still come before the rate is asked again; below zero, so many are to be charged."""
        self.reserved = 0
        """So many were taken from it at the last time, beyond what had come."""
        self.held = False
        """Whether what comes must wait, because its key is over its rate."""
        self.released = False
        """Whether nothing is held any more, since the connection ends."""
        self.last_notice_s = -NOTICE_INTERVAL_S
        """When it was last told so, on the loop's clock."""

    def meter(self, bucket: Bucket | None) -> None:
        """Charge what comes to this bucket, and what has come."""
        self.bucket, self.metered = bucket, True
        if bucket is None:
            self.allowance = sys.maxsize

    def stop(self) -> None:
        """Charge nothing any more: nothing more is taken."""
        self.metered = False

    def count(self, events: int) -> None:
        """Count what is taken."""
        self.allowance -= events
        if self.allowance < 0:
            self.charge_taken()

    def charge_taken(self) -> None:
        """Charge what was taken, and some ahead; hold the connection when that is more than there is."""
        if not self.metered or self.bucket is None:
            return
        # A busy connection takes up to 64 events ahead, so that most events cost one subtraction; a quiet one takes
        # few, so that what others could use does not lie around here.
        charged = self.bucket.charge(-self.allowance, min(2 * self.reserved + 1, MAX_AHEAD), self.clock())
        self.allowance = self.reserved = charged.ahead
        if not charged.wait_s or self.held or self.released:
            return
        self.held = True
        loop = asyncio.get_running_loop()
        notify = loop.time() - self.last_notice_s >= NOTICE_INTERVAL_S
        if notify:
            self.last_notice_s = loop.time()
        self.on_hold(notify)
        loop.call_later(max(charged.wait_s, MIN_HOLD_S), self.end_hold)

    def release(self) -> None:
        """Hold nothing from now on, and charge it only."""
        self.held, self.released = False, True

    def end_hold(self) -> None:
        """The time is over; others who share the rate may have been faster."""
        if self.held:
            self.held = False
            self.charge_taken()
            if not self.held:
                self.on_resume()
