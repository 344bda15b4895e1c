"""Troubles of the connections of a store; the log says when that begins, and when it is over."""

import logging
import threading
import time
from collections.abc import Hashable

LOG = logging.getLogger("voicemem.store")
BEGUN = "The store is in trouble: %s"
OVER = "The store is out of trouble after %.1f s"
"""Of the trouble of any number of connections there is one such pair: each outage is in the log once."""


class Troubles:
    """The troubles of connections, each on its own: that one works says nothing of the others. For any thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reasons: dict[Hashable, str] = {}
        """By what is in trouble; the newest last."""
        self.since = 0.0
        """When the first of these began, by the monotonic clock."""

    def begin(self, what: Hashable, reason: str) -> None:
        with self.lock:
            if not self.reasons:
                self.since = time.monotonic()
                LOG.warning(BEGUN, reason)
            self.reasons.pop(what, None)
            self.reasons[what] = reason

    def end(self, what: Hashable) -> None:
        if what not in self.reasons:  # nearly always, and after every commit
            return
        with self.lock:
            if self.reasons.pop(what, None) is not None and not self.reasons:
                LOG.warning(OVER, time.monotonic() - self.since)

    def has(self, what: Hashable) -> bool:
        return what in self.reasons

    @property
    def reason(self) -> str | None:
        """The newest; None where nothing is in trouble."""
        with self.lock:
            return next(reversed(self.reasons.values()), None)
