"""Memories that last beyond their call: read, added, changed, removed and listed.

A change is planned from the rows as they are, and written at the position of the journal up to which they were read.
If something else was journaled first, both steps are repeated. So writers on any number of nodes lose nothing.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Annotated, Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec
from msgspec import Meta, Struct, structs

from voicemem.errors import Refused, StoreUnavailable
from voicemem.memory.long_term import records
from voicemem.memory.long_term.memory_changes import (
    Plan,
    Settled,
    continued,
    ensure_stream,
    filter_of,
    owned,
    settle_owner,
    stream_of,
    strengthened,
)
from voicemem.protocol.events import MemoriesExtracted
from voicemem.protocol.memories import Evidence, GivenKind, RemovalReason, Topic, normalised
from voicemem.protocol.types import Integer, Name, fields_given, format_place, parse_place
from voicemem.redaction.texts import Rules
from voicemem.search.passages import passages_in
from voicemem.search.words import query_words
from voicemem.sessions.derived import MAX_APPEND_ATTEMPTS
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.store.memories import MAX_ROWS, MemoryRow
from voicemem.store.memory_filters import AnyOf, MemoryFilter, Tags
from voicemem.store.port import Store
from voicemem.store.scopes import Scope, scope_of
from voicemem.store.streams import Stream

MAX_USED = 10_000
"""The most memories of a project whose use may wait to be noted."""
MAX_TOUCHED = 200
MAX_CHAIN = 100
"""The most memories of the same text, each of another session, that are removed with the newest."""
TOO_FAST = "Memories change faster than this change can be stored; try again."


@dataclass(eq=False)
class LongTermMemory:
    """The memories of all projects of a store; `ttl_ms` is how long each kind of memory is kept."""

    store: Store
    read_models: ReadModelCache
    clock: Callable[[], int]
    rules: Rules | None = None
    ttl_ms: Mapping[str, int] = field(default_factory=dict)
    listeners: list[Callable[[Iterable[int]], None]] = field(default_factory=list)
    """Called with the keys of the streams in which memories were written."""
    locks: WeakValueDictionary[Hashable, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """By stream: a lock for the writers of one journal in this process, so they do not repeat each other's attempts."""
    is_first_look: bool = True
    used: defaultdict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    """By project: the memories found since their use was last noted in the store."""

    # Reading

    async def find(self, project: str, id: str) -> records.Memory:
        """Return a memory. Raises `Refused` (`unknown_memory`)."""
        return records.to_memory(await self.require_row(project, id))

    async def find_all(self, project: str, ids: Sequence[str]) -> list[records.Memory]:
        """Return the memories of these ids that exist, in the order of the ids."""
        rows = {row.id: row for row in await self.store.memories.find_memories(project, ids) if self.is_there(row)}
        return [records.to_memory(rows[id]) for id in dict.fromkeys(ids) if id in rows]

    async def list_memories(self, project: str, filter: MemoryFilter) -> list[records.Memory]:
        """Memories that meet all conditions, the newest first; never expired ones."""
        return [
            records.to_memory(row) for row in await self.store.memories.list_memories(self.restricted(project, filter))
        ]

    async def find_by_words(
        self, project: str, filter: MemoryFilter, query: str, limit: int
    ) -> list[tuple[records.Memory, float]]:
        """Memories that contain words of a query, with their scores, the best first; otherwise as `list_memories`."""
        words = query_words(query)
        rows = await self.store.memories.find_memories_by_words(self.restricted(project, filter), words, limit)
        return [(records.to_memory(row), score) for row, score in rows]

    def restricted(self, project: str, filter: MemoryFilter) -> MemoryFilter:
        """Narrow a filter to unexpired memories of this project."""
        expired_ms = self.clock() if filter.unexpired_at_ms is None else filter.unexpired_at_ms
        return structs.replace(filter, project=project, unexpired_at_ms=expired_ms)

    async def evidence(self, project: str, memory: records.Memory) -> list[records.EvidenceLine]:
        """Return the messages that a memory comes from, as they were heard; none of erased sessions."""
        lines: list[records.EvidenceLine] = []
        for source in memory.evidence:
            stream = None if source.evidence else await self.store.journal.find_session(project, source.session_id)
            if stream is not None:
                lines += await self.lines_of(stream, source)
        return lines

    async def lines_of(self, stream: Stream, source: Evidence) -> list[records.EvidenceLine]:
        """Return the messages of a session that began between two positions of its journal."""

        def read(memory: Any) -> list[records.EvidenceLine]:
            return [
                records.EvidenceLine(stream.id, one.turn_id, one.position, one.role, one.said_ms, one.text)
                for number in sorted(set(source.turn_ids))
                for one in passages_in(memory.state, number)
                if source.first <= one.position <= source.last
            ]

        return await self.read_models.read(stream, read)

    def count_use(self, project: str, ids: Iterable[str]) -> None:
        """Count a use of these memories; it is noted in the store later, so a search does not wait for it."""
        used = self.used[project]
        if len(used) < MAX_USED:
            used.update(dict.fromkeys(ids))

    async def note_used(self) -> None:
        """Note which memories were used. Raises `StoreUnavailable`."""
        while self.used:
            project, ids = self.used.popitem()
            used = list(ids)
            for first in range(0, len(used), MAX_TOUCHED):
                await self.store.memories.touch_memories(project, used[first : first + MAX_TOUCHED], self.clock())

    async def find_row(self, project: str, id: str) -> MemoryRow | None:
        rows = await self.store.memories.find_memories(project, [id])
        return next((row for row in rows if row.removed_ms is None), None)

    async def require_row(self, project: str, id: str) -> MemoryRow:
        row = await self.find_row(project, id)
        if row is None or not self.is_there(row):
            raise Refused("unknown_memory")
        return row

    def is_there(self, row: MemoryRow) -> bool:
        """Return whether a memory exists: it was not removed, and has not expired."""
        return row.removed_ms is None and (row.expires_ms is None or row.expires_ms > self.clock())

    # Adding

    async def add(
        self, project: str, drafts: Sequence[records.MemoryDraft], now: int | None = None
    ) -> list[records.Memory]:
        """Keep memories, which can be found once this returns. Return them as they are then, in the same order.

        One without an `id` and with the same text as a memory of the same owner is that memory. One with the `id` of
        a memory replaces it. Raises `Refused` (`invalid_field`, `text_too_long`, `too_big`, `session_erased`, and
        `unknown_session` for memories extracted from a session that is gone), `StoreUnavailable`.
        """
        now = self.clock() if now is None else now
        groups: defaultdict[int | str, list[Settled]] = defaultdict(list)
        prepared = list[records.MemoryDraft]()
        for place, draft in enumerate(drafts):
            with records.naming(place if len(drafts) > 1 else None):
                prepared.append(self.prepare(draft, now))
        for place, draft in enumerate(prepared):
            owner = Scope(project, draft.namespace, draft.user_id, draft.session_id)
            owner, session = await settle_owner(self.store.journal, owner)
            if session is None and draft.source == "extracted":
                raise Refused("unknown_session")
            with records.naming(place if len(drafts) > 1 else None):
                await self.refuse_erased(owner, session)
            groups[session.key if session is not None else owner.user_id or ""].append(
                Settled(place, owned(draft, owner), owner, session)
            )
        added: dict[int, MemoryRow] = {}
        for group in groups.values():
            for first in range(0, len(group), MAX_ROWS):
                added |= await self.add_some(group[first : first + MAX_ROWS], now, len(drafts) > 1)
        return [records.to_memory(added[place]) for place in range(len(drafts))]

    async def add_extracted(
        self, stream: Stream, drafts: Sequence[records.MemoryDraft], mark: MemoriesExtracted
    ) -> list[records.Memory] | None:
        """Keep memories extracted from a session, and the mark of the position up to which it was read, in one step.

        The mark gets the ids. Return None, and change nothing, if the session has grown beyond the position of
        `stream`. There may be at most `MAX_ROWS` drafts. Raises as `add`.
        """
        now = self.clock()
        plan, rows = Plan(self.store.memories, stream, now), list[MemoryRow]()
        owner = Scope(stream.project, None, None, stream.id)
        owner, session = await settle_owner(self.store.journal, owner)
        if session is None or session.key != stream.key:
            raise Refused("unknown_session")
        for draft in [self.prepare(draft, now) for draft in drafts]:
            rows.append(await self.plan_draft(plan, Settled(0, owned(draft, owner), owner, stream)))
        plan.append(structs.replace(mark, added=tuple(dict.fromkeys(row.id for row in rows))))
        written = await self.write(plan)
        return None if written is None else [records.to_memory(row) for row in rows]

    def prepare(self, draft: records.MemoryDraft, now: int) -> records.MemoryDraft:
        checked: records.MemoryDraft = msgspec.convert(structs.asdict(draft), records.MemoryDraft)
        draft = structs.replace(checked, **records.prepare_fields(fields_given(checked), self.rules))
        if draft.expires_at is not None:
            check_expiry(draft.expires_at, now)
        return draft

    def with_ttl(self, row: MemoryRow, since_ms: int) -> MemoryRow:
        """Return the row, which expires some time after `since_ms` if memories of its kind do."""
        if row.expires_ms is not None or row.pinned or row.kind not in self.ttl_ms:
            return row
        return structs.replace(row, expires_ms=since_ms + self.ttl_ms[row.kind])

    async def add_some(self, group: Sequence[Settled], now: int, several: bool) -> dict[int, MemoryRow]:
        """Keep memories of one journal. Return the rows by place; errors name the place if there are several."""
        owner, session = group[0].owner, group[0].session
        name = (owner.project, owner.user_id) if session is None else session.key
        async with self.locks.setdefault(name, asyncio.Lock()):
            for _ in range(MAX_APPEND_ATTEMPTS):
                stream = await ensure_stream(self.store.journal, owner, session, now)
                plan = Plan(self.store.memories, stream, now)
                rows = dict[int, MemoryRow]()
                for one in group:
                    with records.naming(one.place if several else None):
                        rows[one.place] = await self.plan_draft(plan, one)
                if await self.write_or_refuse(plan, session):
                    return rows
        raise StoreUnavailable(TOO_FAST)

    async def refuse_erased(self, owner: Scope, session: Stream | None) -> None:
        """Raise `Refused` (`session_erased`) for a memory of an erased session, which it would outlive."""
        session_id = owner.session_id if session is None else None
        if session_id is not None and await self.store.journal.was_erased(owner.project, session_id):
            raise Refused("session_erased")

    async def write_or_refuse(self, plan: Plan, session: Stream | None) -> bool:
        """Write a plan. Return False if it must be made again."""
        try:
            return await self.write(plan) is not None
        except Refused as refused:
            if refused.code == "memory_exists" or (session is None and refused.code == "unknown_session"):
                return False  # another node was faster, or the user was erased meanwhile
            raise

    async def write(self, plan: Plan) -> Stream | None:
        if not plan.payloads:
            return plan.stream
        rows, key = list(plan.rows.values()), plan.stream.key
        written = await self.store.memories.write_memories(
            key, plan.payloads, plan.stream.position, rows, plan.now_ms, plan.replaced
        )
        if written is not None:
            keys = (key, *(row.key for row, _ in plan.replaced))
            for listener in self.listeners:
                listener(keys)
        return written

    async def plan_draft(self, plan: Plan, settled: Settled) -> MemoryRow:
        """Plan to keep a memory. Return its row after that."""
        owner = settled.owner
        draft = await plan.with_known(settled.draft, owner)
        if draft.id is not None:
            return await self.plan_with_id(plan, draft, owner.project)
        same = await self.find_same(plan, draft, owner)
        if same is not None and same.key == plan.stream.key:
            return plan.edit(same, strengthened(same, await plan.without_cycles(draft, same.id)))
        if same is not None:  # in another journal, whose erasure must not remove this one
            return await self.plan_new(plan, continued(draft, same), owner, same.id)
        return await self.plan_new(plan, draft, owner, None)

    async def plan_with_id(self, plan: Plan, draft: records.MemoryDraft, project: str) -> MemoryRow:
        """Plan to keep a memory under the given id."""
        id = draft.id
        assert id is not None
        known = plan.rows.get(id) or await self.find_row(project, id)
        draft = await plan.without_cycles(draft, id)
        row = records.row_of(draft, id, plan.stream.key, project, plan.now_ms, None)
        if known is not None and known.key == plan.stream.key:
            said_ms = known.said_ms if draft.said_at is None else draft.said_at
            row = structs.replace(row, created_ms=known.created_ms, said_ms=said_ms, position=known.position)
            return plan.edit(known, self.with_ttl(row, known.created_ms))
        if known is not None:
            plan.replace(known)
        return plan.add(self.with_ttl(row, plan.now_ms))

    async def plan_new(self, plan: Plan, draft: records.MemoryDraft, owner: Scope, same_as: str | None) -> MemoryRow:
        """Plan to keep a memory under an id that is derived from its text."""
        for count in range(MAX_CHAIN):
            id = records.memory_id(plan.stream.kind, plan.stream.id, owner.owner, normalised(draft.text), count)
            known = plan.rows.get(id) or await self.find_row(owner.project, id)
            cycle = known is None and [old for old in draft.supersedes if await plan.reaches(old, id)]
            if known is None and not cycle:
                row = records.row_of(draft, id, plan.stream.key, owner.project, plan.now_ms, same_as)
                return plan.add(self.with_ttl(row, plan.now_ms))
            if known is not None and normalised(known.text) == normalised(draft.text) and not known.superseded_by:
                draft = await plan.without_cycles(draft, id)
                after = records.changed_row(strengthened(known, draft), {"expires_at": draft.expires_at})
                return plan.edit(known, self.with_ttl(after, plan.now_ms))
        raise Refused("memory_exists")

    async def find_same(self, plan: Plan, draft: records.MemoryDraft, owner: Scope) -> MemoryRow | None:
        text = normalised(draft.text)
        for row in plan.rows.values():
            if row.removed_ms is None and normalised(row.text) == text and row.scope.owner == owner.owner:
                return row
        filter = structs.replace(filter_of(owner), unexpired_at_ms=plan.now_ms, limit=MAX_ROWS + 1)
        same = await self.store.memories.list_same(filter, owner, draft.text)
        return next((row for row in same if row.id not in plan.rows), None)

    # Changing

    async def edit(self, project: str, id: str, patch: records.MemoryPatch) -> records.Memory:
        """Change a memory, and return it. Raises `Refused` (`unknown_memory`, and as `add`)."""
        fields, now = records.prepare_fields(patch.fields, self.rules), self.clock()
        if fields.get("expires_at") is not None:
            check_expiry(fields["expires_at"], now)
        for _ in range(MAX_APPEND_ATTEMPTS):
            planned = await self.plan_edit(project, id, fields, now)
            if planned is not None and await self.write_or_refuse(*planned[:2]):
                return records.to_memory(planned[2])
        raise StoreUnavailable(TOO_FAST)

    async def plan_edit(
        self, project: str, id: str, fields: dict[str, Any], now: int
    ) -> tuple[Plan, Stream | None, MemoryRow] | None:
        """Plan a change. Return the plan, the session whose journal it is for, and the row after it.

        Return None if the memory has changed meanwhile. A memory that gets another owner leaves the old owner's journal
        in the same step.
        """
        before = await self.require_row(project, id)
        after = records.changed_row(before, fields)
        owner, session = await settle_owner(self.store.journal, after.scope)
        after = structs.replace(after, namespace=owner.namespace, user_id=owner.user_id)
        if "session_id" in fields:
            await self.refuse_erased(owner, session)
        if after.scope == before.scope:
            stream = await stream_of(self.store.journal, before)  # it stays where it is
            if stream is None:
                raise Refused("unknown_memory")
        else:
            stream = await ensure_stream(self.store.journal, owner, session, now)
        plan = Plan(self.store.memories, stream, now)
        if "supersedes" in fields:
            draft = records.MemoryDraft(text=after.text, id=id, supersedes=after.supersedes)
            draft = await plan.without_cycles(await plan.with_known(draft, owner), id)
            after = structs.replace(after, supersedes=draft.supersedes)
        if await self.require_row(project, id) != before:
            return None
        if plan.stream.key == before.key:
            return plan, session, plan.edit(before, after)
        plan.replace(before)
        return plan, session, plan.add(structs.replace(after, updated_ms=now))

    async def give_to_user(self, stream: Stream) -> None:
        """Give those memories of a session that have no user to its user. Raises `Refused`, `StoreUnavailable`."""
        after = ""
        while rows := await self.store.memories.list_memories_of(stream.key, after, MAX_ROWS):
            after = rows[-1].id
            ids = [row.id for row in rows if row.user_id is None]
            if ids:
                await self.give_some(stream, ids)

    async def give_named(self, named: dict[int, tuple[str, str]]) -> None:
        """Call `give_to_user` for sessions, by key with project and id, and remove them from `named`.

        The first call includes those that got their user just before the service was killed. Raises `StoreUnavailable`.
        """
        if self.is_first_look:
            named |= await self.store.memories.find_ownerless()
            self.is_first_look = False
        for key, place in list(named.items()):
            stream = await self.store.journal.find_session(*place)
            if stream is not None and stream.key == key and scope_of(stream).user_id is not None:
                with suppress(Refused):  # the session, or the user, was erased meanwhile
                    await self.give_to_user(stream)
            named.pop(key, None)

    async def give_some(self, stream: Stream, ids: Sequence[str]) -> None:
        for _ in range(MAX_APPEND_ATTEMPTS):
            session = await self.store.journal.get_session(stream.project, stream.id)
            plan, user_id = Plan(self.store.memories, session, self.clock()), scope_of(session).user_id
            for row in await self.store.memories.find_memories(stream.project, ids):
                if row.key == session.key and row.removed_ms is None and row.user_id is None:
                    plan.edit(row, structs.replace(row, user_id=user_id))
            if await self.write_or_refuse(plan, session):
                return
        raise StoreUnavailable(TOO_FAST)

    async def remove(self, project: str, ids: Sequence[str], reason: RemovalReason = "deleted") -> list[str]:
        """Remove memories with their texts, and those of the same owner with the same text. Return all ids."""
        to_remove: dict[str, MemoryRow] = {}
        waiting = list(dict.fromkeys(ids))
        for _ in range(MAX_CHAIN):
            rows = await self.store.memories.find_memories(project, waiting) if waiting else []
            there = {row.id: row for row in rows if row.removed_ms is None and row.id not in to_remove}
            to_remove |= there
            waiting = [same for row in there.values() if (same := records.details_of(row).same_as) is not None]
            if not waiting:
                break
        return await self.remove_rows(to_remove.values(), reason)

    async def remove_rows(self, rows: Iterable[MemoryRow], reason: RemovalReason) -> list[str]:
        """Remove these memories from their journals. Return the ids of those that existed."""
        by_stream: defaultdict[int, list[MemoryRow]] = defaultdict(list)
        for row in rows:
            by_stream[row.key].append(row)
        removed: list[str] = []
        for group in by_stream.values():
            for first in range(0, len(group), MAX_ROWS):
                removed += await self.remove_some(group[first : first + MAX_ROWS], reason)
        return removed

    async def remove_some(self, rows: Sequence[MemoryRow], reason: RemovalReason) -> list[str]:
        project, key, ids = rows[0].project, rows[0].key, [row.id for row in rows]
        for _ in range(MAX_APPEND_ATTEMPTS):
            stream = await stream_of(self.store.journal, rows[0])
            if stream is None:
                return []
            plan = Plan(self.store.memories, stream, self.clock())
            for row in await self.store.memories.find_memories(project, ids):
                if row.key == key and row.removed_ms is None:
                    plan.remove(row, reason)
            try:
                if await self.write(plan) is not None:
                    return list(plan.rows)
            except Refused:
                return []  # the session or the user was erased meanwhile
        raise StoreUnavailable(TOO_FAST)


def check_expiry(expires_at: int, now: int) -> None:
    if expires_at <= now:
        raise Refused("invalid_field", "The time must be in the future, in Unix ms: `expires_at`")


class MemoriesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a list of memories; `superseded=true` includes those that a newer one has replaced.

    `as_of` (Unix ms) shows the memories known then, without those removed since.
    """

    kind: GivenKind | None = None
    topic: Topic | None = None
    entity: Topic | None = None
    namespace: records.Namespace | None = None
    pinned: bool | None = None
    superseded: bool = False
    as_of: Integer | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: str | None = None


class MemoryPage(Struct, frozen=True):
    """Memories, the newest first; `next_cursor` is null on the last page."""

    memories: list[records.Memory]
    next_cursor: str | None


class LastShown(NamedTuple):
    created_ms: Integer
    id: Name


async def memory_page(long_term: LongTermMemory, filter: MemoryFilter, cursor: str | None) -> MemoryPage:
    """Return a page of memories. Raises `Refused` (`invalid_cursor`), `StoreUnavailable`."""
    # It identifies a list, whatever the size of its pages.
    digest = blake2b(repr(structs.replace(filter, after=None, limit=0)).encode(), digest_size=8).digest()
    after = None if cursor is None else parse_place(cursor, digest, LastShown)
    with_one_more = structs.replace(filter, after=after, limit=filter.limit + 1)
    memories = await long_term.list_memories(filter.project, with_one_more)
    page = memories[: filter.limit]
    if len(memories) == len(page):
        return MemoryPage(page, None)
    return MemoryPage(page, format_place(digest, LastShown(page[-1].created_at, page[-1].id)))


def any_of(value: str | None) -> AnyOf | None:
    return None if value is None else AnyOf((value,))


def list_filter(
    project: str, query: MemoriesQuery, user_ids: AnyOf | None = None, session_ids: AnyOf | None = None
) -> MemoryFilter:
    return MemoryFilter(
        project=project,
        user_ids=user_ids,
        session_ids=session_ids,
        kinds=any_of(query.kind),
        namespaces=any_of(query.namespace),
        topics=None if query.topic is None else Tags(any=(query.topic,)),
        entities=None if query.entity is None else Tags(any=(query.entity,)),
        pinned=query.pinned,
        as_of_ms=query.as_of,
        with_superseded=query.superseded,
        limit=query.limit,
    )
