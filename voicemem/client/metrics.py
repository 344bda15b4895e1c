"""A client's counts of dropped events, and its metrics in Prometheus' text format."""

import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence

from voicemem.client.buffer import Buffer
from voicemem.client.errors import ClientError
from voicemem.client.options import OnDropped

LOG = logging.getLogger("voicemem.client")
PREFIX = "voicemem_client"


class DroppedEvents:
    """Counts a client's dropped events by error code. May be used from any thread."""

    def __init__(self, on_dropped: OnDropped | None = None) -> None:
        self.on_dropped = on_dropped
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()

    def count(self, error: ClientError) -> int:
        with self.lock:
            self.counts[error.code] += 1
            return self.counts[error.code]

    def report(self, session_id: str, producer: str, error: ClientError) -> None:
        """Count an event. Never raises, because this runs where audio is processed."""
        count = self.count(error)
        if is_worth_logging(count):
            LOG.warning(
                "session %s, producer %s: an event was not taken, number %d with this code: %s",
                *(session_id, producer, count, error),
            )
        if self.on_dropped is not None:
            try:
                self.on_dropped(session_id, producer, error)
            except Exception:  # a bug in the program's callback must not stop its audio
                LOG.exception("on_dropped has failed")


def is_worth_logging(count: int) -> bool:
    """Return True for the 1st, 2nd, 4th, 8th … of a kind, so that an outage does not fill the log."""
    return count & (count - 1) == 0


def exposition(dropped: Mapping[str, int], buffers: Sequence[Buffer], transport: str | None) -> str:
    """Return a client's metrics in the form of a `/metrics` page. `dropped` counts by code."""
    connected = {f'transport="{name}"': int(name == transport) for name in ("websocket", "http")}
    return (
        family("dropped_events_total", "counter", {f'code="{code}"': count for code, count in dropped.items()})
        + family("unacknowledged_events", "gauge", {"": sum(len(buffer) for buffer in buffers)})
        + family("unacknowledged_bytes", "gauge", {"": sum(buffer.size for buffer in buffers)})
        + family("connected", "gauge", connected)
    )


def family(name: str, kind: str, samples: Mapping[str, int], prefix: str = PREFIX) -> str:
    """Return one metric family; `samples` are its values by labels."""
    braced = {f"{{{labels}}}" if labels else "": value for labels, value in sorted(samples.items())}
    lines = [f"{prefix}_{name}{labels} {value}\n" for labels, value in braced.items()]
    return "".join([f"# TYPE {prefix}_{name} {kind}\n", *lines])
