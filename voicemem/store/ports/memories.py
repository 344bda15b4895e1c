"""Memories: what was found worth remembering, or was given as that, beside the journals. See `voicemem.store.port`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from voicemem.protocol.memories import time_ms
from voicemem.search.passages import MemoryWords, memory_words
from voicemem.search.words import QueryWord
from voicemem.store.ports.heard_index import FIRST_MS, LAST_MS, HeardScope
from voicemem.store.streams import Stream

MAX_ROWS = 20
"""Memories in one write: the words of each are indexed in its transaction, and nobody should wait long for that."""
TOUCH_AGAIN_MS = 60_000
"""A memory is noted as accessed at most once in this time."""
TAG_END = "\n"
"""Stands around each topic and each entity in their columns; none has it."""


STORED = (
    "stream", "position", "id", "project", "namespace", "user_id", "session_id", "kind", "text", "said_ms",
    "created_ms", "updated_ms", "event_at", "expires_ms", "pinned", "removed_ms", "last_accessed_ms", "access_count",
    "topics", "entities", "details", "supersedes",
)  # fmt: skip
"""The columns of a memory, in every engine, in the order of `values_of`."""
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
    def scope(self) -> HeardScope:
        return HeardScope(self.project, self.namespace, self.user_id, self.session_id)

    @property
    def words(self) -> MemoryWords:
        """What it is found by."""
        event_ms = event_ms_of(self.event_at)
        return memory_words(self.text, (*self.topics, *self.entities), self.said_ms if event_ms is None else event_ms)


class AnyOf(Struct, frozen=True):
    """The field has one of these values; None stands for a field that is not set."""

    values: tuple[str | None, ...]


class NoneOf(Struct, frozen=True):
    """The field has none of these values; one that is not set has none but None."""

    values: tuple[str | None, ...]


class StartsWith(Struct, frozen=True):
    """The field begins with a text."""

    prefix: str


Condition = AnyOf | NoneOf | StartsWith


class Tags(Struct, frozen=True, kw_only=True):
    """Which topics, or entities, a memory must have."""

    any: tuple[str, ...] | None = None
    """At least one of these; None: no matter."""
    all: tuple[str, ...] = ()
    none: tuple[str, ...] = ()


class Between(NamedTuple):
    """A span of time; `until_ms` is the first moment that is too late. None: open."""

    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def bounds(self) -> tuple[int, int]:
        return FIRST_MS if self.since_ms is None else self.since_ms, LAST_MS if self.until_ms is None else self.until_ms


class MemoryFilter(Struct, frozen=True, kw_only=True):
    """Which memories to find: those of a project for which all conditions hold. Removed ones are never found."""

    project: str
    namespaces: Condition | None = None
    user_ids: Condition | None = None
    session_ids: Condition | None = None
    kinds: Condition | None = None
    topics: Tags | None = None
    entities: Tags | None = None
    created: Between | None = None
    accessed: Between | None = None
    """When it was accessed last; one that never was counts from `created_ms`."""
    event: Between | None = None
    """When it happened. One without `event_at` is never within bounds, as with `said`."""
    said: Between | None = None
    pinned: bool | None = None
    as_of_ms: int | None = None
    """Only those that were there, and not superseded, at this time."""
    with_superseded: bool = False
    unexpired_at_ms: int | None = None
    """Without those whose `expires_ms` is over at this time."""
    after: tuple[int, str] | None = None
    """The (created_ms, id) of the last memory of the page before."""
    limit: int = 100


class ReplacedMemory(NamedTuple):
    """A memory whose id goes on in another stream, as it stands, and the event that removes it from its own."""

    row: MemoryRow
    payload: bytes


class Memories(Protocol):
    """Memories, each in the journal of a stream and in a row, from which it is found.

    A row is content of its stream: once that is erased, nothing reads the row, and it is deleted with the rest. The
    memories that it superseded are there again then.
    """

    async def write_memories(
        self,
        key: int,
        payloads: Sequence[bytes],
        expected: int,
        rows: Sequence[MemoryRow],
        now_ms: int,
        replaced: Sequence[ReplacedMemory] = (),
    ) -> Stream | None:
        """Journal events of the server's own from position `expected` + 1 on, and insert or replace rows, in one step.

        None, with nothing changed, when that position is taken. A row replaces the one of the same id in this stream;
        when that was accessed last stays what is stored, unless it was removed. They are found by their words once this
        returns. Memories of other streams that they replace are removed in the same step; None too when one of these
        has changed. At most `MAX_ROWS` rows. Raises `Refused` (`unknown_session`; `memory_exists` when a memory of
        another stream of the project has the id, and is not removed).
        """

    async def find_memories(self, project: str, ids: Sequence[str]) -> list[MemoryRow]:
        """The memories with these ids, in any order; removed ones too, where no other memory has taken the id."""

    async def list_memories(self, wanted: MemoryFilter) -> list[MemoryRow]:
        """Memories by `created_ms` and id, the newest first."""

    async def find_memories_by_words(
        self, wanted: MemoryFilter, words: Sequence[QueryWord], limit: int
    ) -> list[tuple[MemoryRow, float]]:
        """Memories with any of the words and how well they fit, best first; of equal ones the newest first.

        The project, and a namespace, user or session that stands alone in its condition, are part of the query itself.
        `after` and the filter's own limit count for nothing.
        """

    async def find_expired_memories(self, now_ms: int, limit: int) -> list[MemoryRow]:
        """Memories of all projects whose `expires_ms` is over, the earliest first; removed ones are not among them."""

    async def touch_memories(self, project: str, ids: Sequence[str], now_ms: int) -> None:
        """Note that memories were accessed, each at most once in `TOUCH_AGAIN_MS`."""


def tombstone(row: MemoryRow, position: int, now_ms: int, details: bytes = b"{}") -> MemoryRow:
    """What stays of a memory that is removed by the event at a position: no content."""
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
    """By what the rows of one id are ordered, of which all but one were removed."""
    return row.removed_ms is None, row.updated_ms, row.key


def single_scope(wanted: MemoryFilter) -> HeardScope:
    """The part of a filter that is one project, namespace, user or session."""
    return HeardScope(wanted.project, *map(single_value, (wanted.namespaces, wanted.user_ids, wanted.session_ids)))


def single_value(condition: Condition | None) -> str | None:
    return condition.values[0] if isinstance(condition, AnyOf) and len(condition.values) == 1 else None


def values_of(row: MemoryRow) -> tuple[Any, ...]:
    """What an engine stores of a memory: the values of `STORED`, and `event_ms`, which is `event_at`, comparable."""
    return (
        row.key,
        row.position,
        row.id,
        row.project,
        row.namespace,
        row.user_id,
        row.session_id,
        row.kind,
        row.text,
        row.said_ms,
        row.created_ms,
        row.updated_ms,
        row.event_at,
        row.expires_ms,
        row.pinned,
        row.removed_ms,
        row.last_accessed_ms,
        row.access_count,
        pack_tags(row.topics),
        pack_tags(row.entities),
        row.details,
        msgspec.json.encode(row.supersedes),
        event_ms_of(row.event_at),
    )


def row_of_values(values: Sequence[Any]) -> MemoryRow:
    """The memory with these values of `STORED`, whose texts are `str`."""
    given = dict(zip(STORED, values, strict=True))
    return MemoryRow(
        key=given.pop("stream"),
        pinned=bool(given.pop("pinned")),
        topics=unpack_tags(given.pop("topics")),
        entities=unpack_tags(given.pop("entities")),
        supersedes=IDS.decode(given.pop("supersedes")),
        **given,
    )
