"""Memories as rows: what a store keeps of each, beside the journal in which the events about it stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from voicemem.protocol.memories import time_ms
from voicemem.search.passages import MemoryWords, memory_words
from voicemem.store.scopes import Scope

MAX_ROWS = 20
"""Memories in one write: the words of each are indexed in its transaction, and others wait for that."""
TAG_END = "\n"
"""Stands around each topic and each entity in their columns; none has it."""
IDS = msgspec.json.Decoder(tuple[str, ...])
"""Decodes the column `supersedes`."""


class MemoryRow(Struct, frozen=True, kw_only=True):
    """A memory as it is stored. Times are Unix ms."""

    key: int
    """The stream in whose journal it stands."""
    position: int
    """That of the last event about it."""
    id: str
    project: str
    namespace: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    kind: str
    text: str
    said_ms: int | None = None
    created_ms: int
    updated_ms: int
    event_at: str | None = None
    """When it happened: an ISO day or instant."""
    expires_ms: int | None = None
    pinned: bool = False
    removed_ms: int | None = None
    """When it was removed; a removed memory stays as a row without content (`tombstone`)."""
    last_accessed_ms: int | None = None
    access_count: int = 0
    topics: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()
    details: bytes = b"{}"
    """JSON that is only passed on."""
    supersedes: tuple[str, ...] = ()
    """The ids of older memories of the project that this one takes the place of, as long as it is there."""
    superseded_by: str | None = None
    """The first that took its place, of those that are there; nobody writes it, it follows from `supersedes`."""
    superseded_ms: int | None = None

    @property
    def scope(self) -> Scope:
        return Scope(self.project, self.namespace, self.user_id, self.session_id)

    @property
    def words(self) -> MemoryWords:
        """The words that it is found by."""
        event_ms = event_ms_of(self.event_at)
        return memory_words(self.text, (*self.topics, *self.entities), self.said_ms if event_ms is None else event_ms)


class ReplacedMemory(NamedTuple):
    """A memory whose id goes on in another stream, as it stands, and the event that removes it from its own."""

    row: MemoryRow
    payload: bytes


def tombstone(row: MemoryRow, position: int, now_ms: int, details: bytes = b"{}") -> MemoryRow:
    """The row that stays of a memory that is removed by the event at a position: no content."""
    return replace(
        row, position=position, updated_ms=now_ms, removed_ms=now_ms, text="", topics=(), entities=(), supersedes=(),
        details=details, superseded_by=None, superseded_ms=None, expires_ms=None,
    )  # fmt: skip


def event_ms_of(event_at: str | None) -> int | None:
    """An ISO day or instant in Unix ms, in UTC where it names no zone; None for what is neither."""
    if event_at is None:
        return None
    try:
        return time_ms(event_at)
    except ValueError:
        return None


def check_rows(rows: Sequence[MemoryRow]) -> None:
    """Raise `ValueError` for rows that no caller may give."""
    if len(rows) > MAX_ROWS:
        raise ValueError(f"At most {MAX_ROWS} memories can be written at once.")
    if len({row.id for row in rows}) < len(rows):
        raise ValueError("A memory can be written only once at a time.")
    if any(TAG_END in tag for row in rows for tag in (*row.topics, *row.entities)):
        raise ValueError("A topic or an entity has no line break.")


def pack_tags(tags: Sequence[str]) -> str:
    """Topics or entities as one text, in which each is found with a line break on both sides."""
    return f"{TAG_END}{TAG_END.join(tags)}{TAG_END}" if tags else ""


def unpack_tags(packed: str) -> tuple[str, ...]:
    return tuple(packed[1:-1].split(TAG_END)) if packed else ()


def is_newer(row: MemoryRow) -> tuple[bool, int, int]:
    """The order of the rows of one id, of which all but one were removed."""
    return row.removed_ms is None, row.updated_ms, row.key


STORED = ("stream", *MemoryRow.__struct_fields__[1:-2])
"""The columns of a memory, in every engine: its fields, but for those that follow from others."""


def values_of(row: MemoryRow) -> dict[str, Any]:
    """The values of `STORED`, and of `event_ms`, which is `event_at`, comparable."""
    return asdict(row) | {
        "stream": row.key,
        "topics": pack_tags(row.topics),
        "entities": pack_tags(row.entities),
        "supersedes": msgspec.json.encode(row.supersedes),
        "event_ms": event_ms_of(row.event_at),
    }


def row_of_values(values: Sequence[Any]) -> MemoryRow:
    """Make the memory with these values of `STORED`."""
    row = dict(zip(MemoryRow.__struct_fields__, values, strict=False))
    row["pinned"] = bool(row["pinned"])
    row["topics"], row["entities"] = map(unpack_tags, (row["topics"], row["entities"]))
    row["supersedes"] = IDS.decode(row["supersedes"])
    return MemoryRow(**row)
