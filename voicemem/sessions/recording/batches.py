"""A producer's lease on a session, and the batch of its events, which waits for the next commit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from operator import attrgetter
from typing import Any, cast, get_args

import msgspec

from voicemem.config.session import SECRETS, SessionPatch, validate_config
from voicemem.dialects.caller_fields import MAX_NUMBERS, Caller
from voicemem.dialects.dialect import AUDIO_BYTES, MERGED_MS, Frame
from voicemem.errors import VoicememError
from voicemem.protocol import events
from voicemem.protocol.codec import ENCODER, JSON_DECODER, DecodedEvent, RejectedEvent, split_payloads
from voicemem.protocol.frames import Error
from voicemem.protocol.types import JsonObject
from voicemem.store.append_rules import AppendResult, Batch, Offer, Outcome, outcome_sentence
from voicemem.store.streams import SessionEnding, Stream

LOG = logging.getLogger("voicemem")


class ConfigUpdate(DecodedEvent, frozen=True):
    """A valid `session.update`. Its secrets are in `patch`, and not in `payload`."""

    patch: SessionPatch


def validated_update(event: events.SessionUpdate, payload: bytes) -> ConfigUpdate:
    """Validate the patch of an update, and take its secrets out of the payload. Raises `Refused` (`invalid_field`)."""
    patch = validate_config(events.update_patch(event))
    values = JSON_DECODER.decode(payload)  # always encoded again, since a doubled key could hide a secret
    for section, key in SECRETS:
        if isinstance(values.get(section), dict):
            values[section].pop(key, None)
    return ConfigUpdate(event, ENCODER.encode(values), patch)


DEFAULT_END_REASON = "ended"
"""The reason of a `session.end` that gives none."""
MAX_OPEN = 256
"""The most openings of one sender that are remembered."""
PLAIN_KINDS = frozenset(get_args(events.TranscriptEvent))


@dataclass(eq=False, repr=False)
class SenderState:
    """The state of a sender that later frames need: openings, and the facts about the caller.

    A frame `within` another one is kept only after that one: a prompt that an app sends may look like a text that a
    user has typed.
    """

    openings: dict[str, None] = field(default_factory=dict)
    caller: Caller | None = None
    picked: JsonObject = field(default_factory=dict)
    """The fields of the newest frame that identified the caller."""
    dialect: str = ""
    """The dialect of the frames that identified the caller."""
    is_unidentified: bool = False
    """True if a frame identified the caller, and the session's user was not looked up since."""

    def admits(self, frame: Frame, is_known: Callable[[str], bool] | None = None) -> bool:
        """True if a frame may be kept; `is_known` knows openings that came before, over another connection."""
        within = frame.within
        if within is not None and within not in self.openings and not (is_known is not None and is_known(within)):
            return False
        if frame.opens and frame.id is not None:
            self.openings.pop(frame.id, None)
            self.openings[frame.id] = None
            if len(self.openings) > MAX_OPEN:
                del self.openings[next(iter(self.openings))]
        return True

    def note_caller(self, dialect: str, caller: Caller) -> None:
        """Add a frame's facts about the caller to the known ones."""
        self.dialect = dialect
        before = self.caller or Caller()
        numbers = tuple(dict.fromkeys((*before.numbers, *caller.numbers)))[:MAX_NUMBERS]
        self.caller = Caller(before.user or caller.user, before.number or caller.number, numbers)
        if self.caller[:2] != before[:2]:
            self.is_unidentified = True


@dataclass(slots=True, eq=False, repr=False)
class ProducerLease:
    """A producer's access to a session: one epoch on a connection, or one HTTP request (without an epoch)."""

    stream: InitVar[Stream]
    producer: str
    epoch: int | None
    may_call_out: bool
    """True if its updates may set URLs that the server calls (scope `admin`)."""
    may_set: bool = True
    """True if it may send updates at all; the holder of a session token may not."""
    key_id: str | None = None
    """The key that its events came with, for the audit."""
    key: int = field(init=False)
    project: str = field(init=False)
    session_id: str = field(init=False)
    position: int = field(init=False)
    """The last known end of the journal."""
    sender: SenderState = field(default_factory=SenderState)
    reported_gap: int | None = None
    """The seq that a reported gap waits for; higher ones are ignored without another error."""

    def __post_init__(self, stream: Stream) -> None:
        self.key, self.project, self.session_id, self.position = stream.key, stream.project, stream.id, stream.position


class ReducedFrame(DecodedEvent, frozen=True):
    """A frame as it is journaled, and what its dialect says about it."""

    reduced: Frame | None
    """None for a frame that says nothing: only its seq counts."""


def merge_audio_counts(one: ReducedFrame, other: ReducedFrame) -> ReducedFrame | None:
    """Merge two audio counts without a seq, of about one time and equal otherwise; return None if they differ."""
    if one.reduced is None or other.reduced is None or not (one.reduced.counts_audio and other.reduced.counts_audio):
        return None
    if one.event.seq is not None or other.event.seq is not None or source_of(one) != source_of(other):
        return None
    assert isinstance(one.event, events.FrameEvent)
    if one.event.ts is not None and other.event.ts is not None and abs(other.event.ts - one.event.ts) > MERGED_MS:
        return None
    total = one.event.frame[AUDIO_BYTES] + other.reduced.content[AUDIO_BYTES]
    event = msgspec.structs.replace(one.event, frame=one.event.frame | {AUDIO_BYTES: total})
    return ReducedFrame(event, ENCODER.encode(event), one.reduced)


def source_of(frame: ReducedFrame) -> tuple[object, ...]:
    """Return everything in an audio count except its time and the count."""
    event = frame.event
    assert isinstance(event, events.FrameEvent)
    content = {key: value for key, value in event.frame.items() if key != AUDIO_BYTES}
    return event.dialect, event.sender, event.ts is None, event.id, content


SEQ = attrgetter("seq")
NOTHING: Any = ()
"""A shared empty value for lists that most batches leave empty."""


class EventBatch(Batch, kw_only=True, eq=False, gc=True):
    """The events of one lease that wait for the next commit, and their results after it."""

    lease: ProducerLease
    on_result: Callable[[EventBatch, VoicememError | None], None]
    """Called after the commit; with an error if nothing of it is known to be stored."""
    kind: str = "http"
    """How the events came in: `websocket` or `http`."""
    origin: object = None
    """The trace that its commit continues (see `voicemem.telemetry.metrics`)."""
    received_bytes: int = 0
    """Set and used by the sender's side only."""
    payloads: list[bytes] = NOTHING
    decoded: list[Any] = NOTHING
    """The events in the payloads."""
    arrivals: list[DecodedEvent | RejectedEvent] = NOTHING
    """Its events one by one, where it is not plain."""
    is_plain: bool = True
    """True if all events change nothing but the transcript and their seqs are consecutive, so that the store need not
    look at each (see `voicemem.store.append_rules.admits_all`)."""
    is_sealed: bool = False
    """True if it has been offered to the journal, so that nothing can be added any more."""
    is_redacted: bool = False
    """True once it has been redacted."""
    next_seq: int = 0
    """The seq that follows its plain events; after the commit, the one that its producer must send next."""

    stream: Stream = cast(Stream, None)
    """Set after the commit, as are all fields below."""
    position: int | None = None
    """The position of the first event of a batch that was stored whole."""
    acked: int | None = None
    """The highest seq that is on disk."""
    problems: list[Error] = NOTHING
    offered: int = 0
    stored: int = 0
    stored_bytes: int = 0
    repeated: int = 0
    ended: bool = False
    """True if it held the producer's end."""
    entries: list[tuple[int, events.IncomingEvent | events.RefusalMarker]] = NOTHING
    """If it was not stored whole, its events for the fold, with their positions."""
    updates: list[SessionPatch] = NOTHING
    reopened: bool = False
    position_taken: bool = False
    """True if nothing was looked at, since the journal did not end at the expected position."""

    @property
    def taken(self) -> bool:
        """True if any event is in the journal, by this batch or an earlier one."""
        return self.stored + self.repeated > 0

    def add(self, arrival: DecodedEvent | RejectedEvent) -> None:
        if self.is_plain and type(arrival) is DecodedEvent and type(arrival.event) in PLAIN_KINDS:
            self.add_transcript([arrival.event], arrival.payload)
            return
        self.take_apart()
        last = self.arrivals[-1] if self.arrivals else None
        if isinstance(arrival, ReducedFrame) and isinstance(last, ReducedFrame):
            both = merge_audio_counts(last, arrival)
            if both is not None:
                self.arrivals[-1] = both
                return
        self.arrivals.append(arrival)

    def add_transcript(self, added: list[Any], text: bytes) -> None:
        """Add events that change nothing but the transcript, with their JSON, in which several have commas between."""
        first, count = added[0].seq or 0, len(added)
        is_next = self.is_plain and first > 0 and (not self.decoded or first == self.next_seq)
        if is_next and (count == 1 or [*map(SEQ, added)] == [*range(first, first + count)]):
            if self.decoded:
                self.decoded += added
                self.payloads.append(text)
            else:
                self.decoded, self.payloads, self.first_seq = added, [text], first
            self.joined, self.next_seq = len(self.decoded), first + count
        else:
            self.take_apart()
            self.arrivals += map(DecodedEvent, added, split_payloads([text]))

    def one_by_one(self) -> list[DecodedEvent | RejectedEvent]:
        return [*map(DecodedEvent, self.decoded, split_payloads(self.payloads))] if self.is_plain else self.arrivals

    def take_apart(self) -> None:
        """Split it into single events."""
        if self.is_plain:
            self.arrivals, self.is_plain = self.one_by_one(), False
            self.decoded, self.payloads, self.joined = NOTHING, NOTHING, 0

    def seal(self, now_ms: int) -> None:
        self.is_sealed, self.received_ms = True, now_ms
        if not self.is_plain:
            self.offers = [to_offer(arrival, now_ms) for arrival in self.arrivals if is_offered(arrival)]

    def settle(self, appended: AppendResult) -> None:
        """Record the results of its events. Most batches are plain, and stored whole. An error counts as an ack."""
        self.stream, self.next_seq, self.position = appended.stream, appended.next_seq, appended.position
        self.reopened, self.position_taken = appended.reopened, appended.position_taken
        if appended.position is not None:
            self.lease.reported_gap = None
            self.acked, self.offered = appended.next_seq - 1, len(self.decoded)
            self.stored, self.stored_bytes = self.offered, sum(map(len, self.payloads))
        elif not appended.position_taken:
            self.offered = len(appended.outcomes)
            self.problems, self.entries, self.updates = [], [], []
            if self.is_plain:
                self.take_apart()
                self.seal(self.received_ms)
            offered = iter(zip(self.as_offers(), appended.outcomes, strict=True))
            for arrival in self.arrivals:
                offer, outcome = next(offered) if is_offered(arrival) else (None, None)
                problem = problem_of(self.lease, arrival, outcome)
                if problem is not None:
                    self.problems.append(problem)
                if offer is not None and outcome is not None:
                    self.settle_offer(arrival, offer, outcome)

    def settle_offer(self, arrival: DecodedEvent | RejectedEvent, offer: Offer, outcome: Outcome) -> None:
        if outcome.position is not None:
            is_kept = isinstance(arrival, DecodedEvent) and outcome.code is None
            self.entries.append((outcome.position, cast(DecodedEvent, arrival).event if is_kept else REFUSED))
            self.stored_bytes += len(offer.payload) if is_kept else 0
        if outcome.code is not None:
            return
        self.stored += not outcome.duplicate
        self.repeated += outcome.duplicate
        if offer.seq is not None:
            self.acked = max(self.acked or 0, offer.seq)
        self.ended = self.ended or offer.ending is not None
        if offer.update is not None and not outcome.duplicate:
            self.updates.append(offer.update)


def is_offered(arrival: DecodedEvent | RejectedEvent) -> bool:
    """Return whether the journal is offered an event: a rejected one without a readable seq takes no position there."""
    return isinstance(arrival, DecodedEvent) or arrival.seq is not None


def to_offer(arrival: DecodedEvent | RejectedEvent, now_ms: int) -> Offer:
    if isinstance(arrival, RejectedEvent):
        return Offer(arrival.seq, now_ms, b"", refusal=arrival.code)
    event = arrival.event
    assert isinstance(arrival, ConfigUpdate) or not isinstance(event, events.SessionUpdate)  # secrets stay out of it
    assert isinstance(arrival, ReducedFrame) or not isinstance(event, events.FrameEvent)  # and all that a vendor sends
    reason, began, ended = None, None, event.ts
    if isinstance(arrival, ReducedFrame):
        frame = arrival.reduced
        if frame is not None and frame.end is not None:
            reason, began, ended = frame.end, frame.began, event.ts if frame.ended is None else frame.ended
    elif isinstance(event, events.SessionEnd):
        reason = event.reason or DEFAULT_END_REASON
    ending = None if reason is None else SessionEnding(now_ms if ended is None else ended, reason, began_ms=began)
    patch = arrival.patch if isinstance(arrival, ConfigUpdate) else None
    return Offer(event.seq, now_ms, arrival.payload, update=patch, ending=ending)


REFUSED = events.RefusalMarker(code="")
"""Any refused event, for the fold: it takes a position and changes nothing."""


def problem_of(lease: ProducerLease, arrival: DecodedEvent | RejectedEvent, outcome: Outcome | None) -> Error | None:
    """Return the error to report for one event; None when there is none, or when its gap was reported before.

    A producer that sends on after a gap would get an error for each event. So one error names the seq that is expected,
    and the lease remembers it until an event is stored again.
    """
    if outcome is not None and outcome.position is not None:
        lease.reported_gap = None
    if isinstance(arrival, RejectedEvent) and (outcome is None or outcome.code == arrival.code):
        code, detail, expected = arrival.code, arrival.detail, None
    elif outcome is None or outcome.code is None:
        return None
    else:
        code, detail, expected = outcome.code, outcome_sentence(outcome), outcome.expected
    if code == "seq_gap":
        if lease.reported_gap == expected:
            return None
        lease.reported_gap = expected
    seq = arrival.event.seq if isinstance(arrival, DecodedEvent) else arrival.seq
    where = lease.session_id, lease.producer
    return Error(session_id=where[0], producer=where[1], seq=seq, code=code, detail=detail, expected=expected)
