"""Searches messages that were heard and memories together, in one order and in pages."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, structs

from voicemem.memory.long_term.memories import LongTermMemory
from voicemem.memory.long_term.memory import Memory, to_memory
from voicemem.memory.search.by_meaning import find_memories_by_meaning
from voicemem.memory.search.searches import (
    MAX_PAGE_BYTES,
    FoundMemories,
    FoundMemory,
    MemorySearch,
    found_statement,
)
from voicemem.memory.search.transcript import BY_WORDS, TranscriptPage, TranscriptSearch
from voicemem.protocol.cursors import format_place, parse_place
from voicemem.search.ranking import FoundBy, beside
from voicemem.store.ports.heard_index import MAX_FOUND
from voicemem.store.ports.memories import AnyOf, Between, MemoryFilter, Tags

OTHER_SEARCH = "The cursor must be the next_cursor of a page of this same search: only limit may change."


class CursorPlace(Struct, array_like=True, frozen=True):
    """How many messages and memories were shown already, and what the best ones of each scored."""

    messages: Annotated[int, Meta(ge=0, le=MAX_FOUND)] = 0
    best_message: float | None = None
    statements: Annotated[int, Meta(ge=0, le=MAX_FOUND)] = 0
    best_statement: float | None = None


class MemoryFinder:
    """Finds what was heard, and what is known from it. Nothing outside of a search's own scope is looked at."""

    def __init__(self, heard: TranscriptSearch, long_term: LongTermMemory) -> None:
        self.heard = heard
        self.long_term = long_term

    async def search(self, project: str, wanted: MemorySearch) -> FoundMemories:
        """A page of what was found. Raises `Refused` (`invalid_cursor`, `invalid_field`), `StoreUnavailable`.

        Of messages and memories that fit equally well, memories come first.
        """
        digest = search_digest(project, wanted)
        place = (
            CursorPlace() if wanted.cursor is None else parse_place(wanted.cursor, digest, CursorPlace, OTHER_SEARCH)
        )
        page = await self.messages(project, wanted, place)
        statements, best = await self.statements(project, wanted, place, page.vector)
        shown, messages, count = merged_page(page.messages, statements, wanted.limit)
        self.long_term.count_use(project, [one.id for one in statements[:count]])
        after = CursorPlace(place.messages + messages, page.best, place.statements + count, best)
        has_more = len(page.messages) > messages and after.messages < MAX_FOUND
        has_more = has_more or (len(statements) > count and after.statements < MAX_FOUND)
        cursor = format_place(digest, after) if has_more else None
        return FoundMemories(shown, cursor, page.complete, page.mode)

    async def messages(self, project: str, wanted: MemorySearch, place: CursorPlace) -> TranscriptPage:
        """The next messages, one more than the page has."""
        if not wanted.with_messages or place.messages >= MAX_FOUND:
            return await self.heard.embed_query_only(wanted, place.best_message)
        return await self.heard.find(project, wanted, place.messages, place.best_message)

    async def statements(
        self, project: str, wanted: MemorySearch, place: CursorPlace, vector: bytes | None
    ) -> tuple[Sequence[FoundMemory], float]:
        """The next memories, one more than the page has, and the score of the best one of the search."""
        if not wanted.given_kinds:
            return (), 0.0
        limit = min(place.statements + wanted.limit, MAX_FOUND) + 1
        found = await self.statements_up_to(project, wanted, limit, vector)
        by_vectors = vector is not None and wanted.mode == "vectors"
        best = 1.0 if by_vectors else place.best_statement or max((score for _, score, _ in found), default=0.0)
        rest = found[place.statements : limit]
        return [found_statement(memory, beside(score, best), by) for memory, score, by in rest], best

    async def statements_up_to(
        self, project: str, wanted: MemorySearch, limit: int, vector: bytes | None
    ) -> Sequence[tuple[Memory, float, tuple[FoundBy, ...]]]:
        """The best memories, each with its score and how it was found."""
        conditions, vectors = filter_of(project, wanted), self.heard.vectors
        if vector is None or vectors is None:
            by_words = await self.long_term.find_by_words(project, conditions, wanted.query, limit)
            return [(memory, score, BY_WORDS) for memory, score in by_words]
        restricted, alone = self.long_term.restricted(project, conditions), wanted.mode == "vectors"
        found = await find_memories_by_meaning(self.long_term.store, vectors, restricted, wanted.query, vector, alone)
        return [(to_memory(row), score, by) for row, score, by in found]


def filter_of(project: str, wanted: MemorySearch) -> MemoryFilter:
    """The memories that a search looks at."""
    scope = wanted.scope
    return MemoryFilter(
        project=project,
        namespaces=any_of(scope.namespace),
        user_ids=any_of(scope.user_id),
        session_ids=any_of(scope.session_id),
        kinds=AnyOf(wanted.given_kinds),
        topics=Tags(any=wanted.topics) if wanted.topics else None,
        entities=Tags(any=wanted.entities) if wanted.entities else None,
        said=None if wanted.since is None and wanted.until is None else Between(wanted.since, wanted.until),
        as_of_ms=wanted.as_of,
        with_superseded=wanted.superseded,
    )


def any_of(value: str | None) -> AnyOf | None:
    return None if value is None else AnyOf((value,))


def merged_page(
    messages: Sequence[FoundMemory | None], statements: Sequence[FoundMemory], limit: int
) -> tuple[list[FoundMemory], int, int]:
    """The best of both up to a limit, and how many of each were used up for that."""
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


def search_digest(project: str, wanted: MemorySearch) -> bytes:
    """Tells one search from another, whatever the size of its pages."""
    asked = msgspec.json.encode([project, structs.replace(wanted, limit=1, cursor=None)])
    return blake2b(asked, digest_size=8).digest()
