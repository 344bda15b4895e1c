"""Searches what was heard in calls of a user, a namespace or a project: by words, and by meaning with an embedder."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from voicemem.errors import Refused
from voicemem.memory.search.by_meaning import Candidates, SearchMode, Vectors, find_by_meaning, place_of
from voicemem.memory.search.indexer import TranscriptIndexer
from voicemem.memory.search.searches import MAX_PAGE_BYTES, MESSAGE, FoundMemory, MemorySearch
from voicemem.protocol.memories import Evidence
from voicemem.search.ranking import FoundBy, beside
from voicemem.search.words import query_words
from voicemem.store.port import Store
from voicemem.store.ports.heard_index import MAX_FOUND, FoundMessage, HeardQuery, HeardScope, scope_of
from voicemem.store.streams import Stream

BY_WORDS: tuple[FoundBy, ...] = ("words",)
NO_EMBEDDER = (
    "There are no vectors: the service has no embedder (--embeddings-url), so mode must be auto or words, not {}."
)


class TranscriptPage(NamedTuple):
    """Messages that were found, the best first; None stands for one whose session is gone or elsewhere now.

    `best` is the score of the best one of the search, `complete` whether all sessions are indexed, `vector` that of the
    query, where it was in time.
    """

    messages: Sequence[FoundMemory | None]
    best: float
    complete: bool
    mode: SearchMode
    vector: bytes | None = None


class TranscriptSearch:
    """Finds messages. Whatever the index holds, only what the store still has is shown.

    `vectors` is None where there is no embedder.
    """

    def __init__(self, store: Store, indexer: TranscriptIndexer, vectors: Vectors | None = None) -> None:
        self.store = store
        self.indexer = indexer
        self.vectors = vectors

    async def find(
        self, project: str, wanted: MemorySearch, offset: int = 0, best: float | None = None
    ) -> TranscriptPage:
        """The messages from an offset on, as many as a page may have and one more.

        Raises `Refused` (`invalid_field`), `StoreUnavailable`.
        """
        scope = HeardScope(project, *wanted.scope)
        wait_for_vector = self.begin_vector(wanted)
        await self.indexer.index_first(lambda stream: is_within(stream, scope))
        complete = self.indexer.is_complete
        vector = None if wait_for_vector is None else await wait_for_vector()
        candidates = await self.candidates(scope, wanted, offset, vector)
        found = candidates.found
        if best is None:
            best = 1.0 if candidates.mode == "vectors" else max((message.score for message in found), default=0.0)
        sessions = await self.sessions_of(found, scope)
        messages = [
            to_memory(one, sessions[one.key], best, candidates.by.get(place_of(one), BY_WORDS))
            if one.key in sessions
            else None
            for one in fitting(found)
        ]
        return TranscriptPage(messages, best, complete, candidates.mode, vector)

    async def embed_query_only(self, wanted: MemorySearch, best: float | None) -> TranscriptPage:
        """No message, but the vector of the query; raises as `find`."""
        wait_for_vector = self.begin_vector(wanted)
        vector = None if wait_for_vector is None else await wait_for_vector()
        mode: SearchMode = "words" if vector is None else "vectors" if wanted.mode == "vectors" else "hybrid"
        return TranscriptPage((), best or 0.0, True, mode, vector)

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
        query = HeardQuery(scope, query_words(wanted.query), wanted.since, said_until(wanted), offset, limit)
        if vector is None or self.vectors is None:
            return Candidates(await self.store.find_heard(query), {}, "words")
        return await find_by_meaning(self.store, self.vectors, query, vector, wanted.mode == "vectors")

    async def sessions_of(self, found: Sequence[FoundMessage], scope: HeardScope) -> Mapping[int, Stream]:
        """The sessions of what was found that are still there, by key, and still in the scope."""
        keys = sorted({message.key for message in found})
        streams = await self.store.find_sessions(scope.project, keys) if keys else []
        return {stream.key: stream for stream in streams if stream.state != "erased" and is_within(stream, scope)}


def said_until(wanted: MemorySearch) -> int | None:
    """The first moment that is too late for a message, of which `as_of` counts when it was said."""
    limits = [wanted.until, None if wanted.as_of is None else wanted.as_of + 1]
    return min((limit for limit in limits if limit is not None), default=None)


def is_within(stream: Stream, scope: HeardScope) -> bool:
    """Whether what is said in a session is in a scope."""
    return all(wanted is None or own == wanted for own, wanted in zip(scope_of(stream), scope, strict=True))


def fitting(found: Sequence[FoundMessage]) -> Sequence[FoundMessage]:
    """Those with which a page is full by its size; at least one."""
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
        score=beside(message.score, best),
        by=by,
        evidence=(Evidence(stream.id, message.position, message.position, (message.turn_id,)),),
    )


def memory_id(message: FoundMessage) -> str:
    """The same for the same message, as long as its words are the same."""
    name = f"{message.key}/{message.position}/{message.text}".encode()
    digest = base64.b32encode(blake2b(name, digest_size=16).digest()).decode().lower()
    return f"mem_{digest[:26]}"
