"""Searches what was heard in calls of a user, a namespace or a project: by words, and by meaning with an embedder."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from voicemem.errors import Refused
from voicemem.memory.long_term.by_meaning import Candidates, SearchMode, Vectors, find_by_meaning, place_of
from voicemem.memory.long_term.indexer import HeardIndexer
from voicemem.protocol.types import MAX_INTEGER, Name, SessionId
from voicemem.search.ranking import FoundBy
from voicemem.search.words import query_words
from voicemem.store.index_port import MAX_FOUND, FoundMessage, HeardQuery, HeardScope, scope_of
from voicemem.store.port import Store
from voicemem.store.streams import Stream
from voicemem.transcript.messages import Role

MAX_QUERY = 4_000
"""Characters of a query."""
MAX_PAGE = 100
MAX_PAGE_BYTES = 1024 * 1024
"""A page ends with the text that brings it to this size."""
Millis = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
MemoryKind = Literal["message"]
MESSAGE: MemoryKind = "message"
BY_WORDS: tuple[FoundBy, ...] = ("words",)
NO_EMBEDDER = (
    "There are no vectors: the service has no embedder (--embeddings-url), so mode must be auto or words, not {}."
)


class MemorySearch(Struct, frozen=True, forbid_unknown_fields=True):
    """What to search for, and where: in all that was heard in the project, or with a user, a session, a namespace.

    `since` and `until` bound when it was said, in Unix ms; the second is the first moment that is too late. `mode` says
    how it is found: by words, by vectors (what it means), or `hybrid`, by both. `auto` is `hybrid` where there are
    vectors.
    """

    query: Annotated[str, Meta(min_length=1, max_length=MAX_QUERY)]
    user_id: Name | None = None
    session_id: SessionId | None = None
    namespace: Annotated[str, Meta(max_length=256)] | None = None
    kinds: Annotated[tuple[MemoryKind, ...], Meta(min_length=1)] = (MESSAGE,)
    since: Millis | None = None
    until: Millis | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 10
    mode: Literal["auto", "words", "vectors", "hybrid"] = "auto"
    cursor: str | None = None


class Evidence(Struct, frozen=True):
    """Where a memory comes from: messages of a session, of which the first and the last began at these positions."""

    session_id: str
    first: int
    last: int
    turn_ids: tuple[int, ...]


class FoundMemory(Struct, frozen=True, rename={"evidence": "from"}):
    """One memory that was found: here a message, as it was heard."""

    id: str
    kind: MemoryKind
    text: str
    role: Role
    session_id: str
    user_id: str | None
    namespace: str | None
    said_at: int
    """Unix ms."""
    score: float
    """How well it fits, beside the best one of the search, which has 1; by vectors alone the cosine itself."""
    by: tuple[FoundBy, ...]
    evidence: tuple[Evidence, ...]


class FoundMemories(Struct, frozen=True):
    """The best memories first; `next_cursor` is null on the last page.

    `complete` is false while the index is being made, and something may be missing. `mode` is how they were found: by
    `words` alone also where the vector of the query did not come in time.
    """

    memories: list[FoundMemory]
    next_cursor: str | None
    complete: bool
    mode: SearchMode


class HeardSearch:
    """Finds messages. Whatever the index holds, only what the store still has is shown.

    `vectors` is None where there is no embedder.
    """

    def __init__(self, store: Store, indexer: HeardIndexer, vectors: Vectors | None = None) -> None:
        self.store = store
        self.indexer = indexer
        self.vectors = vectors

    async def search(self, project: str, wanted: MemorySearch) -> FoundMemories:
        """A page of what was found. Raises `Refused` (`invalid_cursor`, `invalid_field`), `StoreUnavailable`."""
        scope = HeardScope(project, wanted.namespace, wanted.user_id, wanted.session_id)
        offset, best = (0, None) if wanted.cursor is None else parse_cursor(scope, wanted)
        wait_for_vector = self.begin_vector(wanted)
        await self.indexer.index_first(lambda stream: is_within(stream, scope))
        complete = self.indexer.is_complete
        vector = None if wait_for_vector is None else await wait_for_vector()
        candidates = await self.candidates(scope, wanted, offset, vector)
        found = candidates.found
        if best is None:
            best = 1.0 if candidates.mode == "vectors" else max((message.score for message in found), default=0.0)
        sessions = await self.sessions_of(found, scope)
        page = list(islice(fitting(found), wanted.limit))
        memories = [
            to_memory(one, sessions[one.key], best, candidates.by.get(place_of(one), BY_WORDS))
            for one in page
            if one.key in sessions
        ]
        after = offset + len(page)
        has_more = len(found) > len(page) and after < MAX_FOUND
        cursor = format_cursor(scope, wanted, after, best) if has_more else None
        return FoundMemories(memories, cursor, complete, candidates.mode)

    def begin_vector(self, wanted: MemorySearch) -> Callable[[], Awaitable[bytes | None]] | None:
        """Ask for the vector of the query, where the search wants one. Raises `Refused` (`invalid_field`)."""
        if self.vectors is None and wanted.mode in ("vectors", "hybrid"):
            raise Refused("invalid_field", NO_EMBEDDER.format(wanted.mode))
        if self.vectors is None or wanted.mode == "words" or not self.vectors.maker.can_compare:
            return None
        return self.vectors.queries.begin(wanted.query)

    async def candidates(
        self, scope: HeardScope, wanted: MemorySearch, offset: int, vector: bytes | None
    ) -> Candidates:
        """The messages from an offset on, and one more than the page has."""
        limit = min(wanted.limit, MAX_FOUND - offset) + 1
        query = HeardQuery(scope, query_words(wanted.query), wanted.since, wanted.until, offset, limit)
        if vector is None or self.vectors is None:
            return Candidates(await self.store.find_heard(query), {}, "words")
        return await find_by_meaning(self.store, self.vectors, query, vector, wanted.mode == "vectors")

    async def sessions_of(self, found: Sequence[FoundMessage], scope: HeardScope) -> Mapping[int, Stream]:
        """The sessions of what was found that are still there, by key, and still in the scope."""
        keys = sorted({message.key for message in found})
        streams = await self.store.find_sessions(scope.project, keys) if keys else []
        return {stream.key: stream for stream in streams if stream.state != "erased" and is_within(stream, scope)}


def is_within(stream: Stream, scope: HeardScope) -> bool:
    """Whether what is said in a session is in a scope."""
    return all(wanted is None or own == wanted for own, wanted in zip(scope_of(stream), scope, strict=True))


def fitting(found: Sequence[FoundMessage]) -> Sequence[FoundMessage]:
    """Those that fit on one page by their size; at least one."""
    size = 0
    for place, message in enumerate(found):
        size += len(message.text)
        if size >= MAX_PAGE_BYTES:
            return found[: place + 1]
    return found


def to_memory(message: FoundMessage, stream: Stream, best: float, by: tuple[FoundBy, ...]) -> FoundMemory:
    scope = scope_of(stream)
    return FoundMemory(
        id=memory_id(message),
        kind=MESSAGE,
        text=message.text,
        role=message.role,
        session_id=stream.id,
        user_id=scope.user_id,
        namespace=scope.namespace,
        said_at=message.said_ms,
        score=round(min(1.0, message.score / best), 4) if best > 0 else 0.0,
        by=by,
        evidence=(Evidence(stream.id, message.position, message.position, (message.turn_id,)),),
    )


def memory_id(message: FoundMessage) -> str:
    """The same for the same message, as long as its words are the same."""
    name = f"{message.key}/{message.position}/{message.text}".encode()
    digest = base64.b32encode(blake2b(name, digest_size=16).digest()).decode().lower()
    return f"mem_{digest[:26]}"


# Cursors


class CursorPlace(Struct, array_like=True, frozen=True):
    """Where the next page begins, and what was found best on the first one."""

    offset: Annotated[int, Meta(ge=1, lt=MAX_FOUND)]
    best: float


def format_cursor(scope: HeardScope, wanted: MemorySearch, offset: int, best: float) -> str:
    body = msgspec.json.encode(CursorPlace(offset, best))
    return base64.urlsafe_b64encode(search_digest(scope, wanted) + body).decode().rstrip("=")


def parse_cursor(scope: HeardScope, wanted: MemorySearch) -> tuple[int, float]:
    """Where a page begins. Raises `Refused` for a cursor of another search."""
    cursor = wanted.cursor or ""
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        place = msgspec.json.decode(raw[8:], type=CursorPlace)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise Refused("invalid_cursor") from None
    if raw[:8] != search_digest(scope, wanted):
        raise Refused("invalid_cursor")
    return place.offset, place.best


def search_digest(scope: HeardScope, wanted: MemorySearch) -> bytes:
    """Tells one search from another, whatever the size of its pages."""
    asked = [scope, wanted.query, wanted.since, wanted.until, wanted.mode]
    return blake2b(msgspec.json.encode(asked), digest_size=8).digest()
