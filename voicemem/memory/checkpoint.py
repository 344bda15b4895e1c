"""Checkpoints: a session with its whole journal in one portable document, and sessions restored from one.

Restored events are checked as a producer's are, so that a document written by hand cannot bring in anything that ingest
would refuse.
"""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from voicemem.config.secrets import SessionPatch
from voicemem.config.session import apply_patch, validate_config
from voicemem.dialects.dialect import MalformedFrame, UnknownFrame
from voicemem.dialects.registry import DIALECTS
from voicemem.documents.document import MAX_DOCUMENT_BYTES, check_form, content_size
from voicemem.errors import CODES, InvalidFrame, Refused, StoreUnavailable
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
from voicemem.protocol.json_pieces import Pieces, Unreadable
from voicemem.protocol.strict_json import JSON_DECODER, MALFORMED, SORTED, check_frame, check_integers, check_numbers
from voicemem.protocol.types import JsonObject, Name, SequenceNumber
from voicemem.sessions.batches import DEFAULT_END_REASON
from voicemem.sessions.config_update import validated_update
from voicemem.sessions.frames import reduce_frame
from voicemem.sessions.lifecycle import Sessions
from voicemem.store.port import Journal
from voicemem.store.records import JournalRow, RestoredSession
from voicemem.store.streams import ProducerState, SessionEnding, Stream
from voicemem.transcript.frames import LEFT

CHECKPOINT_KIND, CHECKPOINT_VERSION = "checkpoint", 1
MAX_RESTORE_BYTES = 64 * 1024 * 1024
"""Limit for a checkpoint that is restored over HTTP."""
PAGE = 500
"""Entries that are written at a time."""
MIN_ENTRY_BYTES = 64
"""No entry is shorter: the names of its fields alone take as much. So a body of 64 MiB has at most a million."""
FIELDS = frozenset({"voicemem", "version", "session", "events", "sha256"})
NO_CHECKPOINT, MALFORMED_PART = "This is not a voicemem checkpoint.", "A part of the checkpoint is malformed."
Time = Annotated[int, Meta(ge=0, lt=253_402_300_800_000)]
"""Unix ms by the server's clock, up to the end of the year 9999."""
IDLE_REASON = "idle"
"""The reason of a close that is undone when a producer comes back."""


class CheckpointSession(Struct, frozen=True):
    """The session as it was. When it is restored, its state follows from the events."""

    session_id: str
    state: str
    reason: str | None
    started_at: Time
    ended_at: Time | None
    config: JsonObject


class CheckpointEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the journal; the server's own events have neither producer nor seq."""

    position: SequenceNumber
    producer: Name | None
    seq: SequenceNumber | None
    received_ms: Time
    event: Raw


class CheckpointPieces(Struct, gc=False):
    """A checkpoint as text, and where in it its parts stand."""

    text: bytes
    voicemem: slice | None = None
    version: slice | None = None
    session: slice | None = None
    sha256: slice | None = None
    events: array[int] | None = None
    """The beginning of each entry, and its end."""


def invalid(detail: str) -> Refused:
    return Refused("invalid_checkpoint", detail)


# Writing


async def write_checkpoint(journal: Journal, stream: Stream) -> AsyncGenerator[bytes, None]:
    """The checkpoint of a session up to the position of its row, in pieces. Raises `StoreUnavailable`."""
    session = msgspec.json.encode(
        CheckpointSession(stream.id, stream.state, stream.reason, stream.started_ms, stream.ended_ms, stream.config)
    )
    digest, position = Digest(session), 0
    head = (
        f'{{"voicemem":"{CHECKPOINT_KIND}","version":{CHECKPOINT_VERSION},"session":'.encode()
        + session
        + b',"events":['
    )
    while position < stream.position:
        rows = await journal.read_rows(stream.key, position, min(PAGE, stream.position - position))
        if not rows:
            raise StoreUnavailable("The session was erased meanwhile.")
        entries = [msgspec.json.encode(checkpoint_entry(row)) for row in rows]
        for entry in entries:
            digest.add(entry)
        yield head + b",".join(entries)
        head, position = b",", rows[-1].position
    yield (b"" if position else head) + b'],"sha256":"' + digest.hex().encode() + b'"}'


def checkpoint_entry(row: JournalRow) -> CheckpointEntry:
    return CheckpointEntry(row.position, row.producer, row.seq, row.received_ms, Raw(row.payload))


class Digest:
    """The hash of a checkpoint, independent of white space and the order of keys."""

    def __init__(self, session: bytes | Raw) -> None:
        self.hash = hashlib.sha256()
        self.add(session)

    def add(self, text: bytes | Raw) -> None:
        self.hash.update(SORTED.encode(JSON_DECODER.decode(text)) + b"\n")

    def hex(self) -> str:
        return self.hash.hexdigest()


# Restoring


class ParsedCheckpoint(Struct, frozen=True):
    """A checkpoint that was checked and can be restored."""

    config: JsonObject
    restored: RestoredSession


async def restore_checkpoint(
    sessions: Sessions,
    project: str,
    session_id: str | None,
    checkpoint: ParsedCheckpoint,
    key_id: str | None = None,
) -> Stream:
    """Create a session from a checkpoint. Raises `Refused` (`session_exists`, `session_erased`, `invalid_field`)."""
    public = validate_config(
        checkpoint.config
    ).public  # a checkpoint has no secrets, even if someone wrote some into it
    session_patch = SessionPatch(apply_patch({}, public), {})
    return await sessions.restore(project, session_id, session_patch, checkpoint.restored, key_id)


async def parse_checkpoint(document: bytes) -> ParsedCheckpoint:
    """Check a checkpoint, in a thread, entry by entry. Raises `Refused` (`invalid_checkpoint`)."""
    return await asyncio.to_thread(read_checkpoint, document)


def read_checkpoint(document: bytes) -> ParsedCheckpoint:
    """Check a checkpoint, entry by entry. Raises `Refused` (`invalid_checkpoint`)."""
    pieces = Pieces(document)
    try:
        found = find_pieces(pieces)
        pieces.end()
    except Unreadable:
        raise invalid(NO_CHECKPOINT) from None
    return check_pieces(found)


def find_pieces(pieces: Pieces) -> CheckpointPieces:
    """Find the parts of the checkpoint that comes next in a text. Raises `Unreadable`, `Refused`."""
    found = CheckpointPieces(pieces.text)
    if not pieces.follows(b"{"):
        raise invalid(NO_CHECKPOINT)
    for name in pieces.names():
        if name not in FIELDS:
            raise invalid(f"{NO_CHECKPOINT} It has an unknown field.")
        if name == "events":
            found.events = find_entries(pieces)
        else:
            setattr(found, name, pieces.value())
    return found


def find_entries(pieces: Pieces) -> array[int]:
    """Find the entries of the journal that comes next. Raises `Unreadable`, `Refused`."""
    if not pieces.follows(b"["):
        raise invalid(NO_CHECKPOINT)
    places = array("Q")
    for place in pieces.items():
        if place.stop - place.start < MIN_ENTRY_BYTES:
            raise invalid(MALFORMED_PART)
        places.extend((place.start, place.stop))
    return places


def check_pieces(found: CheckpointPieces) -> ParsedCheckpoint:
    """Check the parts of a checkpoint. Raises `Refused` (`invalid_checkpoint`)."""
    sha256 = check_head(found)
    session_text = found.text[found.session or slice(0, 0)]
    try:
        check_frame(session_text)
        session = msgspec.json.decode(session_text, type=CheckpointSession)
        check_integers(session.config)
        digest, journal = Digest(session_text), CheckpointReader()
        places = found.events or ()
        for start, stop in zip(places[::2], places[1::2], strict=True):
            text = found.text[start:stop]
            journal.add(text)
            digest.add(text)
    except (InvalidFrame, *MALFORMED):
        raise invalid(MALFORMED_PART) from None
    if digest.hex() != sha256:
        raise invalid("The checkpoint was changed after it was made: its sha256 does not match.")
    return ParsedCheckpoint(session.config, journal.restored(session.started_at))


def check_head(found: CheckpointPieces) -> str:
    """Check the kind and the version of a checkpoint; its hash. Raises `Refused`."""
    if None in (found.session, found.events):
        raise invalid(NO_CHECKPOINT)
    nothing = slice(0, 0)
    try:
        kind = msgspec.json.decode(found.text[found.voicemem or nothing], type=str)
        version = msgspec.json.decode(found.text[found.version or nothing], type=int)
        sha256 = msgspec.json.decode(found.text[found.sha256 or nothing], type=str)
    except MALFORMED:
        raise invalid(NO_CHECKPOINT) from None
    if kind != CHECKPOINT_KIND:
        raise invalid(NO_CHECKPOINT)
    if version != CHECKPOINT_VERSION:
        raise invalid(f"The checkpoint has another version; this service reads version {CHECKPOINT_VERSION}.")
    return sha256


class CheckpointReader:
    """Reads the journal of a checkpoint entry by entry, and derives the state of its session."""

    def __init__(self) -> None:
        self.rows: list[JournalRow] = []
        self.producers: dict[str, ProducerState] = {}
        self.closed: tuple[SessionClosed, int] | None = None
        self.ending: SessionEnding | None = None

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
            provisional=reason in (IDLE_REASON, LEFT),
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
