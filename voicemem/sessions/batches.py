"""A line into a session, the events that come over it and wait for the next commit, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from voicemem.errors import VoicememError
from voicemem.protocol.codec import DecodedEvent, RejectedEvent
from voicemem.protocol.events import IncomingEvent, RefusalMarker, SessionEnd, SessionUpdate, TranscriptEvent
from voicemem.sessions.config_update import ConfigUpdate
from voicemem.store.admission import Batch, Offer
from voicemem.store.streams import Ending, Stream

OWN_PRODUCERS = frozenset({"agora.rest", "api", "gateway"})
"""Names under which the service journals what comes in by other ways than events; these have no seq."""
DEFAULT_REASON = "ended"
"""The reason of a `session.end` that gives none."""


class Problem(NamedTuple):
    """One event that was not taken, as its sender is told."""

    seq: int | None
    code: str
    detail: str
    expected: int | None = None


class FoldEntry(NamedTuple):
    """Events that were committed in a row, the first at `position`; `size` is that of their payloads in bytes."""

    position: int
    events: Sequence[IncomingEvent | RefusalMarker]
    size: int


class BatchResult(NamedTuple):
    """What became of a batch: `acked` is the highest seq that is on disk, `problems` go out before it."""

    acked: int | None
    problems: list[Problem]
    next_seq: int
    stream: Stream
    offered: int
    """Events that were put to the journal."""
    stored: int
    """Events that it took."""
    repeated: int = 0
    """Events that it had taken before."""
    ended: bool = False
    """Whether the batch held the producer's end."""
    entries: Sequence[FoldEntry] = ()
    updates: Sequence[ConfigUpdate] = ()
    """Changes of the configuration that were stored."""

    @property
    def taken(self) -> bool:
        """Whether anything of the batch is in the journal, now or from before."""
        return self.stored + self.repeated > 0


class ProducerLease:
    """A producer's line into a session: an epoch of it on a connection, or one HTTP request (no epoch)."""

    def __init__(
        self,
        stream: Stream,
        producer: str,
        epoch: int | None,
        may_call_out: bool,
        may_set: bool = True,
        key_id: str | None = None,
    ) -> None:
        self.key = stream.key
        self.project = stream.project
        self.session_id = stream.id
        self.producer = producer
        self.epoch = epoch
        self.may_call_out = may_call_out
        """Whether its updates may set what makes the server call out (scope `admin`)."""
        self.may_set = may_set
        """Whether it may carry updates at all; a session token's may not."""
        self.key_id = key_id
        """Whose events these are, for the audit."""
        self.waiting_for: int | None = None
        """The seq that a reported gap waits for; what is higher is passed over in silence."""


Answer = Callable[["PendingBatch", BatchResult | VoicememError], None]


class PendingBatch:
    """Events of one line that wait for the next commit, and whom to answer after it."""

    def __init__(self, line: ProducerLease, answer: Answer, kind: str = "http", origin: object = None) -> None:
        self.line = line
        self.answer = answer
        self.kind = kind
        """The way in: `websocket` or `http`."""
        self.origin = origin
        """The trace that its commit continues (see `voicemem.telemetry.tracing`)."""
        self.size = 0
        """Bytes, for whoever counts them."""
        self.events: list[IncomingEvent] = []
        self.payloads: list[bytes] = []
        self.first_seq = 0
        self.next_seq = 0
        self.arrivals: list[DecodedEvent | RejectedEvent] | None = None
        """All events, once one was not ordinary, or its seq was not the next; until then there are only the above."""
        self.committing = False
        """Whether it is too late to add to it."""

    def add_ordinary(self, event: TranscriptEvent, payload: bytes) -> None:
        """Add an event that does nothing but stand in the journal."""
        seq = event.seq
        if self.arrivals is None and seq is not None and (seq == self.next_seq or not self.events):
            if not self.events:
                self.first_seq = seq
            self.next_seq = seq + 1
            self.events.append(event)
            self.payloads.append(payload)
        else:
            self.add_other(DecodedEvent(event, payload))

    def add(self, arrival: DecodedEvent | RejectedEvent) -> None:
        if isinstance(arrival, DecodedEvent) and isinstance(arrival.event, TranscriptEvent):
            self.add_ordinary(arrival.event, arrival.payload)
        else:
            self.add_other(arrival)

    def add_other(self, arrival: DecodedEvent | RejectedEvent) -> None:
        if self.arrivals is None:
            self.arrivals = [*map(DecodedEvent, self.events, self.payloads)]
        self.arrivals.append(arrival)

    def offered(self, now_ms: int) -> Batch:
        """As the journal takes it, with nothing more to come."""
        line, self.committing = self.line, True
        if self.arrivals is None:
            return Batch(line.key, line.producer, line.epoch, now_ms, self.payloads, self.first_seq)
        offers = [offer(arrival, now_ms) for arrival in self.arrivals if is_offered(arrival)]
        return Batch(line.key, line.producer, line.epoch, now_ms, offers=offers)


def is_offered(arrival: DecodedEvent | RejectedEvent) -> bool:
    """An event whose seq cannot be read consumes nothing when it cannot be taken."""
    return isinstance(arrival, DecodedEvent) or arrival.seq is not None


def offer(arrival: DecodedEvent | RejectedEvent, now_ms: int) -> Offer:
    if isinstance(arrival, RejectedEvent):
        return Offer(arrival.seq, now_ms, b"", refusal=arrival.code)
    event = arrival.event
    assert isinstance(arrival, ConfigUpdate) or not isinstance(event, SessionUpdate)  # its secrets would be journaled
    patch = arrival.patch if isinstance(arrival, ConfigUpdate) else None
    ending = None
    if isinstance(event, SessionEnd):
        ending = Ending(now_ms if event.ts is None else event.ts, event.reason or DEFAULT_REASON)
    return Offer(event.seq, now_ms, arrival.payload, update=patch, ending=ending)
