"""The rates of a key on one websocket connection. Above them nothing is dropped: events wait for their turn."""

import asyncio
import sys
from collections.abc import Callable

from voicemem.security.rate_limits import Bucket, EventBuckets

MAX_AHEAD = 64
"""How many events a connection may charge before they come, so that few events need the bucket."""
REPORT_INTERVAL_S = 1.0
"""How often a connection over the rate is sent an error that says so."""
MIN_HOLD_S = 0.02
"""Shorter holds would stop and start the connection thousands of times a second, for one event each."""


class Throttle:
    """Counts the events taken from a connection, and charges them and their bytes to the buckets of its key.

    While `held`, nothing may be taken. `on_hold` is called when that begins, with whether to notify the client, and
    `on_resume` when it ends. `clock` gives Unix ms.
    """

    def __init__(
        self, clock: Callable[[], int], on_hold: Callable[[bool], None], on_resume: Callable[[], None]
    ) -> None:
        self.clock = clock
        self.on_hold = on_hold
        self.on_resume = on_resume
        self.bucket: Bucket | None = None
        """The bucket that events are charged to; None without a limit."""
        self.bytes: Bucket | None = None
        """The bucket that the bytes of messages are charged to; None without a limit."""
        self.metered = False
        """True if the key is known; until then events are only counted."""
        self.allowance = 0
        """How many events may come before the bucket is needed again; below zero, how many are still to be charged."""
        self.reserved = 0
        """How many the last charge took ahead."""
        self.held = False
        """True if events must wait, because their key is over its rate."""
        self.released = False
        """True if nothing is held any more, because the connection ends."""
        self.last_report_s = -REPORT_INTERVAL_S
        """When the client was last notified, on the loop's clock."""

    def meter(self, buckets: EventBuckets) -> None:
        (self.bucket, self.bytes), self.metered = buckets, True
        if self.bucket is None:
            self.allowance = sys.maxsize

    def count(self, events: int) -> None:
        self.allowance -= events
        if self.allowance < 0:
            self.charge_taken()

    def charge_taken(self) -> None:
        """Charge what was taken, and some ahead; hold the connection if the bucket is empty."""
        if not self.metered or self.bucket is None:
            return
        # A busy connection charges up to 64 events ahead, so that most events cost one subtraction. It gets there by
        # doubling, so that a quiet connection keeps little of what the others of its key could use.
        charged = self.bucket.charge(-self.allowance, min(2 * self.reserved + 1, MAX_AHEAD), self.clock())
        self.allowance = self.reserved = charged.prepaid
        self.hold(charged.wait_s)

    def charge_bytes(self, size: int) -> None:
        """Charge the bytes of what was taken; hold the connection if the bucket is empty.

        Nothing is charged ahead: a message costs the bucket little beside its own work, and only where there is one.
        """
        if self.metered and self.bytes is not None:
            self.hold(self.bytes.charge(size, 0, self.clock()).wait_s)

    def hold(self, wait_s: float) -> None:
        if not wait_s or self.held or self.released:
            return
        self.held = True
        loop = asyncio.get_running_loop()
        notify = loop.time() - self.last_report_s >= REPORT_INTERVAL_S
        if notify:
            self.last_report_s = loop.time()
        self.on_hold(notify)
        loop.call_later(max(wait_s, MIN_HOLD_S), self.end_hold)

    def release(self) -> None:
        """Hold nothing from now on; events are only charged."""
        self.held, self.released = False, True

    def end_hold(self) -> None:
        """End a hold, or begin another: connections with the same key may have emptied the bucket again."""
        if self.held:
            self.held = False
            self.charge_taken()
            self.charge_bytes(0)
            if not self.held:
                self.on_resume()
