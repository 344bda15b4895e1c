"""Long-term memory as agent-memory-server's clients know it, over memories of ours."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from voicemem.errors import Refused
from voicemem.memory.agent_memory.filters import Branch, Filters, TextFilter, branches
from voicemem.memory.agent_memory.forgetting import Forgotten, ToForget, select
from voicemem.memory.agent_memory.models import GivenRecord, RecordView
from voicemem.memory.agent_memory.owners import ID_LABEL, Owner, derived_id, owner_of
from voicemem.memory.agent_memory.ranking import Recency, rerank
from voicemem.memory.agent_memory.records import (
    RecordPatch,
    check_record,
    draft_of,
    patch_of,
    says_the_same,
    strategy_of,
    view_of,
)
from voicemem.memory.agent_memory.sessions import MOST_SAME_ID, SESSION_ID, OwnedSessions
from voicemem.memory.long_term.drafts import MemoryDraft, normalised
from voicemem.memory.long_term.memories import LongTermMemory
from voicemem.memory.long_term.memory import Memory
from voicemem.memory.long_term.owners import MemoryOwner, settle_owner
from voicemem.memory.long_term.searches import MAX_QUERY
from voicemem.protocol.types import MAX_INTEGER
from voicemem.store.ports.memories import AnyOf, MemoryFilter
from voicemem.store.records import SessionFilter
from voicemem.store.streams import Stream

MAX_GIVEN = 500
"""Memories that are given at once."""
MOST_RESULTS = 10_000
"""A search goes no further than this."""
PAGE = 500
SAME_LOOKED_AT = 10
MOST_NAMED = 100
"""Sessions in a filter that are looked up."""
Weight = Annotated[float, Meta(ge=0, le=1_000)]
HalfLife = Annotated[float, Meta(gt=0, le=1_000_000)]


class GivenRecords(Struct, frozen=True):
    """Memories to keep. With `deduplicate`, one that says the same as one of the same owner is not kept twice."""

    memories: Annotated[tuple[GivenRecord, ...], Meta(max_length=MAX_GIVEN)]
    deduplicate: bool = True


class RecordSearch(Filters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to search for. Without `text`, all memories that the filters let through, the newest first."""

    text: Annotated[str, Meta(max_length=100_000)] | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    offset: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] = 0
    search_mode: Literal["semantic", "keyword", "hybrid"] = "semantic"
    distance_threshold: float | None = None
    hybrid_alpha: float | None = None
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


class LongTermRecords:
    """The memories of all projects, as records of agent-memory-server's."""

    def __init__(self, long_term: LongTermMemory, owned: OwnedSessions) -> None:
        self.long_term = long_term
        self.owned = owned
        self.store = long_term.store
        self.clock = long_term.clock

    # Keeping

    async def create(self, project: str, given: GivenRecords) -> list[Memory]:
        """Keep memories; they are found once this returns. Raises `Refused`."""
        for record in given.memories:
            check_record(record)
        drafts = [draft_of(one, await self.session_of(project, owner_named(one))) for one in given.memories]
        if given.deduplicate:
            drafts = await self.without_known(project, drafts)
        return await self.long_term.add(project, drafts)

    async def keep_in(self, stream: Stream, records: Sequence[GivenRecord]) -> None:
        """Keep what a working memory brings, as memories of its session. Those that stand as they are stay."""
        if not records:
            return
        owner = owner_of(stream)
        known = {one.id: one for one in await self.find_all(stream.project, [one.id or "" for one in records])}
        new = [one for one in records if one.id not in known or not says_the_same(one, known[one.id])]
        drafts = [draft_of(with_owner(one, owner), stream.id, "message") for one in new]
        await self.long_term.add(stream.project, drafts)

    async def known_as(self, stream: Stream, records: Sequence[GivenRecord]) -> tuple[GivenRecord, ...]:
        """What a working memory brings, each with the id under which its session says the same already, if it does."""
        if not records:
            return ()
        owner = owner_of(stream)
        known = {one.id for one in await self.find_all(stream.project, [one.id or "" for one in records])}
        said: dict[tuple[object, ...], str] = {}
        found: dict[str, GivenRecord] = {}
        for record in records:
            draft = self.long_term.prepare(draft_of(with_owner(record, owner), stream.id, "message"), self.clock())
            given = MemoryOwner(stream.project, draft.namespace, draft.user_id, draft.session_id)
            settled, _ = await settle_owner(self.store, given)
            id = record.id or ""
            if id not in known:
                same = await self.find_same(settled, draft)
                id = said.get((normalised(draft.text), settled, draft.kind), id) if same is None else same.id
            said.setdefault((normalised(draft.text), settled, draft.kind), id)
            found.setdefault(id, structs.replace(record, id=id))
        return tuple(found.values())

    async def find_all(self, project: str, ids: Sequence[str]) -> list[Memory]:
        """Those of these memories that are there."""
        return await self.long_term.find_all(project, ids) if ids else []

    async def session_of(self, project: str, owner: Owner) -> str | None:
        """Our id of the session that a client names; where there is none, one that no other owner's session has."""
        if not owner.session_id:
            return None
        stream = await self.owned.find(project, owner)
        if stream is not None:
            return stream.id
        if SESSION_ID.match(owner.session_id):
            other = await self.store.find_session(project, owner.session_id)
            if other is None:
                return owner.session_id
        return derived_id(Owner(owner.session_id))

    async def without_known(self, project: str, drafts: Sequence[MemoryDraft]) -> list[MemoryDraft]:
        """Those drafts that say something new, or replace a memory of their id."""
        new: list[MemoryDraft] = []
        said: dict[tuple[object, ...], str | None] = {}
        for draft in drafts:
            given = MemoryOwner(project, draft.namespace, draft.user_id, draft.session_id)
            owner, _ = await settle_owner(self.store, given)
            first = said.setdefault((normalised(draft.text), owner, draft.kind), draft.id)
            known = await self.find_same(owner, draft) if first == draft.id else None
            if first == draft.id and (known is None or known.id == draft.id):
                new.append(draft)
        return new

    async def find_same(self, owner: MemoryOwner, draft: MemoryDraft) -> Memory | None:
        """A memory of the same text, owner and kind."""
        wanted = MemoryFilter(
            project=owner.project,
            namespaces=AnyOf((owner.namespace,)),
            user_ids=AnyOf((owner.user_id,)),
            session_ids=AnyOf((owner.session_id,)),
            kinds=AnyOf((draft.kind,)),
        )
        found = await self.long_term.find_by_words(owner.project, wanted, draft.text, SAME_LOOKED_AT)
        return next((one for one, _ in found if normalised(one.text) == normalised(draft.text)), None)

    async def edit(self, project: str, id: str, patch: RecordPatch) -> Memory:
        """Change a memory. Raises `Refused` (`unknown_memory`, `invalid_field` where there is nothing to change)."""
        memory = await self.long_term.find(project, id)
        named = patch.session_id if isinstance(patch.session_id, str) else None
        namespace = patch.namespace if isinstance(patch.namespace, str) else memory.namespace
        user_id = patch.user_id if isinstance(patch.user_id, str) else memory.user_id
        session_id = await self.session_of(project, Owner(named or "", namespace, user_id))
        return await self.long_term.edit(project, id, patch_of(patch, memory, session_id))

    async def delete(self, project: str, ids: Sequence[str]) -> int:
        """Delete memories; how many were there."""
        there = {one.id for one in await self.find_all(project, ids)}
        await self.long_term.remove(project, [*there])
        return len(there)

    # Finding

    async def search(self, project: str, wanted: RecordSearch) -> FoundRecords:
        """A page of the memories that the filters let through: first those that fit the text, then the newest.

        Raises `Refused` (`invalid_field`).
        """
        if wanted.distance_threshold is not None and wanted.search_mode != "semantic":
            raise Refused("invalid_field", "distance_threshold is only supported for semantic search mode.")
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
        found: list[Found] = []
        if wanted.text and wanted.text.strip():
            for branch in conditions:
                found += await self.by_words(project, branch, wanted.text, most)
            best = max((score for _, score in found), default=0.0)
            found = [(memory, score / best if best > 0 else 1.0) for memory, score in found]
            found.sort(key=lambda one: (-one[1], -one[0].created_at))
            threshold = wanted.distance_threshold
            if threshold is not None:
                found = [one for one in found if 1.0 - one[1] <= threshold]
            if wanted.search_mode == "keyword" or (threshold is not None and threshold < 1.0):
                return found[:most]
        score = 0.0 if wanted.text and wanted.text.strip() else 1.0
        if len(found) < most:
            known = {memory.id for memory, _ in found}
            newest = await self.newest(project, conditions, most, known)
            found += [(memory, score) for memory in newest]
        return found[:most]

    async def by_words(self, project: str, branch: Branch, text: str, most: int) -> list[Found]:
        found = await self.long_term.find_by_words(project, branch.filter, text[:MAX_QUERY], most)
        return [one for one in found if branch.takes(strategy_of(one[0]))]

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

    # Forgetting

    async def forget(self, project: str, given: ToForget, filters: Filters, limit: int, dry_run: bool) -> Forgotten:
        """Delete what a policy forgets, of the newest `limit` memories; with `dry_run` only say which."""
        scanned = await self.newest(project, await self.conditions(project, filters), limit)
        ids = select(scanned, given.policy, self.clock(), frozenset(given.pinned_ids))
        if not dry_run and ids:
            await self.long_term.remove(project, ids, "forgotten")
        return Forgotten(len(scanned), len(ids), ids, dry_run)

    async def compact(self, project: str, filters: Filters) -> int:
        """Delete memories that say the same as a newer one of the same owner; how many are left, of the newest."""
        scanned = await self.newest(project, await self.conditions(project, filters), MOST_RESULTS)
        kept: set[tuple[object, ...]] = set()
        double: list[str] = []
        for one in scanned:
            key = (normalised(one.text), one.namespace, one.user_id, one.session_id, one.kind)
            if key in kept and not one.pinned:
                double.append(one.id)
            kept.add(key)
        if double:
            await self.long_term.remove(project, double, "replaced")
        return len(scanned) - len(double)


def with_owner(record: GivenRecord, owner: Owner) -> GivenRecord:
    """A memory of a working memory, which is its owner's."""
    return structs.replace(
        record,
        session_id=owner.session_id,
        user_id=record.user_id or owner.user_id,
        namespace=record.namespace or owner.namespace,
    )


def owner_named(record: GivenRecord) -> Owner:
    return Owner(record.session_id or "", record.namespace or None, record.user_id or None)


def named_values(given: TextFilter) -> tuple[str, ...]:
    """All values that a filter names."""
    lists = (given.any, given.all, given.in_, given.not_in)
    singles = (given.eq, given.ne, given.not_eq)
    return tuple({*(one for one in singles if one is not None), *(one for several in lists for one in several or ())})
