"""Finds memories as agent-memory-server's clients do: by words, by meaning, or by filters alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from voicemem.errors import Refused
from voicemem.memory.agent_memory.filters import Branch, Filters, TextFilter, branches
from voicemem.memory.agent_memory.models import RecordView
from voicemem.memory.agent_memory.owners import ID_LABEL, Owner, derived_id
from voicemem.memory.agent_memory.ranking import Recency, rerank
from voicemem.memory.agent_memory.records import strategy_of, view_of
from voicemem.memory.agent_memory.sessions import MOST_SAME_ID
from voicemem.memory.long_term.memories import LongTermMemory
from voicemem.memory.long_term.records import Memory, to_memory
from voicemem.memory.search import MAX_QUERY, Vectors, find_memories_by_meaning
from voicemem.protocol.types import MAX_INTEGER
from voicemem.store.records import SessionFilter

MOST_RESULTS = 10_000
"""A search goes no further than this."""
PAGE = 500
MOST_NAMED = 100
"""Sessions in a filter that are looked up."""
Weight = Annotated[float, Meta(ge=0, le=1_000)]
HalfLife = Annotated[float, Meta(gt=0, le=1_000_000)]
Share = Annotated[float, Meta(ge=0, le=1)]


class RecordSearch(Filters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to search for. Without `text`, all memories that the filters let through, the newest first."""

    text: Annotated[str, Meta(max_length=100_000)] | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    offset: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] = 0
    search_mode: Literal["semantic", "keyword", "hybrid"] = "semantic"
    distance_threshold: float | None = None
    hybrid_alpha: Share | None = None
    """For `hybrid`: what meaning counts, of 1; words count the rest."""
    text_scorer: str | None = None
    recency_boost: bool | None = None
    recency_semantic_weight: Weight | None = None
    recency_recency_weight: Weight | None = None
    recency_freshness_weight: Weight | None = None
    recency_novelty_weight: Weight | None = None
    recency_half_life_last_access_days: HalfLife | None = None
    recency_half_life_created_days: HalfLife | None = None
    server_side_recency: bool | None = None
    deduplicate: bool | None = None
    dedup_threshold: float | None = None
    dedup_use_llm: bool | None = None

    @property
    def filters(self) -> Filters:
        return Filters(**{name: getattr(self, name) for name in Filters.__struct_fields__})

    @property
    def recency(self) -> Recency:
        given = {name: value for name in Recency._fields if (value := getattr(self, f"recency_{name}")) is not None}
        return Recency(**given)


class FoundRecords(Struct, frozen=True):
    """A page of what was found; `next_offset` is null on the last one. `total` counts up to there, and one more."""

    memories: list[RecordView]
    total: int
    next_offset: int | None


Found = tuple[Memory, float]
"""A memory, and how well it fits: 1 for the best, 0 for one that only passed the filters."""


class RecordFinder:
    """Searches the memories of all projects. `vectors` is None where there is no embedder: then by words alone."""

    def __init__(self, long_term: LongTermMemory, vectors: Vectors | None) -> None:
        self.long_term = long_term
        self.store = long_term.store
        self.clock = long_term.clock
        self.vectors = vectors

    async def search(self, project: str, wanted: RecordSearch) -> FoundRecords:
        """A page of the memories that the filters let through: first those that fit the text, then the newest.

        Raises `Refused` (`invalid_field`).
        """
        if wanted.distance_threshold is not None and wanted.search_mode != "semantic":
            raise Refused("invalid_field", "distance_threshold is only supported for semantic search mode")
        end = wanted.offset + wanted.limit
        if end > MOST_RESULTS:
            raise Refused("invalid_field", f"A search shows at most {MOST_RESULTS:,} memories: `offset`")
        found = await self.find(project, wanted, end + 1)
        page, now_ms = found[wanted.offset : end], self.clock()
        if wanted.recency_boost is not False and wanted.text:
            page = rerank(page, wanted.recency, now_ms)
        await self.store.touch_memories(project, [memory.id for memory, score in page if score > 0], now_ms)
        views = [view_of(memory, score) for memory, score in page]
        return FoundRecords(views, len(found), end if len(found) > end else None)

    async def find(self, project: str, wanted: RecordSearch, most: int) -> list[Found]:
        """At most `most` memories, the best first."""
        conditions = await self.conditions(project, wanted.filters)
        text = (wanted.text or "").strip()
        found = await self.fitting(project, conditions, wanted, most) if text else []
        threshold = wanted.distance_threshold
        if threshold is not None:
            found = [one for one in found if 1.0 - one[1] <= threshold]
        if text and (wanted.search_mode == "keyword" or (threshold is not None and threshold < 1.0)):
            return found[:most]
        if len(found) < most:
            known = {read_model.id for read_model, _ in found}
            newest = await self.newest(project, conditions, most, known)
            found += [(memory, 0.0 if text else 1.0) for memory in newest]
        return found[:most]

    async def fitting(self, project: str, conditions: Sequence[Branch], wanted: RecordSearch, most: int) -> list[Found]:
        """What fits a text, the best first: next to the best one, or by meaning alone with the cosine."""
        text = (wanted.text or "")[:MAX_QUERY]
        vector = await self.vector_of(text, wanted)
        by_vectors = vector is not None and (wanted.search_mode == "semantic" or wanted.hybrid_alpha == 1.0)
        found: list[Found] = []
        for branch in conditions:
            several = await (
                self.long_term.find_by_words(project, branch.filter, text, most)
                if vector is None
                else self.by_meaning(project, branch, text, vector, wanted)
            )
            found += [one for one in several if branch.takes(strategy_of(one[0]))]
        best = 1.0 if by_vectors else max((score for _, score in found), default=0.0)
        found = [(read_model, score / best if best > 0 else 1.0) for read_model, score in found]
        return sorted(found, key=lambda one: (-one[1], -one[0].created_at))

    async def vector_of(self, text: str, wanted: RecordSearch) -> bytes | None:
        """The vector of a text; None for a search by words, without an embedder, and when it is late."""
        vectors = self.vectors
        if vectors is None or not vectors.maker.can_compare or wanted.search_mode == "keyword":
            return None
        return await vectors.queries.begin(text)()

    async def by_meaning(
        self, project: str, branch: Branch, text: str, vector: bytes, wanted: RecordSearch
    ) -> list[Found]:
        assert self.vectors is not None  # it has made the vector
        vectors, alpha = self.vectors, wanted.hybrid_alpha
        if alpha is not None and alpha < 1.0:
            vectors = vectors._replace(weight=alpha / (1.0 - alpha))
        alone = wanted.search_mode == "semantic" or alpha == 1.0
        conditions = self.long_term.restricted(project, branch.filter)
        found = await find_memories_by_meaning(self.store, vectors, conditions, text, vector, alone)
        return [(to_memory(row), score) for row, score, _ in found]

    async def newest(
        self, project: str, conditions: Sequence[Branch], most: int, known: Collection[str] = ()
    ) -> list[Memory]:
        """The newest memories but for those that are known."""
        found: list[Memory] = []
        for branch in conditions:
            after, several = None, list[Memory]()
            while len(several) < most:
                page = await self.long_term.list_memories(
                    project, structs.replace(branch.filter, after=after, limit=PAGE)
                )
                several += [one for one in page if one.id not in known and branch.takes(strategy_of(one))]
                if len(page) < PAGE:
                    break
                after = page[-1].created_at, page[-1].id
            found += several
        found.sort(key=lambda one: (one.created_at, one.id), reverse=True)
        return found[:most]

    async def conditions(self, project: str, filters: Filters) -> list[Branch]:
        """The filters as conditions of the store; a client's id of a session stands for all sessions that have it."""
        named = filters.session_id
        values = () if named is None else named_values(named)
        ids = {value: await self.session_ids(project, value) for value in values[:MOST_NAMED]}
        return branches(project, filters, lambda value: ids.get(value, (value,)))

    async def session_ids(self, project: str, session_id: str) -> tuple[str, ...]:
        """All ids of ours that one of a client's stands for, whoever's they are."""
        wanted = SessionFilter(project=project, label=(ID_LABEL, session_id), limit=MOST_SAME_ID)
        labelled = await self.store.list_sessions(wanted)
        return tuple(dict.fromkeys((session_id, derived_id(Owner(session_id)), *(one.id for one in labelled))))


def named_values(given: TextFilter) -> tuple[str, ...]:
    """All values that a filter names."""
    lists = (given.any, given.all, given.in_, given.not_in)
    singles = (given.eq, given.ne, given.not_eq)
    return tuple({*(one for one in singles if one is not None), *(one for several in lists for one in several or ())})
