"""What a search asks for, and what it answers: messages that were heard, and memories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from voicemem.memory.long_term.memory import Memory
from voicemem.memory.search.by_meaning import SearchMode
from voicemem.protocol.memories import Evidence, MemorySource, Topics
from voicemem.protocol.types import MAX_INTEGER, JsonObject, Name, SessionId
from voicemem.search.ranking import FoundBy
from voicemem.transcript.messages import Role

MAX_QUERY = 4_000
"""Characters of a query."""
MAX_PAGE = 100
MAX_PAGE_BYTES = 1024 * 1024
"""A page ends with the text that brings it to this size."""
Millis = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
MemoryKind = Literal["message", "fact", "preference", "episode", "summary"]
MESSAGE: MemoryKind = "message"
KINDS: tuple[MemoryKind, ...] = ("message", "fact", "preference", "episode", "summary")


class SearchScope(NamedTuple):
    """Where a search looks; None is everywhere in the project."""

    namespace: str | None
    user_id: str | None
    session_id: str | None


class MemorySearch(Struct, frozen=True, forbid_unknown_fields=True):
    """What to search for, and where: in all of the project, or of a user, a session, a namespace.

    Where is never null: a program that does not know its user must not search what all users said. `kinds` are messages
    that were heard and kinds of memories, by default all. `since` and `until` bound when it was said, in Unix ms; the
    second is the first moment that is too late. With `topics` or `entities` a memory must have one of them, and
    messages have none. `as_of` (Unix ms) finds what was known then, `superseded` also what is out of date. `mode` says
    how it is found: by words, by vectors (what it means), or `hybrid`, by both. `auto` is `hybrid` where there are
    vectors.
    """

    query: Annotated[str, Meta(min_length=1, max_length=MAX_QUERY)]
    user_id: Name | UnsetType = UNSET
    session_id: SessionId | UnsetType = UNSET
    namespace: Annotated[str, Meta(max_length=256)] | UnsetType = UNSET
    kinds: Annotated[tuple[MemoryKind, ...], Meta(min_length=1)] = KINDS
    topics: Topics = ()
    entities: Topics = ()
    since: Millis | None = None
    until: Millis | None = None
    as_of: Millis | None = None
    superseded: bool = False
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 10
    mode: Literal["auto", "words", "vectors", "hybrid"] = "auto"
    cursor: str | None = None

    @property
    def scope(self) -> SearchScope:
        return SearchScope(*(None if one is UNSET else one for one in (self.namespace, self.user_id, self.session_id)))

    def within(self, places: Mapping[str, str | None]) -> MemorySearch:
        """The same search in other places, by their fields; None is everywhere in the project."""
        return structs.replace(self, **{name: UNSET if value is None else value for name, value in places.items()})

    @property
    def with_messages(self) -> bool:
        return MESSAGE in self.kinds and not self.topics and not self.entities

    @property
    def given_kinds(self) -> tuple[str, ...]:
        """The kinds of memories that are not messages."""
        return tuple(kind for kind in self.kinds if kind != MESSAGE)


class FoundMemory(Struct, frozen=True, kw_only=True, rename={"evidence": "from"}):
    """One memory that was found: a message as it was heard, which has a `role`, or a memory with all it says."""

    id: str
    kind: MemoryKind
    text: str
    role: Role | UnsetType = UNSET
    session_id: str | None
    user_id: str | None
    namespace: str | None
    said_at: int | None
    """Unix ms. So are the other times, but for `event_at`."""
    score: float
    """How well it fits, beside the best one of the search, which has 1; by vectors alone the cosine itself.

    Messages are compared with messages, memories with memories.
    """
    by: tuple[FoundBy, ...]
    evidence: tuple[Evidence, ...]
    topics: tuple[str, ...] | UnsetType = UNSET
    entities: tuple[str, ...] | UnsetType = UNSET
    event_at: str | UnsetType | None = UNSET
    created_at: int | UnsetType = UNSET
    updated_at: int | UnsetType = UNSET
    expires_at: int | UnsetType | None = UNSET
    confidence: float | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET
    source: MemorySource | UnsetType = UNSET
    supersedes: tuple[str, ...] | UnsetType = UNSET
    superseded_by: str | UnsetType | None = UNSET
    metadata: JsonObject | UnsetType | None = UNSET


class FoundMemories(Struct, frozen=True):
    """The best memories first; `next_cursor` is null on the last page.

    `complete` is false while the index is being made, and something may be missing. `mode` is how they were found: by
    `words` alone also where the vector of the query did not come in time.
    """

    memories: list[FoundMemory]
    next_cursor: str | None
    complete: bool
    mode: SearchMode


def found_statement(memory: Memory, score: float, by: tuple[FoundBy, ...]) -> FoundMemory:
    """A memory that was found."""
    return FoundMemory(
        id=memory.id,
        kind=memory.kind,
        text=memory.text,
        session_id=memory.session_id,
        user_id=memory.user_id,
        namespace=memory.namespace,
        said_at=memory.said_at,
        score=score,
        by=by,
        evidence=memory.evidence,
        topics=memory.topics,
        entities=memory.entities,
        event_at=memory.event_at,
        created_at=memory.created_at,
        updated_at=memory.updated_at,
        expires_at=memory.expires_at,
        confidence=memory.confidence,
        pinned=memory.pinned,
        source=memory.source,
        supersedes=memory.supersedes,
        superseded_by=memory.superseded_by,
        metadata=memory.metadata,
    )
