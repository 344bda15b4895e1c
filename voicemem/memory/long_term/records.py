"""A memory as clients see it, as it is stored, and as it is journaled; and drafts of memories, as they are given."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b, sha256
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, structs

from voicemem.errors import Refused
from voicemem.protocol import memories
from voicemem.protocol.codec import check_integers, check_memory_text, check_time
from voicemem.protocol.events import MemoryAdded, MemoryEdited
from voicemem.protocol.types import Integer, JsonObject, Name, Natural, SessionId, fields_given
from voicemem.redaction.texts import Rules, redact_value
from voicemem.store.memories import MemoryRow
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
    """A memory. Times are Unix ms, except `event_at`: the ISO day or instant at which it happened.

    `said_at` is when it was said, `created_at` when it was stored. `from` names the messages that it comes from; those
    of an erased session can no longer be read. `superseded_by` is the memory that replaced it.
    """

    id: str
    kind: memories.GivenKind
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
    source: memories.MemorySource
    strategy: str | None
    model: str | None
    version: str | None
    supersedes: tuple[str, ...]
    superseded_by: str | None
    superseded_at: int | None
    same_as: str | None
    metadata: JsonObject | None
    evidence: tuple[memories.Evidence, ...]


class KnownMemory(Memory, frozen=True, kw_only=True, rename={"evidence": "from", "lines": "evidence"}):
    """A memory; `evidence` has the messages that it comes from, as they were heard, if requested."""

    lines: list[EvidenceLine] | UnsetType = UNSET


class Details(Struct, frozen=True, omit_defaults=True):
    """The part of a memory that a store does not interpret."""

    confidence: float = 1.0
    evidence: tuple[memories.Evidence, ...] = ()
    source: memories.MemorySource = "api"
    strategy: str | None = None
    model: str | None = None
    version: str | None = None
    same_as: str | None = None
    metadata: JsonObject | None = None


DETAILS = msgspec.json.Decoder(Details)


def details_of(row: MemoryRow) -> Details:
    return DETAILS.decode(row.details)


ROW_NAMES = {
    **{f"{name}_at": f"{name}_ms" for name in ("said", "created", "updated", "expires", "superseded")},
    "last_accessed": "last_accessed_ms",
}
IN_ROWS = {name: ROW_NAMES.get(name, name) for name in {*Memory.__struct_fields__} - {*Details.__struct_fields__}}
CONTENT = ("text", "topics", "entities", "event_at", "metadata")
"""Fields of a memory that are never journaled, so that each memory can be erased alone."""
JOURNALED = (
    *("kind", "namespace", "user_id", "said_at", "expires_at", "confidence", "evidence", "supersedes", "same_as"),
    "pinned",
)
"""Fields of a memory that are journaled, also when they change."""


def to_memory(row: MemoryRow) -> Memory:
    own = {name: getattr(row, in_row) for name, in_row in IN_ROWS.items()}
    return Memory(**own, **structs.asdict(details_of(row)))


def new_row(memory: MemoryDraft | MemoryAdded, same_as: str | None, **more: Any) -> MemoryRow:
    names = ("kind", "namespace", "user_id", "said_at", "expires_at", "supersedes", "pinned", *CONTENT[:-1])
    own = {IN_ROWS[name]: getattr(memory, name) for name in names}
    rest = {name: getattr(memory, name) for name in Details.__struct_fields__ if name != "same_as"}
    return MemoryRow(**own | {"details": msgspec.json.encode(Details(**rest, same_as=same_as))} | more)


def row_of(draft: MemoryDraft, id: str, key: int, project: str, now_ms: int, same_as: str | None) -> MemoryRow:
    """Return the row of a new memory; it gets its position when it is written."""
    created_ms = now_ms if draft.created_ms is None else draft.created_ms
    said_ms = created_ms if draft.said_at is None else draft.said_at
    times = {"said_ms": said_ms, "created_ms": created_ms, "updated_ms": now_ms}
    return new_row(draft, same_as, key=key, position=0, id=id, project=project, session_id=draft.session_id, **times)


def changed_row(row: MemoryRow, fields: dict[str, Any]) -> MemoryRow:
    """Return the row with new values of these fields, which have the names of a `Memory`."""
    own = {ROW_NAMES.get(name, name): value for name, value in fields.items() if name not in Details.__struct_fields__}
    more = {name: value for name, value in fields.items() if name in Details.__struct_fields__}
    details = structs.replace(details_of(row), **more)
    return structs.replace(row, **own, details=msgspec.json.encode(details)) if more else structs.replace(row, **own)


NO_TIMES: dict[str, Any] = dict.fromkeys(("created_ms", "updated_ms", "last_accessed_ms", "access_count"), 0)
NO_TIMES |= dict.fromkeys(("superseded_by", "superseded_ms"))


# Events of memories, without the content that a removal must erase


def added_event(row: MemoryRow, session_id: str | None) -> MemoryAdded:
    """Return the event of a new memory; `session_id` is the session whose journal it is for."""
    memory, about = to_memory(row), None if row.session_id == session_id else row.session_id
    shown = {name: getattr(memory, name) for name in (*JOURNALED, "source", "strategy", "model", "version")}
    return MemoryAdded(memory_id=row.id, text_sha256=digest_of(row.text), about_session=about, **shown)


def edited_event(before: MemoryRow, after: MemoryRow) -> MemoryEdited:
    one, other = to_memory(before), to_memory(after)
    changes: dict[str, Any] = {
        name: getattr(other, name) for name in JOURNALED if getattr(other, name) != getattr(one, name)
    }
    if one.session_id != other.session_id:
        changes["about_session"] = other.session_id
    return MemoryEdited(memory_id=after.id, text_sha256=digest_of(after.text), **changes)


def digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


MAX_GIVEN = 100
MAX_FREE_BYTES = 16 * 1024
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]")
Namespace = Annotated[str, Meta(max_length=256)]


class GivenMemory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A memory to keep: one statement, with names written out and dates in full. Times are Unix ms.

    With the `session_id` of a session of this user it belongs to that session, and is erased with it; otherwise to its
    user, or without one to the project. `event_at` is when it happened, `said_at` when it was said. `supersedes` names
    memories that it makes obsolete.
    """

    text: str
    kind: memories.GivenKind = "fact"
    id: Name | None = None
    user_id: Name | None = None
    namespace: Namespace | None = None
    session_id: SessionId | None = None
    topics: memories.Topics = ()
    entities: memories.Topics = ()
    event_at: memories.EventTime | None = None
    said_at: Integer | None = None
    expires_at: Natural | None = None
    confidence: memories.Confidence = 1.0
    pinned: bool = False
    supersedes: memories.MemoryIds = ()
    metadata: JsonObject | None = None
    source: Literal["api", "tool"] = "api"


class MemoryDraft(GivenMemory, frozen=True, kw_only=True):
    """A memory to keep, given or extracted: the fields that clients may give, and its origin.

    If it has `evidence` in a session, that session must be its `session_id`. `created_ms` is for a memory that was
    first created elsewhere.
    """

    source: memories.MemorySource = "api"  # type: ignore[assignment]  # more than clients may give
    evidence: memories.Evidences = ()
    strategy: str | None = None
    model: str | None = None
    version: str | None = None
    created_ms: int | None = None


class MemoryPatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change to a memory; null removes a value. `metadata` is replaced as a whole."""

    text: str | UnsetType = UNSET
    kind: memories.GivenKind | UnsetType = UNSET
    user_id: Name | UnsetType | None = UNSET
    namespace: Namespace | UnsetType | None = UNSET
    session_id: SessionId | UnsetType | None = UNSET
    topics: memories.Topics | UnsetType | None = UNSET
    entities: memories.Topics | UnsetType | None = UNSET
    event_at: memories.EventTime | UnsetType | None = UNSET
    said_at: Integer | UnsetType = UNSET
    expires_at: Natural | UnsetType | None = UNSET
    confidence: memories.Confidence | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET
    supersedes: memories.MemoryIds | UnsetType | None = UNSET
    metadata: JsonObject | UnsetType | None = UNSET

    @property
    def fields(self) -> JsonObject:
        """The fields that it changes; a list that null clears is empty."""
        fields = fields_given(self)
        return fields | {name: () for name in ("topics", "entities", "supersedes") if fields.get(name, ()) is None}


def draft_of(memory: GivenMemory) -> MemoryDraft:
    return MemoryDraft(**structs.asdict(memory))


def prepare_fields(fields: dict[str, Any], rules: Rules | None) -> dict[str, Any]:
    """Return the values of these fields as they are kept: redacted, and lists without repeats. Raises `Refused`.

    The text is redacted before it is measured, since a replacement may be longer than the word.
    """
    for name in ("id", "user_id", "namespace"):
        if isinstance(value := fields.get(name), str) and CONTROLS.search(value):
            raise Refused("invalid_field", f"There must be no control characters: `{name}`")
    if fields.get("event_at") is not None:
        check_time("event_at", fields["event_at"])
    if fields.get("metadata") is not None:
        check_integers(fields["metadata"])
        if len(msgspec.json.encode(fields["metadata"])) > MAX_FREE_BYTES:
            raise Refused("too_big", "The metadata of a memory may have at most 16 KiB of JSON: `metadata`")
    for name in ("topics", "entities"):
        if name in fields:
            fields[name] = tuple(dict.fromkeys(redacted([*fields[name]], rules)))
    for name in ("text", "metadata"):
        if name in fields:
            fields[name] = redacted(fields[name], rules)
    if "text" in fields:
        fields["text"] = fields["text"].strip()
        if "\0" in fields["text"]:
            raise Refused("invalid_field", "There must be no NUL character (U+0000): `text`")
        check_memory_text(fields["text"])
    return fields


@contextmanager
def naming(place: int | None) -> Iterator[None]:
    """Name in errors the one of several memories that they are about: `memories[1].text`."""
    try:
        yield
    except Refused as refused:
        if place is None or type(refused) is not Refused:
            raise
        sentence, _, field = refused.detail.rstrip("`").partition(": `")
        where = f"memories[{place}].{field}" if field else f"memories[{place}]"
        raise Refused(refused.code, f"{sentence.rstrip('.')}: `{where}`") from None


def redacted(value: Any, rules: Rules | None) -> Any:
    return value if rules is None else redact_value(value, rules)


def memory_id(*parts: object) -> str:
    digest = blake2b(msgspec.json.encode(parts), digest_size=17).digest()
    return f"mem_{base64.b32encode(digest).decode().lower()[:26]}"


def merged(first: Sequence[Any], second: Sequence[Any], most: int) -> tuple[Any, ...]:
    """Return the values of both, each once; if they are too many, the last ones."""
    return tuple(dict.fromkeys((*first, *second)))[-most:]
