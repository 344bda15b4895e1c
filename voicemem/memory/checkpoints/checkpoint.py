"""Checkpoints: a session with its whole journal in one portable document, and sessions restored from one.

Restored events are checked as a producer's are, so that a document written by hand cannot bring in anything that ingest
would refuse.
"""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections.abc import AsyncGenerator

import msgspec
from msgspec import Raw, Struct

from voicemem.config.secrets import SessionPatch
from voicemem.config.session import apply_patch, validate_config
from voicemem.errors import InvalidFrame, StoreUnavailable
from voicemem.memory.checkpoints.events import CheckpointEntry, CheckpointReader, Time, invalid
from voicemem.memory.checkpoints.memories import (
    RestoredMemories,
    payloads_with_texts,
    renamed_rows,
    renaming_of,
    write_restored,
)
from voicemem.protocol.json_pieces import Pieces, Unreadable
from voicemem.protocol.strict_json import JSON_DECODER, MALFORMED, SORTED, check_frame, check_integers
from voicemem.protocol.types import JsonObject
from voicemem.sessions.lifecycle import Sessions
from voicemem.store.port import Store
from voicemem.store.records import JournalRow, RestoredSession
from voicemem.store.streams import Stream

CHECKPOINT_KIND, CHECKPOINT_VERSION = "checkpoint", 1
MAX_RESTORE_BYTES = 64 * 1024 * 1024
"""Limit for a checkpoint that is restored over HTTP."""
PAGE = 500
"""Entries that are written at a time."""
MIN_ENTRY_BYTES = 64
"""No entry is shorter: the names of its fields alone take as much. So a body of 64 MiB has at most a million."""
FIELDS = frozenset({"voicemem", "version", "session", "events", "sha256"})
NO_CHECKPOINT, MALFORMED_PART = "This is not a voicemem checkpoint.", "A part of the checkpoint is malformed."


class CheckpointSession(Struct, frozen=True):
    """The session as it was. When it is restored, its state follows from the events."""

    session_id: str
    state: str
    reason: str | None
    started_at: Time
    ended_at: Time | None
    config: JsonObject


class CheckpointPieces(Struct, gc=False):
    """A checkpoint as text, and where in it its parts stand."""

    text: bytes
    voicemem: slice | None = None
    version: slice | None = None
    session: slice | None = None
    sha256: slice | None = None
    events: array[int] | None = None
    """The beginning of each entry, and its end."""


# Writing


async def write_checkpoint(store: Store, stream: Stream) -> AsyncGenerator[bytes, None]:
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
        rows = await store.read_rows(stream.key, position, min(PAGE, stream.position - position))
        if not rows:
            raise StoreUnavailable("The session was erased meanwhile.")
        payloads = await payloads_with_texts(store, stream, rows)
        entries = [
            msgspec.json.encode(checkpoint_entry(row, payload)) for row, payload in zip(rows, payloads, strict=True)
        ]
        for entry in entries:
            digest.add(entry)
        yield head + b",".join(entries)
        head, position = b",", rows[-1].position
    yield (b"" if position else head) + b'],"sha256":"' + digest.hex().encode() + b'"}'


def checkpoint_entry(row: JournalRow, payload: bytes) -> CheckpointEntry:
    return CheckpointEntry(row.position, row.producer, row.seq, row.received_ms, Raw(payload))


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

    session_id: str
    """What it was called."""
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

    Raises `Refused` (`session_exists`, `session_erased`, `invalid_field`). When it raises `StoreUnavailable` the
    session may be there without some of its memories.
    """
    public = validate_config(
        checkpoint.config
    ).public  # a checkpoint has no secrets, even if someone wrote some into it
    session_patch = SessionPatch(apply_patch({}, public), {})
    restored, memories, new_id = checkpoint.restored, checkpoint.memories, session_id or sessions.new_id()
    if not memories.positions:
        return await sessions.restore(project, new_id, session_patch, restored, key_id)
    renaming = await renaming_of(sessions.store, project, memories, checkpoint.session_id, new_id)
    rows = renamed_rows(restored.rows, memories, renaming)
    restored = msgspec.structs.replace(restored, rows=rows)
    stream = await sessions.restore(project, new_id, session_patch, restored, key_id)
    there = [renaming.row(row, sessions.rules) for row in memories.there]
    await write_restored(sessions.store, stream, there, sessions.clock())
    return stream


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
    restored = journal.restored(session.started_at)
    return ParsedCheckpoint(session.session_id, session.config, restored, journal.memories)


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
