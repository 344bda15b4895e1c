"""Pages of memories, the newest first."""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct, structs

from voicemem.memory.long_term.drafts import Namespace
from voicemem.memory.long_term.memories import LongTermMemory
from voicemem.memory.long_term.memory import Memory
from voicemem.protocol.cursors import format_place, parse_place
from voicemem.protocol.memories import GivenKind, Topic
from voicemem.protocol.types import Integer, Name
from voicemem.store.ports.memories import AnyOf, MemoryFilter, Tags


class MemoriesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`superseded=true` also shows memories whose place a newer one has taken.

    `as_of` (Unix ms) shows what was known then, without what was removed since.
    """

    kind: GivenKind | None = None
    topic: Topic | None = None
    entity: Topic | None = None
    namespace: Namespace | None = None
    pinned: bool | None = None
    superseded: bool = False
    as_of: Integer | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: str | None = None


class MemoryPage(Struct, frozen=True):
    """Memories, the newest first; `next_cursor` is null on the last page."""

    memories: list[Memory]
    next_cursor: str | None


class LastShown(NamedTuple):
    """The last memory of a page."""

    created_ms: Integer
    id: Name


async def memory_page(long_term: LongTermMemory, wanted: MemoryFilter, cursor: str | None) -> MemoryPage:
    """A page of memories. Raises `Refused` (`invalid_cursor`), `StoreUnavailable`."""
    digest = list_digest(wanted)
    after = None if cursor is None else parse_place(cursor, digest, LastShown)
    asked = structs.replace(wanted, after=after, limit=wanted.limit + 1)
    found = await long_term.list_memories(wanted.project, asked)
    page = found[: wanted.limit]
    if len(found) == len(page):
        return MemoryPage(page, None)
    return MemoryPage(page, format_place(digest, LastShown(page[-1].created_at, page[-1].id)))


def list_digest(wanted: MemoryFilter) -> bytes:
    """Tells one list from another, whatever the size of its pages."""
    return blake2b(repr(structs.replace(wanted, after=None, limit=0)).encode(), digest_size=8).digest()


def list_filter(
    project: str, query: MemoriesQuery, user_ids: AnyOf | None = None, session_ids: AnyOf | None = None
) -> MemoryFilter:
    """The memories that a list has."""
    return MemoryFilter(
        project=project,
        user_ids=user_ids,
        session_ids=session_ids,
        kinds=None if query.kind is None else AnyOf((query.kind,)),
        namespaces=None if query.namespace is None else AnyOf((query.namespace,)),
        topics=None if query.topic is None else Tags(any=(query.topic,)),
        entities=None if query.entity is None else Tags(any=(query.entity,)),
        pinned=query.pinned,
        as_of_ms=query.as_of,
        with_superseded=query.superseded,
        limit=query.limit,
    )
