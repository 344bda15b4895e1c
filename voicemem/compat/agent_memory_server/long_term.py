"""Long-term memory as agent-memory-server's clients know it, and policies of forgetting."""

from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, structs

from voicemem.compat.agent_memory_server import records as forms
from voicemem.compat.agent_memory_server.finding import DAY_MS, MOST_RESULTS, Filters, Recency, RecordFinder, equal
from voicemem.compat.agent_memory_server.sessions import SESSION_ID, OwnedSessions, Owner, derived_id, owner_of
from voicemem.errors import Refused
from voicemem.memory.long_term.memories import LongTermMemory
from voicemem.memory.long_term.memory_changes import settle_owner
from voicemem.memory.long_term.records import Memory, MemoryDraft, to_memory
from voicemem.protocol.memories import normalised
from voicemem.protocol.types import Natural
from voicemem.store.memory_filters import AnyOf, MemoryFilter
from voicemem.store.scopes import Scope
from voicemem.store.streams import Stream

Looked = Annotated[int, Meta(ge=1, le=10_000)]
Days = Annotated[float, Meta(ge=0, le=1_000_000)]
ONLY_RECENCY = Recency(semantic_weight=0.0, recency_weight=1.0)
MAX_GIVEN = 500


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """A policy of forgetting. Pinned memories are never forgotten.

    With both ages, memories are forgotten that exceed both, or that are older than `max_age_days` times
    `hard_age_multiplier`. `budget`: how many of the rest are kept, the most recent ones.
    """

    NEVER_NULL: ClassVar = ("hard_age_multiplier",)
    max_age_days: Days | None = None
    max_inactive_days: Days | None = None
    budget: Natural | None = None
    memory_type_allowlist: tuple[forms.MemoryType, ...] | None = None
    """Only memories of these types."""
    hard_age_multiplier: Annotated[float, Meta(ge=0, le=1_000_000)] = 12.0


class CompactQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a compaction: the memories that it covers."""

    namespace: str | None = None
    user_id: str | None = None


class ForgetQuery(CompactQuery, frozen=True):
    """The query of `forget` over the newest 1,000 memories; unless `dry_run` is false, nothing is deleted."""

    session_id: str | None = None
    limit: Looked | None = None
    dry_run: bool | None = None


class RecordsToForget(ForgetQuery, frozen=True, forbid_unknown_fields=False, kw_only=True):
    """A policy, and memories that it must keep. The other fields narrow it, as the query of the request does."""

    policy: Policy
    pinned_ids: tuple[str, ...] | None = None


class Forgotten(Struct, frozen=True):
    """The result of `forget`: how many memories were checked, and which were deleted, or would be."""

    scanned: int
    deleted: int
    deleted_ids: list[str]
    dry_run: bool


def select(memories: Iterable[Memory], policy: Policy, now_ms: int, pinned_ids: Collection[str] = ()) -> list[str]:
    types = policy.memory_type_allowlist
    considered = [one for one in memories if not one.pinned and one.id not in pinned_ids]
    considered = [one for one in considered if types is None or forms.type_of(one) in types]
    forgotten = {one.id for one in considered if is_over(one, policy, now_ms)}
    if policy.budget is not None:
        left = [one for one in considered if one.id not in forgotten]
        left.sort(key=lambda one: -ONLY_RECENCY.score(one, 0.0, now_ms))
        forgotten |= {one.id for one in left[policy.budget :]}
    return [one.id for one in considered if one.id in forgotten]


def is_over(memory: Memory, policy: Policy, now_ms: int) -> bool:
    age = (now_ms - memory.created_at) / DAY_MS
    accessed_ms = memory.created_at if memory.last_accessed is None else memory.last_accessed
    inactive = (now_ms - max(accessed_ms, memory.created_at)) / DAY_MS
    if policy.max_age_days is None:
        return policy.max_inactive_days is not None and inactive > policy.max_inactive_days
    if policy.max_inactive_days is None:
        return age > policy.max_age_days
    is_old = age > policy.max_age_days and inactive > policy.max_inactive_days
    return is_old or age > policy.max_age_days * policy.hard_age_multiplier


class GivenRecords(Struct, frozen=True):
    """Memories to keep. With `deduplicate`, one with the same words as one of the same owner is not kept twice."""

    memories: Annotated[tuple[forms.GivenRecord, ...], Meta(max_length=MAX_GIVEN)]
    deduplicate: bool = True


class LongTermRecords:
    """The memories of all projects, as agent-memory-server's records."""

    def __init__(self, long_term: LongTermMemory, owned: OwnedSessions, finder: RecordFinder) -> None:
        self.long_term = long_term
        self.owned = owned
        self.finder = finder
        self.store = long_term.store
        self.clock = long_term.clock

    # Keeping

    async def create(self, project: str, body: GivenRecords, namespace: str | None = None) -> list[Memory]:
        """Keep memories; `namespace` is for those without one. Searches find them at once. Raises `Refused`."""
        drafts = []
        for record in body.memories:
            forms.check_record(record)
        for record in body.memories:
            named = structs.replace(record, namespace=record.namespace or namespace)
            owner = Owner(named.session_id or "", named.namespace or None, named.user_id or None)
            drafts.append(forms.draft_of(named, await self.session_of(project, owner)))
        if body.deduplicate:
            drafts = await self.without_known(project, drafts)
        return await self.long_term.add(project, drafts)

    async def keep_in(self, stream: Stream, records: Sequence[forms.GivenRecord]) -> None:
        """Keep the memories of a working memory, as its session's. Unchanged ones are not written again."""
        memories = await self.long_term.find_all(stream.project, [one.id or "" for one in records])
        known = {one.id: one for one in memories}
        new = [one for one in records if one.id not in known or not forms.says_the_same(one, known[one.id])]
        await self.long_term.add(stream.project, [draft_in(stream, one) for one in new])

    async def known_as(self, stream: Stream, records: Sequence[forms.GivenRecord]) -> tuple[forms.GivenRecord, ...]:
        """Return a working memory's memories; one that its session already has gets the existing id."""
        known = {one.id for one in await self.long_term.find_all(stream.project, [one.id or "" for one in records])}
        said: dict[tuple[object, ...], str] = {}
        by_id: dict[str, forms.GivenRecord] = {}
        for record in records:
            draft = self.long_term.prepare(draft_in(stream, record), self.clock())
            owner = await self.owner_of(stream.project, draft)
            id = record.id or ""
            if id not in known:
                same = await self.find_same(owner, draft)
                id = said.get((normalised(draft.text), owner, draft.kind), id) if same is None else same.id
            said.setdefault((normalised(draft.text), owner, draft.kind), id)
            by_id.setdefault(id, structs.replace(record, id=id))
        return tuple(by_id.values())

    async def session_of(self, project: str, owner: Owner) -> str | None:
        """Return our id of a client's session; if there is none, an id that no other owner's session has."""
        if not owner.session_id:
            return None
        stream = await self.owned.find(project, owner)
        if stream is not None:
            return stream.id
        if SESSION_ID.match(owner.session_id):
            other = await self.store.journal.find_session(project, owner.session_id)
            if other is None:
                return owner.session_id
        return derived_id(Owner(owner.session_id))

    async def without_known(self, project: str, drafts: Sequence[MemoryDraft]) -> list[MemoryDraft]:
        """Return the drafts with new words, or that replace a memory with their id."""
        new: list[MemoryDraft] = []
        said: dict[tuple[object, ...], str | None] = {}
        for draft in drafts:
            owner = await self.owner_of(project, draft)
            first = said.setdefault((normalised(draft.text), owner, draft.kind), draft.id)
            known = await self.find_same(owner, draft) if first == draft.id else None
            if first == draft.id and (known is None or known.id == draft.id):
                new.append(draft)
        return new

    async def owner_of(self, project: str, draft: MemoryDraft) -> Scope:
        owner = Scope(project, draft.namespace, draft.user_id, draft.session_id)
        return (await settle_owner(self.store.journal, owner))[0]

    async def find_same(self, owner: Scope, draft: MemoryDraft) -> Memory | None:
        memory_filter = MemoryFilter(
            project=owner.project,
            namespaces=AnyOf((owner.namespace,)),
            user_ids=AnyOf((owner.user_id,)),
            session_ids=AnyOf((owner.session_id,)),
            kinds=AnyOf((draft.kind,)),
            unexpired_at_ms=self.long_term.clock(),
            of_ids_alone=True,
        )
        rows = await self.store.memories.list_same(memory_filter, owner, draft.text)
        return to_memory(rows[0]) if rows else None

    async def get(self, project: str, id: str, namespace: str | None = None) -> Memory:
        """Return a memory; with a namespace, only one in it or in none. Raises `Refused` (`unknown_memory`)."""
        for memory in await self.long_term.find_all(project, [id]):
            if is_within(memory, namespace):
                return memory
        raise Refused("unknown_memory", "Memory not found: there is none with this id.")

    async def edit(self, project: str, id: str, patch: forms.RecordPatch) -> Memory:
        """Change a memory. Raises `Refused` (`unknown_memory`, `invalid_field` for an empty change)."""
        memory = await self.get(project, id)
        named = patch.session_id if isinstance(patch.session_id, str) else ""
        namespace = patch.namespace if isinstance(patch.namespace, str) else memory.namespace
        user_id = patch.user_id if isinstance(patch.user_id, str) else memory.user_id
        session_id = await self.session_of(project, Owner(named, namespace, user_id))
        return await self.long_term.edit(project, id, forms.patch_of(patch, memory, session_id))

    async def delete(self, project: str, ids: Sequence[str], namespace: str | None = None) -> int:
        """Delete memories; with a namespace, only those in it or in none. Return how many existed."""
        memories = await self.long_term.find_all(project, ids)
        there = {one.id for one in memories if is_within(one, namespace)}
        await self.long_term.remove(project, [*there])
        return len(there)

    # Forgetting

    async def forget(self, project: str, request: RecordsToForget) -> Forgotten:
        """Delete those of the newest memories that a policy forgets; with `dry_run`, only report them."""
        filters = equal(namespace=request.namespace, user_id=request.user_id, session_id=request.session_id)
        conditions, dry_run = await self.finder.conditions(project, filters, alone=True), request.dry_run is not False
        scanned = await self.finder.newest(project, conditions, request.limit or 1_000)
        ids = select(scanned, request.policy, self.clock(), frozenset(request.pinned_ids or ()))
        if not dry_run and ids:
            await self.long_term.remove(project, ids, "forgotten")
        return Forgotten(len(scanned), len(ids), ids, dry_run)

    async def compact(self, project: str, filters: Filters) -> int:
        """Delete those of the newest memories that repeat a newer one of the same owner. Return how many are left."""
        scanned = await self.finder.newest(project, await self.finder.conditions(project, filters), MOST_RESULTS)
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


def draft_in(stream: Stream, record: forms.GivenRecord) -> MemoryDraft:
    """Return a draft of a working memory's memory: in its session, and with its owner unless the record names one."""
    owner = owner_of(stream)
    named = structs.replace(
        record,
        session_id=owner.session_id,
        user_id=record.user_id or owner.user_id,
        namespace=record.namespace or owner.namespace,
    )
    return forms.draft_of(named, stream.id, "message")


def is_within(memory: Memory, namespace: str | None) -> bool:
    """Return whether a memory is in a namespace, or in none; always true without a namespace."""
    return namespace is None or memory.namespace in (None, namespace)
