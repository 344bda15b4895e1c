"""Events of a checkpoint that is restored: checked one by one as a producer's are, and put in order as a journal."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from voicemem.dialects.dialect import MalformedFrame, UnknownFrame
from voicemem.dialects.registry import DIALECTS
from voicemem.documents.document import MAX_DOCUMENT_BYTES, check_form, content_size
from voicemem.errors import CODES, InvalidFrame, Refused
from voicemem.memory.checkpoints.memories import RestoredMemories
from voicemem.protocol.checks import check_event
from voicemem.protocol.codec import ENCODER, decode_journaled
from voicemem.protocol.events import (
    FrameEvent,
    JournaledEvent,
    MemoryData,
    MemoryDocument,
    RefusalMarker,
    ServerEvent,
    SessionClosed,
    SessionEnd,
    SessionGap,
    SessionReopened,
    SessionUpdate,
)
from voicemem.protocol.explain import explain_event
from voicemem.protocol.strict_json import check_frame, check_numbers
from voicemem.protocol.types import Name, SequenceNumber
from voicemem.sessions.config_update import validated_update
from voicemem.sessions.frames import reduce_frame
from voicemem.sessions.recording.batches import DEFAULT_END_REASON
from voicemem.store.records import JournalRow, RestoredSession
from voicemem.store.streams import ProducerState, SessionEnding
from voicemem.transcript.frames import CLOSED

Time = Annotated[int, Meta(ge=0, lt=253_402_300_800_000)]
"""Unix ms by the server's clock, up to the end of the year 9999."""
IDLE_REASON = "idle"
"""The reason of a close that is undone when a producer comes back."""


class CheckpointEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the journal; the server's own events have neither producer nor seq."""

    position: SequenceNumber
    producer: Name | None
    seq: SequenceNumber | None
    received_ms: Time
    event: Raw


def invalid(detail: str) -> Refused:
    return Refused("invalid_checkpoint", detail)


class CheckpointReader:
    """Reads the journal of a checkpoint entry by entry, and derives the state of its session."""

    def __init__(self) -> None:
        self.rows: list[JournalRow] = []
        self.producers: dict[str, ProducerState] = {}
        self.closed: tuple[SessionClosed, int] | None = None
        self.ending: SessionEnding | None = None
        self.memories = RestoredMemories()

    def add(self, text: bytes) -> None:
        """Check and add an entry. Raises `Refused`, and the errors in `MALFORMED` if it is not an entry."""
        entry = msgspec.json.decode(text, type=CheckpointEntry)
        position = len(self.rows) + 1
        if entry.seq is not None and entry.producer is None:
            raise invalid(f"At position {position}: only a producer's events may have a seq.")
        if entry.position != position:
            raise invalid(f"At position {position}: an entry of the journal is missing or out of order.")
        try:
            event, payload = read_entry(entry)
            self.apply_entry(entry, event)
            payload = self.memories.apply(event, payload, position, entry.received_ms)
        except (Refused, InvalidFrame) as refused:
            raise invalid(f"At position {position}: {refused.detail}") from None
        except msgspec.ValidationError as error:
            raise invalid(f"At position {position}: {explain_event(error, None)[1]}") from None
        self.rows.append(JournalRow(position, entry.producer, entry.seq, entry.received_ms, payload))

    def apply_entry(self, entry: CheckpointEntry, event: JournaledEvent) -> None:
        """Apply an entry to its producer, and to the state of the session."""
        if entry.producer is not None:
            self.advance_seq(self.producer(entry.producer), entry, event)
        match event:
            case SessionGap():
                gap = self.producer(event.producer or "")
                gap.next_seq = max(gap.next_seq, event.to_seq + 1)
            case SessionEnd():
                ts = entry.received_ms if event.ts is None else event.ts
                self.ending = self.ending or SessionEnding(ts, event.reason or DEFAULT_END_REASON)
            case SessionClosed():
                self.closed, self.ending = (event, entry.received_ms), None
            case SessionReopened():
                self.closed = None

    def producer(self, name: str) -> ProducerState:
        return self.producers.setdefault(name, ProducerState(name))

    def advance_seq(self, producer: ProducerState, entry: CheckpointEntry, event: JournaledEvent) -> None:
        if entry.seq is None:
            producer.unsequenced = True
        if entry.seq is not None and (producer.unsequenced or entry.seq < producer.next_seq):
            raise invalid("The events of a producer must be in the order of their seq.")
        if entry.seq is None and producer.next_seq > 1:
            raise invalid("A producer must give all of its events a seq, or none.")
        producer.next_seq = producer.next_seq if entry.seq is None else entry.seq + 1
        producer.ended = producer.ended or isinstance(event, SessionEnd)

    def restored(self, started_ms: int) -> RestoredSession:
        """What a store needs to create the session."""
        event, ended_ms = self.closed or (None, None)
        reason = None if event is None else event.reason
        return RestoredSession(
            rows=self.rows,
            started_ms=started_ms,
            producers=list(self.producers.values()),
            ended_ms=ended_ms,
            reason=reason,
            provisional=reason in (IDLE_REASON, CLOSED),
            ending=self.ending,
        )


def read_entry(entry: CheckpointEntry) -> tuple[JournaledEvent, bytes]:
    """The event of an entry, and its payload as ingest or the server would have journaled it. Raises `Refused`.

    Fields that this version does not know stay, as they do in the journal: another version let them in.
    """
    text = bytes(entry.event)
    check_frame(text)
    event = decode_journaled(text)
    if isinstance(event, RefusalMarker):
        if event.code not in CODES or entry.producer is None:
            raise invalid("The code of a refused event is unknown, or the entry has no producer.")
        return event, msgspec.json.encode({"type": "refused", "code": event.code})
    check_numbers(text)
    check_event(event, len(text))
    if isinstance(event, ServerEvent):
        if entry.producer is not None:
            raise invalid("An event of the server's own cannot have a producer.")
        check_own_event(event)
        return event, text
    if event.seq not in (None, entry.seq):
        raise invalid("The event must have the same seq as its entry.")
    if isinstance(event, FrameEvent):
        return read_frame(event, text)
    return event, validated_update(event, text).payload if isinstance(event, SessionUpdate) else text


def read_frame(event: FrameEvent, text: bytes) -> tuple[FrameEvent, bytes]:
    """A frame of another stack, reduced as at the doors: whoever wrote the checkpoint may have added to it.

    Raises `Refused`.
    """
    dialect = DIALECTS.get(event.dialect)
    if dialect is None:
        raise Refused("unknown_dialect")
    if event.frame is None:
        return event, text
    try:
        frame = reduce_frame(dialect, event)
    except (MalformedFrame, UnknownFrame) as error:
        raise Refused("malformed_frame", f"A frame is not one of {dialect.name}.") from error
    if frame is None:
        raise Refused("malformed_frame", "A frame says nothing, and would not be kept.")
    if frame.content == event.frame:
        return event, text
    reduced = msgspec.structs.replace(event, frame=frame.content)
    return reduced, ENCODER.encode(reduced)


def check_own_event(event: ServerEvent) -> None:
    """Check what types cannot express about working memory. Raises `Refused`."""
    if isinstance(event, MemoryDocument):
        check_form(event)
    if isinstance(event, MemoryDocument | MemoryData) and content_size(event.content) > MAX_DOCUMENT_BYTES:
        raise Refused("too_big", "A working memory document may have at most 64 KiB.")
    if isinstance(event, MemoryDocument) and not isinstance(event.content, str | dict | None):
        raise Refused("invalid_field", "The content of a document must be a text or an object.")
