"""A producer's lease on a session, the batch of its events that waits for the next commit, and the result of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from voicemem.config.secrets import SECRETS, SessionPatch
from voicemem.config.session import validate_config
from voicemem.dialects.dialect import Openings
from voicemem.errors import VoicememError
from voicemem.protocol.codec import ENCODER, DecodedEvent, RejectedEvent
from voicemem.protocol.events import (
    FrameEvent,
    IncomingEvent,
    RefusalMarker,
    SessionEnd,
    SessionUpdate,
    TranscriptEvent,
    update_patch,
)
from voicemem.protocol.strict_json import JSON_DECODER
from voicemem.sessions.recording.frames import ReducedFrame, merge_audio_counts
from voicemem.store.admission import AppendResult, Batch, Offer, Outcome, outcome_sentence
from voicemem.store.streams import SessionEnding, Stream


class ConfigUpdate(DecodedEvent, frozen=True):
    """A valid `session.update`. Its secrets are in `patch`, and not in `payload`."""

    patch: SessionPatch


def validated_update(event: SessionUpdate, payload: bytes) -> ConfigUpdate:
    """Validate the patch of an update, and take its secrets out of the payload. Raises `Refused` (`invalid_field`)."""
    patch = validate_config(update_patch(event))
    values = JSON_DECODER.decode(payload)  # always encoded again, since a doubled key could hide a secret
    for section, key in SECRETS:
        if isinstance(values.get(section), dict):
            values[section].pop(key, None)
    return ConfigUpdate(event, ENCODER.encode(values), patch)


RESERVED_PRODUCERS = frozenset({"agora.rest", "api", "gateway"})
"""Names under which the service itself journals what arrives otherwise than as events; their events have no seq."""
DEFAULT_END_REASON = "ended"
"""The reason of a `session.end` that gives none."""


class EventProblem(NamedTuple):
    """One event that was refused, as it is reported to its sender. `expected` is the seq that a gap waits for."""

    seq: int | None
    code: str
    detail: str
    expected: int | None = None


class FoldEntry(NamedTuple):
    """An event at its position in the journal."""

    position: int
    event: IncomingEvent | RefusalMarker


class BatchResult(NamedTuple):
    """What became of a batch: `acked` is the highest seq that is on disk, and `problems` are sent before its ack."""

    acked: int | None
    problems: Sequence[EventProblem]
    next_seq: int
    stream: Stream
    offered: int
    """Events that were offered to the journal."""
    stored: int
    """Events that were stored."""
    position: int | None = None
    """The position of the first event of a batch that was stored whole; `entries` is empty then."""
    size: int = 0
    """Bytes of the payloads that were stored."""
    repeated: int = 0
    """Events that had been stored before."""
    ended: bool = False
    """Whether the batch held the producer's end."""
    entries: Sequence[FoldEntry] = ()
    """What the fold takes, one event each, of a batch that was not stored whole."""
    updates: Sequence[ConfigUpdate] = ()
    """The configuration changes among the stored events."""
    reopened: bool = False
    """Whether the batch opened its session again."""
    position_taken: bool = False
    """Whether nothing was looked at, since the journal did not end at the expected position."""

    @property
    def taken(self) -> bool:
        """Whether any event of the batch is in the journal, by this batch or an earlier one."""
        return self.stored + self.repeated > 0


class ProducerLease:
    """A producer's access to a session: one epoch on a connection, or one HTTP request (without an epoch)."""

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
        self.position = stream.position
        """Where the journal ended when this was last seen."""
        self.project = stream.project
        self.session_id = stream.id
        self.producer = producer
        self.epoch = epoch
        self.may_call_out = may_call_out
        """Whether its updates may set URLs that the server calls (scope `admin`)."""
        self.may_set = may_set
        """Whether it may send updates at all; the holder of a session token may not."""
        self.key_id = key_id
        """The key that its events came with, for the audit."""
        self.openings = Openings()
        """What its frames of other stacks have opened."""
        self.reported_gap: int | None = None
        """The seq that a reported gap waits for; higher ones are ignored without another error."""


ResultCallback = Callable[["PendingBatch", BatchResult | VoicememError], None]


class PendingBatch:
    """Events of one lease that wait for the next commit, and the function that gets their result."""

    def __init__(
        self, lease: ProducerLease, on_result: ResultCallback, kind: str = "http", origin: object = None
    ) -> None:
        self.lease = lease
        self.on_result = on_result
        self.kind = kind
        """How the events came in: `websocket` or `http`."""
        self.origin = origin
        """The trace that its commit continues (see `voicemem.telemetry.tracing`)."""
        self.size = 0
        """In bytes, set and used by the sender's side only."""
        self.events: list[IncomingEvent] = []
        self.payloads: list[bytes] = []
        self.first_seq = 0
        self.next_seq = 0
        self.arrivals: list[DecodedEvent | RejectedEvent] | None = None
        """None while all events are ordinary and their seqs consecutive: then `events` and `payloads` have them.

        With the first other event it becomes the list of all. The plain form needs no object and no look at each event,
        neither here nor in the store (see `voicemem.store.admission.admits_all`).
        """
        self.from_seq: int | None = None
        """The lowest seq that its producer can still send; only events over HTTP say so, others at their open."""
        self.expected_until_ms: int | None = None
        """Until when a producer without a connection is expected back."""
        self.expected_position: int | None = None
        """Where the journal must end for this to be stored."""
        self.is_sealed = False
        """Whether it has been offered to the journal, so that nothing can be added any more."""

        self.is_redacted = False
        """Whether what must not be kept has been taken out of it."""

    def add_ordinary(self, event: TranscriptEvent, payload: bytes) -> None:
        """Add an event that changes nothing but the transcript."""
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
        if isinstance(arrival, ReducedFrame) and self.arrivals and isinstance(self.arrivals[-1], ReducedFrame):
            both = merge_audio_counts(self.arrivals[-1], arrival)
            if both is not None:
                self.arrivals[-1] = both
                return
        self.arrivals.append(arrival)

    def events_so_far(self) -> Iterator[IncomingEvent]:
        """Its events, but for those that were rejected."""
        if self.arrivals is None:
            return iter(self.events)
        return (one.event for one in self.arrivals if isinstance(one, DecodedEvent))

    def payloads_so_far(self) -> Iterator[bytes]:
        if self.arrivals is None:
            return iter(self.payloads)
        return (one.payload for one in self.arrivals if isinstance(one, DecodedEvent))

    def seal(self, now_ms: int) -> Batch:
        """The batch in the journal's form. Nothing may be added after this."""
        lease, self.is_sealed = self.lease, True
        conditions = self.from_seq, self.expected_until_ms, self.expected_position
        if self.arrivals is None:
            ordinary = self.payloads, self.first_seq, None
            return Batch(lease.key, lease.producer, lease.epoch, now_ms, *ordinary, *conditions)
        offers = [to_offer(arrival, now_ms) for arrival in self.arrivals if is_offered(arrival)]
        return Batch(lease.key, lease.producer, lease.epoch, now_ms, (), 0, offers, *conditions)


def is_offered(arrival: DecodedEvent | RejectedEvent) -> bool:
    """Whether the journal gets to see an event: a rejected one without a readable seq takes no position there."""
    return isinstance(arrival, DecodedEvent) or arrival.seq is not None


def to_offer(arrival: DecodedEvent | RejectedEvent, now_ms: int) -> Offer:
    if isinstance(arrival, RejectedEvent):
        return Offer(arrival.seq, now_ms, b"", refusal=arrival.code)
    event = arrival.event
    assert isinstance(arrival, ConfigUpdate) or not isinstance(event, SessionUpdate)  # its secrets would be journaled
    assert isinstance(arrival, ReducedFrame) or not isinstance(event, FrameEvent)  # and all that a vendor sends
    patch = arrival.patch if isinstance(arrival, ConfigUpdate) else None
    ending = None
    if isinstance(arrival, ReducedFrame) and arrival.reduced is not None and arrival.reduced.end is not None:
        ending = SessionEnding(now_ms if event.ts is None else event.ts, arrival.reduced.end)
    elif isinstance(event, SessionEnd):
        ending = SessionEnding(now_ms if event.ts is None else event.ts, event.reason or DEFAULT_END_REASON)
    return Offer(event.seq, now_ms, arrival.payload, update=patch, ending=ending)


REFUSED = RefusalMarker(code="")
"""Stands for any refused event in the fold, where it takes a position and changes nothing."""


def result_of(batch: PendingBatch, appended: AppendResult) -> BatchResult:
    """The result of a batch. Most batches are of ordinary events in order, and are stored whole."""
    if appended.position is None:
        return result_by_event(batch, appended)
    batch.lease.reported_gap = None
    count = len(batch.events)
    size = sum(map(len, batch.payloads))
    next_seq, stream = appended.next_seq, appended.stream
    return BatchResult(batch.next_seq - 1, (), next_seq, stream, count, count, appended.position, size)


def result_by_event(batch: PendingBatch, appended: AppendResult) -> BatchResult:
    """The result of a batch whose events were stored, known or refused one by one. An error counts as an ack."""
    if appended.position_taken:
        return BatchResult(None, (), appended.next_seq, appended.stream, 0, 0, position_taken=True)
    acked, problems, entries, updates, stored, repeated, size, ended = None, [], [], [], 0, 0, 0, False
    for arrival, outcome in outcomes_of(batch, appended):
        problem = problem_of(batch.lease, arrival, outcome)
        if problem is not None:
            problems.append(problem)
        if outcome is None:
            continue
        if outcome.position is not None:
            kept = arrival if isinstance(arrival, DecodedEvent) and outcome.code is None else None
            entries.append(FoldEntry(outcome.position, REFUSED if kept is None else kept.event))
            size += 0 if kept is None else len(kept.payload)
        if outcome.code is not None:
            continue
        stored, repeated = stored + (not outcome.duplicate), repeated + outcome.duplicate
        seq = seq_of(arrival)
        acked = max(acked or 0, seq) if seq is not None else acked
        ended = ended or ends_session(arrival)
        if isinstance(arrival, ConfigUpdate) and not outcome.duplicate:
            updates.append(arrival)
    offered, next_seq, stream = len(appended.outcomes), appended.next_seq, appended.stream
    return BatchResult(
        *(acked, problems, next_seq, stream, offered, stored, None, size, repeated, ended, entries, updates),
        reopened=appended.reopened,
    )


def ends_session(arrival: DecodedEvent | RejectedEvent) -> bool:
    """Whether an event is its producer's end: a `session.end`, or what another stack has for it."""
    if isinstance(arrival, ReducedFrame):
        return arrival.reduced is not None and arrival.reduced.end is not None
    return isinstance(arrival, DecodedEvent) and isinstance(arrival.event, SessionEnd)


def outcomes_of(
    batch: PendingBatch, appended: AppendResult
) -> Iterator[tuple[DecodedEvent | RejectedEvent, Outcome | None]]:
    """Each event with its outcome, which is None for an event that was not offered."""
    arrivals = batch.arrivals if batch.arrivals is not None else map(DecodedEvent, batch.events, batch.payloads)
    offered = iter(appended.outcomes)
    for arrival in arrivals:
        yield arrival, next(offered) if is_offered(arrival) else None


def seq_of(arrival: DecodedEvent | RejectedEvent) -> int | None:
    return arrival.event.seq if isinstance(arrival, DecodedEvent) else arrival.seq


def problem_of(
    lease: ProducerLease, arrival: DecodedEvent | RejectedEvent, outcome: Outcome | None
) -> EventProblem | None:
    """The error to report for one event; None when there is none, or when its gap was reported before.

    A producer that sends on after a gap would get an error for each event. So one error names the seq that is expected,
    and the lease remembers it until an event is stored again.
    """
    if outcome is not None and outcome.position is not None:
        lease.reported_gap = None
    if isinstance(arrival, RejectedEvent) and (outcome is None or outcome.code == arrival.code):
        return EventProblem(arrival.seq, arrival.code, arrival.detail)
    if outcome is None or outcome.code is None:
        return None
    if outcome.code == "seq_gap":
        if lease.reported_gap == outcome.expected:
            return None
        lease.reported_gap = outcome.expected
    return EventProblem(seq_of(arrival), outcome.code, outcome_sentence(outcome), outcome.expected)
