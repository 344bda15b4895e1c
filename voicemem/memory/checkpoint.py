"""Checkpoints: a session with its whole journal in one portable document, and a session made of one again.

What is restored was checked like what a producer sends, so that a document that somebody wrote by hand can put nothing
in that ingest would refuse.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from voicemem.config.secrets import SessionPatch
from voicemem.config.session import apply_patch, validate_config
from voicemem.documents.document import MAX_DOCUMENT_BYTES, check_form, content_size
from voicemem.errors import CODES, InvalidFrame, Refused, StoreUnavailable
from voicemem.protocol.checks import check_event
from voicemem.protocol.codec import RejectedEvent, decode_event, decode_journaled
from voicemem.protocol.events import (
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
from voicemem.protocol.explain import explain
from voicemem.protocol.strict_json import JSON_DECODER, MALFORMED, SORTED, check_frame, check_integers, check_numbers
from voicemem.protocol.types import JsonObject, Name, SequenceNumber
from voicemem.sessions.batches import DEFAULT_REASON
from voicemem.sessions.config_update import validated_update
from voicemem.sessions.lifecycle import Sessions
from voicemem.store.port import Journal
from voicemem.store.records import Restored, Row
from voicemem.store.streams import Ending, Producer, Stream

CHECKPOINT_KIND, CHECKPOINT_VERSION = "checkpoint", 1
MAX_RESTORE_BYTES = 64 * 1024 * 1024
"""Of a checkpoint that is restored over HTTP."""
PAGE = 500
Time = Annotated[int, Meta(ge=0, lt=253_402_300_800_000)]
"""Unix ms of the server's clock, to the end of the year 9999."""
IDLE_REASON = "idle"
"""The reason of closes that a producer that comes back undoes."""


class CheckpointSession(Struct, frozen=True):
    """The session as it was; its state follows from the events."""

    session_id: str
    state: str
    reason: str | None
    started_at: Time
    ended_at: Time | None
    config: JsonObject


class CheckpointEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the journal; those of the server's own have neither producer nor seq."""

    position: SequenceNumber
    producer: Name | None
    seq: SequenceNumber | None
    received_ms: Time
    event: Raw


class CheckpointDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The document; `sha256` is that of its session and events, each as compact JSON with sorted keys, in lines."""

    voicemem: str
    version: int
    session: Raw
    events: list[Raw]
    sha256: str


def invalid(detail: str) -> Refused:
    return Refused("invalid_checkpoint", detail)


# Writing


async def write_checkpoint(journal: Journal, stream: Stream) -> AsyncGenerator[bytes, None]:
    """The checkpoint of a session up to its row's position, in pieces. Raises `StoreUnavailable`."""
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
        rows = await journal.rows(stream.key, position, min(PAGE, stream.position - position))
        if not rows:
            raise StoreUnavailable("The session was erased meanwhile.")
        entries = [msgspec.json.encode(entry_of(row)) for row in rows]
        for entry in entries:
            digest.add(entry)
        yield head + b",".join(entries)
        head, position = b",", rows[-1].position
    yield (b"" if position else head) + b'],"sha256":"' + digest.hex().encode() + b'"}'


def entry_of(row: Row) -> CheckpointEntry:
    return CheckpointEntry(row.position, row.producer, row.seq, row.received_ms, Raw(row.payload))


class Digest:
    """The hash of a document, whatever its white space and the order of its keys."""

    def __init__(self, session: bytes | Raw) -> None:
        self.hash = hashlib.sha256()
        self.add(session)

    def add(self, text: bytes | Raw) -> None:
        self.hash.update(SORTED.encode(JSON_DECODER.decode(text)) + b"\n")

    def hex(self) -> str:
        return self.hash.hexdigest()


# Restoring


class ParsedCheckpoint(Struct, frozen=True):
    """A checkpoint that can be restored."""

    config: JsonObject
    restored: Restored


async def restore_checkpoint(
    sessions: Sessions, project: str, session_id: str | None, checkpoint: ParsedCheckpoint
) -> Stream:
    """A new session of a checkpoint. Raises `Refused` (`session_exists`, `session_erased`, `invalid_field`)."""
    public = validate_config(checkpoint.config).public  # whatever a hand puts in, a checkpoint has no secrets
    return await sessions.restore(project, session_id, SessionPatch(apply_patch({}, public), {}), checkpoint.restored)


async def parse_checkpoint(document: bytes | Raw) -> ParsedCheckpoint:
    """Check a checkpoint, a slice at a time. Raises `Refused` (`invalid_checkpoint`)."""
    checkpoint = decode_checkpoint(document)
    try:
        check_frame(bytes(checkpoint.session))
        session = msgspec.json.decode(checkpoint.session, type=CheckpointSession)
        check_integers(session.config)
        digest, journal = Digest(checkpoint.session), CheckpointReader()
        for number, piece in enumerate(checkpoint.events, 1):
            text = bytes(piece)
            journal.add(text)
            digest.add(text)
            if number % PAGE == 0:
                await asyncio.sleep(0)
    except (InvalidFrame, *MALFORMED):
        raise invalid("A part of the checkpoint is not what it must be.") from None
    if digest.hex() != checkpoint.sha256:
        raise invalid("The checkpoint was changed since it was made: its sha256 is another one.")
    return ParsedCheckpoint(session.config, journal.restored(session.started_at))


def decode_checkpoint(document: bytes | Raw) -> CheckpointDocument:
    try:
        checkpoint = msgspec.json.decode(document, type=CheckpointDocument)
    except MALFORMED as error:
        more = " It has a field that a checkpoint does not have." if "unknown field" in str(error) else ""
        raise invalid(f"This is no checkpoint of voicemem.{more}") from None
    if checkpoint.voicemem != CHECKPOINT_KIND:
        raise invalid("This is no checkpoint of voicemem.")
    if checkpoint.version != CHECKPOINT_VERSION:
        raise invalid(f"The checkpoint is of another version; this service reads version {CHECKPOINT_VERSION}.")
    return checkpoint


class CheckpointReader:
    """The journal of a checkpoint, entry by entry, and where its session stands then."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.producers: dict[str, Producer] = {}
        self.closed: tuple[SessionClosed, int] | None = None
        self.ending: Ending | None = None

    def add(self, text: bytes) -> None:
        """Raises `Refused`, and what `MALFORMED` names for what is no entry."""
        entry = msgspec.json.decode(text, type=CheckpointEntry)
        position = len(self.rows) + 1
        if entry.seq is not None and entry.producer is None:
            raise invalid(f"At position {position}: only a producer's events have a seq.")
        if entry.position != position:
            raise invalid(f"An entry of the journal is missing, or in the wrong place: position {position}.")
        try:
            event, payload = read_entry(entry)
            self.apply_entry(entry, event)
        except (Refused, InvalidFrame) as refused:
            raise invalid(f"At position {position}: {refused.detail}") from None
        except msgspec.ValidationError as error:
            raise invalid(f"At position {position}: {explain(error)[1]}") from None
        self.rows.append(Row(position, entry.producer, entry.seq, entry.received_ms, payload))

    def apply_entry(self, entry: CheckpointEntry, event: JournaledEvent) -> None:
        """What an entry does to producers, and to the session's state."""
        if entry.producer is not None:
            self.advance_seq(self.producer(entry.producer), entry, event)
        match event:
            case SessionGap():
                gap = self.producer(event.producer or "")
                gap.next_seq = max(gap.next_seq, event.to_seq + 1)
            case SessionEnd():
                ts = entry.received_ms if event.ts is None else event.ts
                self.ending = self.ending or Ending(ts, event.reason or DEFAULT_REASON)
            case SessionClosed():
                self.closed, self.ending = (event, entry.received_ms), None
            case SessionReopened():
                self.closed = None

    def producer(self, name: str) -> Producer:
        return self.producers.setdefault(name, Producer(name))

    def advance_seq(self, producer: Producer, entry: CheckpointEntry, event: JournaledEvent) -> None:
        if entry.seq is None:
            producer.unsequenced = True
        if entry.seq is not None and (producer.unsequenced or entry.seq < producer.next_seq):
            raise invalid("The events of a producer are not in the order of their seq.")
        if entry.seq is None and producer.next_seq > 1:
            raise invalid("A producer gives all of its events a seq, or none.")
        producer.next_seq = producer.next_seq if entry.seq is None else entry.seq + 1
        producer.ended = producer.ended or isinstance(event, SessionEnd)

    def restored(self, started_ms: int) -> Restored:
        event, ended_ms = self.closed or (None, None)
        reason = None if event is None else event.reason
        return Restored(
            rows=self.rows,
            started_ms=started_ms,
            producers=list(self.producers.values()),
            ended_ms=ended_ms,
            reason=reason,
            provisional=reason == IDLE_REASON,
            ending=self.ending,
        )


def read_entry(entry: CheckpointEntry) -> tuple[JournaledEvent, bytes]:
    """The event of an entry and its payload, as ingest or the server itself would have journaled it."""
    text = bytes(entry.event)
    check_frame(text)
    event = decode_journaled(text)
    if isinstance(event, RefusalMarker):
        if event.code not in CODES or entry.producer is None:
            raise invalid("An event was refused with a code that there is not.")
        return event, msgspec.json.encode({"type": "refused", "code": event.code})
    if isinstance(event, ServerEvent):
        if entry.producer is not None:
            raise invalid("An event of the server's own cannot be a producer's.")
        check_numbers(text)
        check_event(event, len(text))
        check_own_event(event)
        return event, text
    arrival = decode_event(text)
    if isinstance(arrival, RejectedEvent):
        raise Refused(arrival.code, arrival.detail)
    if event.seq not in (None, entry.seq):
        raise invalid("The event has another seq than its entry.")
    if isinstance(arrival.event, SessionUpdate):
        return event, validated_update(arrival.event, text).payload
    return event, arrival.payload


def check_own_event(event: ServerEvent) -> None:
    """What the types cannot say of working memory. Raises `Refused`."""
    if isinstance(event, MemoryDocument):
        check_form(event)
    if isinstance(event, MemoryDocument | MemoryData) and content_size(event.content) > MAX_DOCUMENT_BYTES:
        raise Refused("too_big", "A working memory document has at most 64 KiB.")
    if isinstance(event, MemoryDocument) and not isinstance(event.content, str | dict | None):
        raise Refused("invalid_field", "The content of a document is a text or an object.")
