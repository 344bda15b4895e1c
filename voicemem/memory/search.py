"""Search for heard messages and for memories: by words, and by meaning if there is an embedder.

From top to bottom: the request and the answer, the finder that merges messages and memories, the pages of results,
and ranking by meaning.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Hashable, Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from voicemem.errors import Refused
from voicemem.memory.long_term.memories import LongTermMemory, any_of
from voicemem.memory.long_term.records import to_memory
from voicemem.memory.transcript_index import TranscriptIndexer
from voicemem.memory.vectors import QueryVectors, VectorMaker
from voicemem.protocol.memories import Evidence, MemorySource, Topics
from voicemem.protocol.types import MAX_INTEGER, JsonObject, Name, SessionId, fields_of, format_place, parse_place
from voicemem.runtime import FairQueue
from voicemem.search.words import query_words
from voicemem.store.memories import MemoryRow
from voicemem.store.memory_filters import AnyOf, Between, MemoryFilter, Tags
from voicemem.store.port import Store
from voicemem.store.scopes import QueryScope, Scope, scope_of
from voicemem.store.streams import Stream
from voicemem.store.transcript_search import MAX_FOUND, FoundMessage, TranscriptQuery
from voicemem.store.vectors import MAX_NEAR, MemoryPlace, NearestTexts, VectorQuery
from voicemem.transcript.messages import Role

FoundBy = Literal["words", "vectors"]
Item = TypeVar("Item", bound=Hashable)
SearchMode = Literal["words", "vectors", "hybrid"]
FoundMessages = list[tuple[FoundMessage, tuple[FoundBy, ...]]]
BY_WORDS: tuple[FoundBy, ...] = ("words",)
NO_EMBEDDER = (
    "There are no vectors: the service has no embedder (--embeddings-url), so mode must be auto or words, not {}."
)
OTHER_SEARCH = "The cursor must be the next_cursor of a page of this same search: only limit may change."
MAX_CALLS = 1_000
"""The most calls found by words, those in which the words were heard last, and as many by their names."""
MAX_QUERY = 4_000
SEARCHES = 2
"""Searches that read the index at a time."""
MAX_PAGE = 100
MAX_PAGE_BYTES = 1024 * 1024
"""A page ends with the text that brings it to this size."""
Millis = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
MemoryKind = Literal["message", "fact", "preference", "episode", "summary"]
MESSAGE: MemoryKind = "message"
KINDS: tuple[MemoryKind, ...] = ("message", "fact", "preference", "episode", "summary")


class MemorySearch(Struct, frozen=True, forbid_unknown_fields=True):
    """A search request, and its scope: the whole project, or a user, a session, a namespace.

    The fields of the scope are never null: a program that does not know its user must not search all users. `kinds` are
    heard messages (`message`) and kinds of memories, by default all. `since` and `until` (Unix ms) bound the time at
    which it was said; `until` itself is too late. With `topics` or `entities` a memory must have one of them; messages
    have none. `as_of` (Unix ms) finds what was known then, `superseded` also obsolete memories. `mode` is `words`,
    `vectors` (by meaning), or `hybrid`, both. `auto` is `hybrid` if there are vectors.
    """

    NEVER_NULL: ClassVar = ("user_id", "session_id", "namespace")
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

    def scope_in(self, project: str) -> Scope:
        """Return the scope of a search; None is everywhere in the project."""
        places = (None if one is UNSET else one for one in (self.namespace, self.user_id, self.session_id))
        return Scope(project, *places)

    def within(self, places: Mapping[str, str | None]) -> MemorySearch:
        """Return the same search with other fields of the scope; None is everywhere in the project."""
        return replace(self, **{name: UNSET if value is None else value for name, value in places.items()})

    @property
    def with_messages(self) -> bool:
        return MESSAGE in self.kinds and not self.topics and not self.entities

    @property
    def memory_kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in self.kinds if kind != MESSAGE)


class FoundMemory(Struct, frozen=True, kw_only=True, rename={"evidence": "from"}):
    """One result of a search: a message as it was heard, which has a `role`, or a memory with its fields."""

    id: str
    kind: MemoryKind
    text: str
    role: Role | UnsetType = UNSET
    session_id: str | None
    user_id: str | None
    namespace: str | None
    said_at: int | None
    """Unix ms, like the other times except `event_at`."""
    score: float
    """Relative to the best match of the search, which has 1; with `vectors` alone, the cosine.

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

    `complete` is false while the index is being built, and results may be missing. `mode` is how they were found: by
    `words` alone also if the vector of the query did not come in time.
    """

    memories: list[FoundMemory]
    next_cursor: str | None
    complete: bool
    mode: SearchMode


class CursorPlace(Struct, array_like=True, frozen=True):
    """The place of a cursor: how many messages and memories were shown, and the best score of each kind."""

    messages: Annotated[int, Meta(ge=0, le=MAX_FOUND)] = 0
    best_message: float | None = None
    statements: Annotated[int, Meta(ge=0, le=MAX_FOUND)] = 0
    best_statement: float | None = None


class MemoryFinder:
    """Finds heard messages and memories, and reads nothing outside the scope of a search.

    Whatever the index holds, only what the store still has is shown. `vectors` is None if there is no embedder.
    """

    def __init__(
        self, store: Store, indexer: TranscriptIndexer, long_term: LongTermMemory, vectors: Vectors | None = None
    ) -> None:
        self.store = store
        self.indexer = indexer
        self.long_term = long_term
        self.vectors = vectors
        self.queue = FairQueue(SEARCHES)
        """Projects take turns at the index: a search with many words takes a while."""

    async def search(self, project: str, request: MemorySearch) -> FoundMemories:
        """Return a page of results. Raises `Refused` (`invalid_cursor`, `invalid_field`), `StoreUnavailable`.

        Of messages and memories with equal scores, memories come first.
        """
        # It identifies a search, whatever the size of its pages.
        encoded = msgspec.json.encode([project, replace(request, limit=1, cursor=None)])
        digest, place = blake2b(encoded, digest_size=8).digest(), CursorPlace()
        if request.cursor is not None:
            place = parse_place(request.cursor, digest, CursorPlace, OTHER_SEARCH)
        if self.vectors is None and request.mode in ("vectors", "hybrid"):
            raise Refused("invalid_field", NO_EMBEDDER.format(request.mode))
        wait_for_vector = None
        if self.vectors is not None and request.mode != "words" and self.vectors.maker.can_compare:
            wait_for_vector = self.vectors.queries.begin(request.query)
        is_complete = True
        with_messages = request.with_messages and place.messages < MAX_FOUND
        if with_messages:
            scope = await self.store.users.query_scope(request.scope_in(project))
            await self.indexer.index_first(scope.includes)
            is_complete = self.indexer.is_complete
        vector = None if wait_for_vector is None else await wait_for_vector()
        messages, best_message = list[FoundMemory | None](), place.best_message or 0.0
        async with self.queue.slot(project):
            if with_messages:
                messages, best_message = await self.messages(scope, request, place, vector)
            statements, best = await self.statements(project, request, place, vector)
        shown, message_count, count = merged_page(messages, statements, request.limit)
        self.long_term.count_use(project, [one.id for one in statements[:count]])
        after = CursorPlace(place.messages + message_count, best_message, place.statements + count, best)
        has_more = len(messages) > message_count and after.messages < MAX_FOUND
        has_more = has_more or (len(statements) > count and after.statements < MAX_FOUND)
        cursor = format_place(digest, after) if has_more else None
        mode: SearchMode = "words" if vector is None else "vectors" if request.mode == "vectors" else "hybrid"
        return FoundMemories(shown, cursor, is_complete, mode)

    async def messages(
        self, scope: QueryScope, request: MemorySearch, place: CursorPlace, vector: bytes | None
    ) -> tuple[list[FoundMemory | None], float]:
        """Return the next messages, one more than the page has, and the best score of the search.

        A message is None if its session is gone, or no longer in the scope.
        """
        # The first moment that is too late for a message; for `as_of`, messages count from when they were said.
        limits = [request.until, None if request.as_of is None else request.as_of + 1]
        until = min((moment for moment in limits if moment is not None), default=None)
        limit = min(request.limit, MAX_FOUND - place.messages) + 1
        now_ms = self.indexer.clock() if request.as_of is None else request.as_of
        query = TranscriptQuery(
            scope, query_words(request.query), request.since, until, place.messages, limit, request.query, now_ms
        )
        alone, best = request.mode == "vectors" and vector is not None, place.best_message
        if vector is None or self.vectors is None:
            nearest = [(one, BY_WORDS) for one in await self.store.transcript_index.find_messages(query)]
        else:
            nearest = await find_by_meaning(self.store, self.vectors, query, vector, alone)
        if best is None:
            best = 1.0 if alone else max((message.score for message, _ in nearest), default=0.0)
        keys = sorted({message.key for message, _ in nearest})
        streams = await self.store.journal.find_sessions(scope.project, keys) if keys else []
        sessions = {one.key: one for one in streams if one.state != "erased" and scope.includes(one)}
        messages = [
            found_message(one, sessions[one.key], best, by) if one.key in sessions else None
            for one, by in fitting(nearest)
        ]
        return messages, best

    async def statements(
        self, project: str, request: MemorySearch, place: CursorPlace, vector: bytes | None
    ) -> tuple[Sequence[FoundMemory], float]:
        """Return the next memories, one more than the page has, and the best score of the search."""
        if not request.memory_kinds:
            return (), 0.0
        limit = min(place.statements + request.limit, MAX_FOUND) + 1
        conditions, alone = filter_of(project, request), request.mode == "vectors" and vector is not None
        if vector is None or self.vectors is None:
            by_words = await self.long_term.find_by_words(project, conditions, request.query, limit)
            ranked = [(memory, score, BY_WORDS) for memory, score in by_words]
        else:
            restricted = self.long_term.restricted(project, conditions)
            rows = await find_memories_by_meaning(self.store, self.vectors, restricted, request.query, vector, alone)
            ranked = [(to_memory(row), score, by) for row, score, by in rows]
        best = 1.0 if alone else place.best_statement or max((score for _, score, _ in ranked), default=0.0)
        statements = [
            FoundMemory(**fields_of(FoundMemory, memory), score=beside(score, best), by=by)
            for memory, score, by in ranked[place.statements : limit]
        ]
        return statements, best

    async def find_calls(self, project: str, user_id: str | None, text: str) -> tuple[int, ...]:
        """Return the keys of the sessions that a text finds, for a list; those found by name may be of other users.

        All words must be in one message. Raises `StoreUnavailable`.
        """
        scope = await self.store.users.query_scope(Scope(project, user_id=user_id))
        words = query_words(text, in_all_forms=False)
        await self.indexer.index_first(scope.includes)
        async with self.queue.slot(project):
            heard = await self.store.transcript_index.find_sessions(scope, words, MAX_CALLS)
        named = await self.store.overviews.find_named(project, text.strip(), MAX_CALLS)
        return tuple(dict.fromkeys((*heard, *named)))


def filter_of(project: str, request: MemorySearch) -> MemoryFilter:
    scope = request.scope_in(project)
    return MemoryFilter(
        project=project,
        namespaces=any_of(scope.namespace),
        user_ids=any_of(scope.user_id),
        session_ids=any_of(scope.session_id),
        kinds=AnyOf(request.memory_kinds),
        topics=Tags(any=request.topics) if request.topics else None,
        entities=Tags(any=request.entities) if request.entities else None,
        said=None if request.since is None and request.until is None else Between(request.since, request.until),
        as_of_ms=request.as_of,
        with_superseded=request.superseded,
    )


def merged_page(
    messages: Sequence[FoundMemory | None], statements: Sequence[FoundMemory], limit: int
) -> tuple[list[FoundMemory], int, int]:
    """Return the best of both up to a limit, and how many of each that took."""
    shown: list[FoundMemory] = []
    first, second, size = 0, 0, 0
    while len(shown) < limit and size < MAX_PAGE_BYTES and (first < len(messages) or second < len(statements)):
        message = messages[first] if first < len(messages) else None
        statement = statements[second] if second < len(statements) else None
        if first < len(messages) and message is None:  # its session is gone
            first += 1
        elif message is None or (statement is not None and statement.score >= message.score):
            assert statement is not None
            shown.append(statement)
            second += 1
            size += len(statement.text)
        else:
            shown.append(message)
            first += 1
            size += len(message.text)
    return shown, first, second


def fitting(messages: FoundMessages) -> FoundMessages:
    """Return as many results as a page has room for by its size; at least one."""
    size = 0
    for place, (message, _) in enumerate(messages):
        size += len(message.text)
        if size >= MAX_PAGE_BYTES:
            return messages[: place + 1]
    return messages


def found_message(message: FoundMessage, stream: Stream, best: float, by: tuple[FoundBy, ...]) -> FoundMemory:
    scope = scope_of(stream)
    return FoundMemory(
        id=memory_id(scope, message),
        kind=MESSAGE,
        text=message.text,
        role=message.role,
        session_id=stream.id,
        user_id=scope.user_id,
        namespace=scope.namespace,
        said_at=message.said_ms,
        score=beside(message.score, best),
        by=by,
        evidence=(Evidence(stream.id, message.position, message.position, (message.turn_id,)),),
    )


def memory_id(scope: Scope, message: FoundMessage) -> str:
    """Return an id that stays the same while the words of a message do."""
    name = f"{scope.project}/{scope.session_id}/{message.position}/{message.text}".encode()
    digest = base64.b32encode(blake2b(name, digest_size=16).digest()).decode().lower()
    return f"mem_{digest[:26]}"


# Ranking by meaning and words together: the score of the words, relative to the best of the search, plus the cosine of
# the vectors times a weight. A sum keeps how much better the first is than the second; ranks alone (reciprocal rank
# fusion) lose that.


class Ranked(NamedTuple, Generic[Item]):
    """A result with its score, in which the best words count 1, and how it was found."""

    item: Item
    score: float
    by: tuple[FoundBy, ...]


def beside(score: float, best: float) -> float:
    """Return a score relative to the best one of its search, which has 1."""
    return round(min(1.0, score / best), 4) if best > 0 else 0.0


def ranked(
    by_words: Mapping[Item, float], by_vectors: Mapping[Item, float], weight: float, times: Mapping[Item, int]
) -> list[Ranked[Item]]:
    """Return all results, the best first, and of equal ones the newest (`times`).

    A cosine of 0 or less is no similarity, and finds nothing.
    """
    best = max(by_words.values(), default=0.0)
    ranked = []
    for item in {**by_words, **by_vectors}:
        cosine = by_vectors.get(item, 0.0)
        score, by = 0.0, list[FoundBy]()
        if item in by_words:
            score += by_words[item] / best if best > 0 else 0.0
            by.append("words")
        if cosine > 0 and weight > 0:
            score += weight * cosine
            by.append("vectors")
        if by:
            ranked.append(Ranked(item, score, tuple(by)))
    return sorted(ranked, key=lambda one: (one.score, times[one.item]), reverse=True)


class Vectors(NamedTuple):
    """The requirements of searches by meaning."""

    maker: VectorMaker
    queries: QueryVectors
    weight: float
    """The weight of a cosine, relative to the best words, which count 1."""
    count_capped: Callable[[], None]

    @property
    def embedder(self) -> str:
        """The name of the embedder, which is known once it has made the vector of the query."""
        assert self.queries.embedder.name is not None
        return self.queries.embedder.name

    def ranked(
        self,
        words: Mapping[Item, float],
        near: NearestTexts[Any],
        cosines: Mapping[Item, float],
        times: Mapping[Item, int],
        alone: bool,
    ) -> list[Ranked[Item]]:
        if near.is_capped:
            self.count_capped()
        return ranked(words, {**near.also, **cosines}, 1.0 if alone else self.weight, times)


async def find_by_meaning(
    store: Store, vectors: Vectors, query: TranscriptQuery, vector: bytes, alone: bool
) -> FoundMessages:
    """Return messages found by a query's vector and, unless `alone`, by its words, each with how it was found.

    Only the best 200 by each are ranked; beyond them there are no more pages. Raises `StoreUnavailable`.
    """
    by_words = [] if alone else await store.transcript_index.find_messages(replace(query, offset=0, limit=MAX_NEAR))
    words = {message.place: message.score for message in by_words}
    of_vector = VectorQuery(query.scope, vectors.embedder, vector, query.since_ms, query.until_ms, also=list(words))
    near = await store.transcript_vectors.find_near(of_vector)
    messages = {message.place: message for message in (*by_words, *near.found)}
    cosines = {message.place: message.score for message in near.found}
    times = {place: message.said_ms for place, message in messages.items()}
    page = vectors.ranked(words, near, cosines, times, alone)[query.offset : query.offset + query.limit]
    return [(messages[one.item]._replace(score=one.score), one.by) for one in page]


async def find_memories_by_meaning(
    store: Store, vectors: Vectors, filter: MemoryFilter, query: str, vector: bytes, alone: bool
) -> list[tuple[MemoryRow, float, tuple[FoundBy, ...]]]:
    """Return memories found likewise, the best first, each with its score and how it was found."""
    by_words = await store.memories.find_memories_by_words(filter, [] if alone else query_words(query), MAX_NEAR)
    words = {MemoryPlace(row.key, row.id): score for row, score in by_words}
    near = await store.memory_vectors.find_near(filter, vectors.embedder, vector, MAX_NEAR, list(words))
    rows = {MemoryPlace(row.key, row.id): row for row, _ in (*by_words, *near.found)}
    cosines = {MemoryPlace(row.key, row.id): cosine for row, cosine in near.found}
    times = {place: row.created_ms for place, row in rows.items()}
    return [(rows[one.item], one.score, one.by) for one in vectors.ranked(words, near, cosines, times, alone)]
