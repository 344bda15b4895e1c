"""A memory as callers see it, as it is stored, and as the journal tells of it."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from voicemem.memory.long_term.drafts import MemoryDraft
from voicemem.protocol.events import MemoryAdded, MemoryEdited
from voicemem.protocol.memories import Evidence, GivenKind, MemorySource
from voicemem.protocol.types import JsonObject
from voicemem.store.ports.memories import MemoryRow
from voicemem.transcript.messages import Role


class EvidenceLine(Struct, frozen=True):
    """A message that a memory comes from, as it was heard. `said_at` is Unix ms."""

    session_id: str
    turn_id: int
    position: int
    role: Role
    said_at: int
    text: str


class Memory(Struct, frozen=True, kw_only=True, rename={"evidence": "from"}):
    """A memory. Times are Unix ms, but for `event_at`: the ISO day or instant at which it happened.

    `said_at` is when it was said, `created_at` when it was noted. `from` says which messages it comes from; those of a
    session that is gone cannot be read any more. `superseded_by` is the memory that took its place.
    """

    id: str
    kind: GivenKind
    text: str
    user_id: str | None
    namespace: str | None
    session_id: str | None
    topics: tuple[str, ...]
    entities: tuple[str, ...]
    event_at: str | None
    said_at: int | None
    created_at: int
    updated_at: int
    expires_at: int | None
    last_accessed: int | None
    access_count: int
    confidence: float
    pinned: bool
    source: MemorySource
    strategy: str | None
    model: str | None
    version: str | None
    supersedes: tuple[str, ...]
    superseded_by: str | None
    superseded_at: int | None
    same_as: str | None
    metadata: JsonObject | None
    evidence: tuple[Evidence, ...]


class KnownMemory(Memory, frozen=True, kw_only=True, rename={"evidence": "from", "lines": "evidence"}):
    """A memory; `evidence` has the messages that it comes from, as they were heard, when that was asked for."""

    lines: list[EvidenceLine] | UnsetType = UNSET


class Details(Struct, frozen=True, omit_defaults=True):
    """What a store keeps of a memory without looking at it."""

    confidence: float = 1.0
    evidence: tuple[Evidence, ...] = ()
    source: MemorySource = "api"
    strategy: str | None = None
    model: str | None = None
    version: str | None = None
    same_as: str | None = None
    metadata: JsonObject | None = None


DETAILS = msgspec.json.Decoder(Details)


def details_of(row: MemoryRow) -> Details:
    return DETAILS.decode(row.details)


def to_memory(row: MemoryRow) -> Memory:
    details = details_of(row)
    return Memory(
        id=row.id,
        kind=row.kind,  # type: ignore[arg-type]  # the store does not look at it
        text=row.text,
        user_id=row.user_id,
        namespace=row.namespace,
        session_id=row.session_id,
        topics=row.topics,
        entities=row.entities,
        event_at=row.event_at,
        said_at=row.said_ms,
        created_at=row.created_ms,
        updated_at=row.updated_ms,
        expires_at=row.expires_ms,
        last_accessed=row.last_accessed_ms,
        access_count=row.access_count,
        confidence=details.confidence,
        pinned=row.pinned,
        source=details.source,
        strategy=details.strategy,
        model=details.model,
        version=details.version,
        supersedes=row.supersedes,
        superseded_by=row.superseded_by,
        superseded_at=row.superseded_ms,
        same_as=details.same_as,
        metadata=details.metadata,
        evidence=details.evidence,
    )


def row_of(draft: MemoryDraft, id: str, key: int, project: str, now_ms: int, same_as: str | None) -> MemoryRow:
    """The row of a memory that is new; its position follows when it is written."""
    created_ms = now_ms if draft.created_ms is None else draft.created_ms
    return MemoryRow(
        key=key,
        position=0,
        id=id,
        project=project,
        namespace=draft.namespace,
        user_id=draft.user_id,
        session_id=draft.session_id,
        kind=draft.kind,
        text=draft.text,
        said_ms=created_ms if draft.said_at is None else draft.said_at,
        created_ms=created_ms,
        updated_ms=now_ms,
        event_at=draft.event_at,
        expires_ms=draft.expires_at,
        pinned=draft.pinned,
        topics=draft.topics,
        entities=draft.entities,
        details=packed_details(draft, same_as),
        supersedes=draft.supersedes,
    )


def packed_details(given: MemoryDraft | MemoryAdded, same_as: str | None) -> bytes:
    """The rest of what is known of a memory, as a row has it."""
    details = Details(
        confidence=given.confidence,
        evidence=given.evidence,
        source=given.source,
        strategy=given.strategy,
        model=given.model,
        version=given.version,
        same_as=same_as,
        metadata=given.metadata,
    )
    return msgspec.json.encode(details)


ROW_NAMES = {"said_at": "said_ms", "expires_at": "expires_ms"}
"""Fields of a memory that have another name in a row."""


def changed_row(row: MemoryRow, fields: dict[str, Any]) -> MemoryRow:
    """The row with other values of these fields, which are named as those of a memory."""
    own = {ROW_NAMES.get(name, name): value for name, value in fields.items() if name not in Details.__struct_fields__}
    more = {name: value for name, value in fields.items() if name in Details.__struct_fields__}
    details = structs.replace(details_of(row), **more)
    return structs.replace(row, **own, details=msgspec.json.encode(details)) if more else structs.replace(row, **own)


def is_same_content(one: MemoryRow, other: MemoryRow) -> bool:
    """Whether two rows of one memory say the same, whenever they were written."""
    return to_memory(structs.replace(one, **NO_TIMES)) == to_memory(structs.replace(other, **NO_TIMES))


NO_TIMES: dict[str, Any] = {
    "created_ms": 0,
    "updated_ms": 0,
    "superseded_by": None,
    "superseded_ms": None,
    "last_accessed_ms": None,
    "access_count": 0,
}


# The journal, which has nothing of a memory that its removal must take away


def added_event(row: MemoryRow, session_id: str | None) -> MemoryAdded:
    """What the journal has of a new memory; `session_id` is that of the session whose journal it is."""
    details = details_of(row)
    return MemoryAdded(
        memory_id=row.id,
        kind=row.kind,  # type: ignore[arg-type]
        text_sha256=digest_of(row.text),
        namespace=row.namespace,
        user_id=row.user_id,
        about_session=None if row.session_id == session_id else row.session_id,
        said_at=row.said_ms,
        expires_at=row.expires_ms,
        confidence=details.confidence,
        evidence=details.evidence,
        source=details.source,
        strategy=details.strategy,
        model=details.model,
        version=details.version,
        supersedes=row.supersedes,
        same_as=details.same_as,
        pinned=row.pinned,
    )


def edited_event(before: MemoryRow, after: MemoryRow) -> MemoryEdited:
    """What the journal has of a change."""
    one, other = to_memory(before), to_memory(after)
    names = (
        *("kind", "namespace", "user_id", "said_at", "expires_at", "confidence", "evidence", "supersedes", "same_as"),
        "pinned",
    )
    changes: dict[str, Any] = {
        name: getattr(other, name) for name in names if getattr(other, name) != getattr(one, name)
    }
    if one.session_id != other.session_id:
        changes["about_session"] = other.session_id
    return MemoryEdited(memory_id=after.id, text_sha256=digest_of(after.text), **changes)


def digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()
