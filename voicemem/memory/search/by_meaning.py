"""Finds messages and memories by what they mean, and by their words, in one order of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from voicemem.memory.search.query_vectors import QueryVectors
from voicemem.memory.search.vector_maker import VectorMaker
from voicemem.search.ranking import FoundBy, ranked
from voicemem.search.words import query_words
from voicemem.store.port import Store
from voicemem.store.ports.heard_index import FoundMessage, HeardQuery
from voicemem.store.ports.memories import MemoryFilter, MemoryRow
from voicemem.store.ports.vectors import MAX_NEAR, MemoryPlace, MessagePlace, NearMessages, VectorQuery

SearchMode = Literal["words", "vectors", "hybrid"]


class Vectors(NamedTuple):
    """What searches by meaning need."""

    maker: VectorMaker
    queries: QueryVectors
    weight: float
    """What the best meaning counts, beside the best words, which count 1."""
    count_capped: Callable[[], None]


class Candidates(NamedTuple):
    """Messages that were found, the best first, and how."""

    found: Sequence[FoundMessage]
    by: Mapping[MessagePlace, tuple[FoundBy, ...]]
    mode: SearchMode


async def find_by_meaning(
    store: Store, vectors: Vectors, query: HeardQuery, vector: bytes, vectors_alone: bool
) -> Candidates:
    """What a query finds by its vector and, unless `vectors_alone`, by its words. Raises `StoreUnavailable`.

    Both are added up over the best 200 of each; beyond these there are no more pages.
    """
    name = vectors.queries.embedder.name
    assert name is not None  # it has made this vector
    by_words = [] if vectors_alone else await store.find_heard(replace(query, offset=0, limit=MAX_NEAR))
    near = await store.find_near(
        VectorQuery(
            query.scope, name, vector, query.since_ms, query.until_ms, also=[place_of(message) for message in by_words]
        )
    )
    if near.is_capped:
        vectors.count_capped()
    found, by = in_one_order(by_words, near, 1.0 if vectors_alone else vectors.weight)
    page = found[query.offset : query.offset + query.limit]
    return Candidates(page, by, "vectors" if vectors_alone else "hybrid")


async def find_memories_by_meaning(
    store: Store, vectors: Vectors, wanted: MemoryFilter, query: str, vector: bytes, vectors_alone: bool
) -> list[tuple[MemoryRow, float, tuple[FoundBy, ...]]]:
    """The memories that a query finds likewise, the best first: each with its score, and how it was found."""
    name = vectors.queries.embedder.name
    assert name is not None
    words = [] if vectors_alone else query_words(query)
    by_words = await store.find_memories_by_words(wanted, words, MAX_NEAR)
    places = [MemoryPlace(row.key, row.id) for row, _ in by_words]
    near = await store.find_memories_near(wanted, name, vector, MAX_NEAR, places)
    if near.is_capped:
        vectors.count_capped()
    rows = {MemoryPlace(row.key, row.id): row for row, _ in (*by_words, *near.found)}
    cosines = near.also | {MemoryPlace(row.key, row.id): cosine for row, cosine in near.found}
    scores = {place: score for place, (_, score) in zip(places, by_words, strict=True)}
    times = {place: row.created_ms for place, row in rows.items()}
    in_order = ranked(scores, cosines, 1.0 if vectors_alone else vectors.weight, times)
    return [(rows[one.item], one.score, one.by) for one in in_order]


def in_one_order(
    by_words: Sequence[FoundMessage], near: NearMessages, weight: float
) -> tuple[list[FoundMessage], dict[MessagePlace, tuple[FoundBy, ...]]]:
    """What was found both ways, the best first, with one score; and how each was found."""
    messages = {place_of(message): message for message in (*by_words, *near.found)}
    words = {place_of(message): message.score for message in by_words}
    cosines = near.also | {place_of(message): message.score for message in near.found}
    in_order = ranked(words, cosines, weight, {place: message.said_ms for place, message in messages.items()})
    found = [messages[one.item]._replace(score=one.score) for one in in_order]
    return found, {one.item: one.by for one in in_order}


def place_of(message: FoundMessage) -> MessagePlace:
    return MessagePlace(message.key, message.turn_id, message.number)
