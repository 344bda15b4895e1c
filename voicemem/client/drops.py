"""Events that `send` could not take: counted, logged, and reported to the program."""

from __future__ import annotations

import logging
import threading
from collections import Counter

from voicemem.client.errors import ClientError
from voicemem.client.options import OnDropped

LOG = logging.getLogger("voicemem.client")


class DroppedEvents:
    """Counts the dropped events of a client by the code of their error. May be used from any thread."""

    def __init__(self, on_dropped: OnDropped | None = None) -> None:
        self.on_dropped = on_dropped
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def count(self, error: ClientError) -> int:
        """Count an event; how many of this code there are now."""
        with self.lock:
            self.counts[error.code] += 1
            return self.counts[error.code]

    def report(self, session_id: str, producer: str, error: ClientError) -> None:
        """Count an event. Never raises, since this runs where audio is processed."""
        count = self.count(error)
        if count & (count - 1) == 0:  # the 1st, 2nd, 4th, 8th …: an outage must not fill the log
            LOG.warning(
                "session %s, producer %s: an event was not taken, number %d with this code: %s",
                *(session_id, producer, count, error),
            )
        if self.on_dropped is not None:
            try:
                self.on_dropped(session_id, producer, error)
            except Exception:  # a defect of the program's own must not stop its audio
                LOG.exception("on_dropped has failed")
