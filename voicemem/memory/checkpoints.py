"""Checkpoints: a session with its whole journal as one portable document, and sessions restored from one.

Restored events are checked one by one like a producer's, so a document written by hand cannot bring in anything that
ingest would refuse.
"""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, field, structs

from voicemem.config.session import SessionPatch, apply_patch, validate_config
from voicemem.dialects.dialect import MalformedFrame, UnknownFrame
from voicemem.dialects.registry import DIALECTS
from voicemem.documents.document import MAX_DOCUMENT_BYTES, check_form, content_size
from voicemem.errors import CODES, InvalidFrame, Refused, StoreUnavailable
from voicemem.memory.long_term import records
from voicemem.protocol import codec, events
from voicemem.protocol.codec import ENCODER, check_event, decode_journaled, decode_stored
from voicemem.protocol.comparison import SORTED
from voicemem.protocol.explanations import explain_event
from voicemem.protocol.pieces import Pieces, Unreadable
from voicemem.protocol.types import JsonObject, Name, SequenceNumber
from voicemem.redaction.texts import Rules
from voicemem.sessions.derived import MAX_APPEND_ATTEMPTS
from voicemem.sessions.lifecycle import Sessions
from voicemem.sessions.off_loop import OffLoop
from voicemem.sessions.recording.batches import DEFAULT_END_REASON, validated_update
from voicemem.sessions.recording.recorder import reduce_frame
from voicemem.sessions.schema_worker import SCHEMA_WORKER
from voicemem.store.memories import MAX_ROWS, MemoryRow
from voicemem.store.port import Store
from voicemem.store.quotas import check_producer
from voicemem.store.records import JournalRow, RestoredSession
from voicemem.store.streams import ProducerState, SessionEnding, Stream
from voicemem.transcript.fold import CLOSED

Time = Annotated[int, Meta(ge=0, lt=253_402_300_800_000)]
"""Unix ms by the server's clock, up to the end of the year 9999."""
CHECKPOINT_KIND, CHECKPOINT_VERSION = "checkpoint", 1
MAX_RESTORE_BYTES = 64 * 1024 * 1024
PAGE = 500
MIN_ENTRY_BYTES = 64
"""The least size of an entry, which the names of its fields take. So a body of 64 MiB has at most a million."""
FIELDS = frozenset({"voicemem", "version", "session", "events", "sha256"})
NO_CHECKPOINT, MALFORMED_PART = "This is not a voicemem checkpoint.", "A part of the checkpoint is malformed."
NAMES_MEMORIES = events.MemoryAdded | events.MemoryEdited | events.MemoryRemoved | events.MemoriesExtracted
LOOKED_UP = 500


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
        self.closed: tuple[events.SessionClosed, int] | None = None
        self.ending: SessionEnding | None = None
        self.memories = RestoredMemories()

    def add(self, text: bytes) -> None:
        """Check and add an entry. Raises `Refused`, and the errors of `MALFORMED` if it is not an entry."""
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

    def apply_entry(self, entry: CheckpointEntry, event: events.JournaledEvent) -> None:
        if entry.producer is not None:
            producer = self.producer(entry.producer)
            if entry.seq is None and producer.next_seq > 1:
                raise invalid("A producer must give all of its events a seq, or none.")
            if entry.seq is None:
                producer.unsequenced = True
            elif producer.unsequenced or entry.seq < producer.next_seq:
                raise invalid("The events of a producer must be in the order of their seq.")
            else:
                producer.next_seq = entry.seq + 1
                check_producer(producer.name)
            producer.ended = producer.ended or isinstance(event, events.SessionEnd)
        match event:
            case events.SessionGap():
                gap = self.producer(check_producer(event.producer or ""))
                gap.next_seq = max(gap.next_seq, event.to_seq + 1)
            case events.SessionEnd():
                ts = entry.received_ms if event.ts is None else event.ts
                self.ending = self.ending or SessionEnding(ts, event.reason or DEFAULT_END_REASON)
            case events.SessionClosed():
                self.closed, self.ending = (event, entry.received_ms), None
            case events.SessionReopened():
                self.closed = None

    def producer(self, name: str) -> ProducerState:
        return self.producers.setdefault(name, ProducerState(name))

    def restored(self, started_ms: int) -> RestoredSession:
        event, ended_ms = self.closed or (None, None)
        reason = None if event is None else event.reason
        return RestoredSession(
            rows=self.rows,
            started_ms=started_ms,
            producers=list(self.producers.values()),
            ended_ms=ended_ms,
            reason=reason,
            provisional=reason in ("idle", CLOSED),  # undone when a producer comes back
            ending=self.ending,
        )


def read_entry(entry: CheckpointEntry) -> tuple[events.JournaledEvent, bytes]:
    """Return the event of an entry, and its payload as ingest or the server would have journaled it.

    Fields that this version does not know stay, as in the journal: another version took them. Raises `Refused`.
    """
    text = bytes(entry.event)
    codec.check_frame(text)
    event = decode_journaled(text)
    if isinstance(event, events.RefusalMarker):
        if event.code not in CODES or entry.producer is None:
            raise invalid("The code of a refused event is unknown, or the entry has no producer.")
        return event, msgspec.json.encode({"type": "refused", "code": event.code})
    codec.check_numbers(text)
    check_event(event, len(text))
    if isinstance(event, events.ServerEvent):
        if entry.producer is not None:
            raise invalid("An event of the server's own cannot have a producer.")
        if isinstance(event, events.MemoryDocument):  # types cannot express this
            check_form(event)
        if (
            isinstance(event, events.MemoryDocument | events.MemoryData)
            and content_size(event.content) > MAX_DOCUMENT_BYTES
        ):
            raise Refused("too_big", "A working memory document may have at most 64 KiB.")
        if isinstance(event, events.MemoryDocument) and not isinstance(event.content, str | dict | None):
            raise Refused("invalid_field", "The content of a document must be a text or an object.")
        return event, text
    if event.seq not in (None, entry.seq):
        raise invalid("The event must have the same seq as its entry.")
    if isinstance(event, events.FrameEvent):
        return read_frame(event, text)
    return event, validated_update(event, text).payload if isinstance(event, events.SessionUpdate) else text


def read_frame(event: events.FrameEvent, text: bytes) -> tuple[events.FrameEvent, bytes]:
    """Return another stack's frame, reduced as in ingest, since its writer may have added to it. Raises `Refused`."""
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


class CheckpointSession(Struct, frozen=True):
    """The session as it was. A restored session has the state that follows from the events."""

    session_id: str
    state: str
    reason: str | None
    started_at: Time
    ended_at: Time | None
    config: JsonObject


class CheckpointPieces(Struct, gc=False):
    """The text of a checkpoint, and the places of its parts."""

    text: bytes
    voicemem: slice | None = None
    version: slice | None = None
    session: slice | None = None
    sha256: slice | None = None
    events: array[int] | None = None
    """The start and the end of each entry."""


# Writing


async def write_checkpoint(store: Store, off_loop: OffLoop, stream: Stream) -> AsyncGenerator[bytes, None]:
    """Yield the checkpoint of a session up to the position of its row, in pieces. Raises `StoreUnavailable`."""
    session = msgspec.json.encode(
        CheckpointSession(stream.id, stream.state, stream.reason, stream.started_ms, stream.ended_ms, stream.config)
    )
    digest, position = Digest(session), 0
    mark = (
        f'{{"voicemem":"{CHECKPOINT_KIND}","version":{CHECKPOINT_VERSION},"session":'.encode()
        + session
        + b',"events":['
    )
    while position < stream.position:
        rows = await store.journal.read_rows(stream.key, position, min(PAGE, stream.position - position))
        if not rows:
            raise StoreUnavailable("The session was erased meanwhile.")
        payloads = await payloads_with_texts(store, stream, rows)
        async for piece in off_loop.pieces(entry_parts(rows, payloads, digest, mark), stream.project):
            yield piece
        mark, position = b",", rows[-1].position
    yield (b"" if position else mark) + b'],"sha256":"' + digest.hex().encode() + b'"}'


def entry_parts(rows: Sequence[JournalRow], payloads: Sequence[bytes], digest: Digest, mark: bytes) -> Iterator[bytes]:
    """Yield entries of a checkpoint, the first after `mark` and the others after a comma; the digest gets each."""
    for row, payload in zip(rows, payloads, strict=True):
        entry = msgspec.json.encode(CheckpointEntry(row.position, row.producer, row.seq, row.received_ms, Raw(payload)))
        digest.add(entry)
        yield mark + entry
        mark = b","


class Digest:
    """The hash of a checkpoint, independent of white space and of the order of keys."""

    def __init__(self, session: bytes | Raw) -> None:
        self.hash = hashlib.sha256()
        self.add(session)

    def add(self, text: bytes | Raw) -> None:
        self.hash.update(SORTED.encode(codec.JSON_DECODER.decode(text)) + b"\n")

    def hex(self) -> str:
        return self.hash.hexdigest()


# Restoring


class ParsedCheckpoint(Struct, frozen=True):
    """A checkpoint that was checked and can be restored."""

    session_id: str
    config: JsonObject
    restored: RestoredSession
    memories: RestoredMemories


async def restore_checkpoint(
    sessions: Sessions,
    project: str,
    session_id: str | None,
    checkpoint: ParsedCheckpoint,
    key_id: str | None = None,
) -> Stream:
    """Create a session from a checkpoint, with its memories.

    Raises `Refused` (`session_exists`, `session_erased`, `invalid_field`), and `StoreUnavailable`, after which the
    session may exist without some of its memories.
    """
    # A checkpoint has no secrets, even if someone wrote some into it.
    public = validate_config(checkpoint.config).public
    await SCHEMA_WORKER.check_config(public)
    session_patch = SessionPatch(apply_patch({}, public), {})
    restored, memories, new_id = checkpoint.restored, checkpoint.memories, session_id or sessions.new_id()
    if not memories.positions:
        return await sessions.restore(project, new_id, session_patch, restored, key_id)
    # Memories whose ids are taken in the project get new ones.
    ids, taken = [row.id for row in memories.there], set[str]()
    for first in range(0, len(ids), LOOKED_UP):
        stored = await sessions.store.memories.find_memories(project, ids[first : first + LOOKED_UP])
        taken |= {row.id for row in stored if row.removed_ms is None}
    renaming = Renaming((checkpoint.session_id, new_id), {id: records.memory_id(new_id, id) for id in taken})
    rows = list(restored.rows)
    for position in memories.positions:
        row = rows[position - 1]
        rows[position - 1] = row._replace(payload=renaming.payload(row.payload))
    restored = structs.replace(restored, rows=rows)
    stream = await sessions.restore(project, new_id, session_patch, restored, key_id)
    there = [renaming.row(row, sessions.rules) for row in memories.there]
    for first in range(0, len(there), MAX_ROWS):
        await write_restored(sessions.store, stream, there[first : first + MAX_ROWS], sessions.clock())
    return stream


async def parse_checkpoint(document: bytes) -> ParsedCheckpoint:
    """Check a checkpoint entry by entry, in a thread. Raises `Refused` (`invalid_checkpoint`)."""

    def read() -> ParsedCheckpoint:
        pieces = Pieces(document)
        try:
            parts = find_pieces(pieces)
            pieces.end()
        except Unreadable:
            raise invalid(NO_CHECKPOINT) from None
        return check_pieces(parts)

    return await asyncio.to_thread(read)


def find_pieces(pieces: Pieces) -> CheckpointPieces:
    """Find the parts of the checkpoint at the current place of a text. Raises `Unreadable`, `Refused`."""
    parts = CheckpointPieces(pieces.text)
    if not pieces.follows(b"{"):
        raise invalid(NO_CHECKPOINT)
    for name in pieces.names():
        if name not in FIELDS:
            raise invalid(f"{NO_CHECKPOINT} It has an unknown field.")
        if name != "events":
            setattr(parts, name, pieces.value())
            continue
        if not pieces.follows(b"["):
            raise invalid(NO_CHECKPOINT)
        parts.events = array("Q")
        for place in pieces.items():
            if place.stop - place.start < MIN_ENTRY_BYTES:
                raise invalid(MALFORMED_PART)
            parts.events.extend((place.start, place.stop))
    return parts


def check_pieces(pieces: CheckpointPieces) -> ParsedCheckpoint:
    """Check the parts of a checkpoint. Raises `Refused` (`invalid_checkpoint`)."""
    sha256 = check_head(pieces)
    session_text = pieces.text[pieces.session or slice(0, 0)]
    try:
        codec.check_frame(session_text)
        session = msgspec.json.decode(session_text, type=CheckpointSession)
        codec.check_integers(session.config)
        digest, journal = Digest(session_text), CheckpointReader()
        places = pieces.events or ()
        for start, stop in zip(places[::2], places[1::2], strict=True):
            text = pieces.text[start:stop]
            journal.add(text)
            digest.add(text)
    except (InvalidFrame, *codec.MALFORMED):
        raise invalid(MALFORMED_PART) from None
    if digest.hex() != sha256:
        raise invalid("The checkpoint was changed after it was made: its sha256 does not match.")
    restored = journal.restored(session.started_at)
    return ParsedCheckpoint(session.session_id, session.config, restored, journal.memories)


def check_head(pieces: CheckpointPieces) -> str:
    """Check the kind and the version of a checkpoint. Return its hash. Raises `Refused`."""
    if None in (pieces.session, pieces.events):
        raise invalid(NO_CHECKPOINT)
    nothing = slice(0, 0)
    try:
        kind = msgspec.json.decode(pieces.text[pieces.voicemem or nothing], type=str)
        version = msgspec.json.decode(pieces.text[pieces.version or nothing], type=int)
        sha256 = msgspec.json.decode(pieces.text[pieces.sha256 or nothing], type=str)
    except codec.MALFORMED:
        raise invalid(NO_CHECKPOINT) from None
    if kind != CHECKPOINT_KIND:
        raise invalid(NO_CHECKPOINT)
    if version != CHECKPOINT_VERSION:
        raise invalid(f"The checkpoint has another version; this service reads version {CHECKPOINT_VERSION}.")
    return sha256


# Memories in checkpoints. A journal has no texts of memories, so that each can be erased alone. In a checkpoint the
# newest event about each existing memory has its text, which is removed from the event again when it is restored.


async def payloads_with_texts(store: Store, stream: Stream, rows: Sequence[JournalRow]) -> list[bytes]:
    """Return the payloads of these entries; the newest one about an existing memory has its content."""
    ids: dict[str, None] = {}
    for row in rows:
        if b'"memory.added"' in row.payload or b'"memory.edited"' in row.payload:
            event = decode_stored(row.payload)
            if isinstance(event, events.MemoryAdded | events.MemoryEdited):
                ids[event.memory_id] = None
    memories = await store.memories.find_memories(stream.project, list(ids)) if ids else []
    there = {row.position: row for row in memories if row.key == stream.key and row.removed_ms is None}
    payloads = []
    for row in rows:
        payloads.append(row.payload)
        if row.position in there:
            memory = records.to_memory(there[row.position])
            content = {name: getattr(memory, name) for name in records.CONTENT}
            payloads[-1] = ENCODER.encode(codec.JSON_DECODER.decode(row.payload) | content)
    return payloads


class RestoredMemories(Struct):
    """The memories of a journal, gathered entry by entry."""

    rows: dict[str, MemoryRow] = field(default_factory=dict)
    """By id, as of the last entry read; without a text if the checkpoint has none."""
    positions: list[int] = field(default_factory=list)
    """The positions of the entries that name memories."""

    def apply(self, event: events.JournaledEvent, payload: bytes, position: int, received_ms: int) -> bytes:
        """Apply an entry, and return its payload as it is journaled."""
        if not isinstance(event, NAMES_MEMORIES):
            return payload
        self.positions.append(position)
        if isinstance(event, events.MemoryAdded):
            known = {"id": event.memory_id, "text": event.text or "", "created_ms": received_ms}
            # Its owner is filled in when it is written.
            known |= {"updated_ms": received_ms, "position": position, "key": 0, "project": ""}
            self.rows[event.memory_id] = records.new_row(event, event.same_as, **known)
        elif isinstance(event, events.MemoryRemoved):
            self.rows.pop(event.memory_id, None)
        elif isinstance(event, events.MemoryEdited) and (row := self.rows.get(event.memory_id)) is not None:
            changes = {
                name: value
                for name in (*records.JOURNALED, *records.CONTENT)
                if (value := getattr(event, name)) is not UNSET
            }
            if event.metadata is None:  # missing or null
                changes.pop("metadata")
            row = structs.replace(row, position=position, updated_ms=received_ms)
            self.rows[event.memory_id] = records.changed_row(row, changes)
        if not isinstance(event, events.MemoryAdded | events.MemoryEdited):
            return payload
        values = codec.JSON_DECODER.decode(payload)
        return ENCODER.encode({name: value for name, value in values.items() if name not in records.CONTENT})

    @property
    def there(self) -> list[MemoryRow]:
        return [row for row in self.rows.values() if row.text]


class Renaming(Struct, frozen=True):
    """The new ids of a checkpoint's memories, by the old ones; and the old and the new id of its session."""

    session: tuple[str, str]
    ids: Mapping[str, str]

    def name(self, id: str) -> str:
        return self.ids.get(id, id)

    def payload(self, payload: bytes) -> bytes:
        values = codec.JSON_DECODER.decode(payload)
        for one in ("memory_id", "same_as"):
            if isinstance(values.get(one), str):
                values[one] = self.name(values[one])
        for several in ("supersedes", "added"):
            if several in values:
                values[several] = [self.name(id) for id in values[several]]
        for source in values.get("from", ()):
            source["session_id"] = self.session_id(source["session_id"])
        return ENCODER.encode(values)

    def session_id(self, id: str) -> str:
        old, new = self.session
        return new if id == old else id

    def row(self, row: MemoryRow, rules: Rules | None) -> MemoryRow:
        details = records.details_of(row)
        evidence = tuple(structs.replace(one, session_id=self.session_id(one.session_id)) for one in details.evidence)
        same_as = None if details.same_as is None else self.name(details.same_as)
        fields: dict[str, Any] = {"evidence": evidence, "same_as": same_as}
        fields["supersedes"] = tuple(self.name(id) for id in row.supersedes)
        if rules is not None:
            fields |= {"text": records.redacted(row.text, rules), "metadata": records.redacted(details.metadata, rules)}
            fields |= {name: tuple(records.redacted([*getattr(row, name)], rules)) for name in ("topics", "entities")}
        return structs.replace(records.changed_row(row, fields), id=self.name(row.id), session_id=self.session[1])


async def write_restored(store: Store, stream: Stream, rows: Sequence[MemoryRow], now_ms: int) -> None:
    """Write memories of a newly restored session. Raises `Refused`, `StoreUnavailable`."""
    for _ in range(MAX_APPEND_ATTEMPTS):
        current = await store.journal.get_session(stream.project, stream.id)
        if await store.memories.write_memories(stream.key, (), current.position, rows, now_ms) is not None:
            return
    raise StoreUnavailable("The session changes faster than its memories can be stored.")
