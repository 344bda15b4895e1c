"""Changes to the memories in one journal, planned before they are written in one step.

A memory is in the journal of its session, else of its user, else of the project. The links by which memories make
older ones obsolete (`supersedes`) must not form a cycle: no memory of a cycle would ever be found.
"""

from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from voicemem.errors import Refused
from voicemem.memory.long_term import records
from voicemem.protocol.events import MemoryRemoved
from voicemem.protocol.memories import MAX_EVIDENCE, MAX_SUPERSEDED, RemovalReason
from voicemem.store.journal import Journal
from voicemem.store.memories import Memories, MemoryRow, ReplacedMemory, tombstone
from voicemem.store.memory_filters import AnyOf, MemoryFilter
from voicemem.store.scopes import Scope, scope_of
from voicemem.store.streams import SESSION_KIND, Stream

NO_USER = ""
"""The user id of memories without a user; no user can have it."""


def filter_of(owner: Scope) -> MemoryFilter:
    return MemoryFilter(
        project=owner.project,
        namespaces=AnyOf((owner.namespace,)),
        user_ids=AnyOf((owner.user_id,)),
        session_ids=None if owner.user_id is not None else AnyOf((owner.session_id,)),
        of_ids_alone=True,
    )


async def settle_owner(journal: Journal, owner: Scope) -> tuple[Scope, Stream | None]:
    """Return the owner of a memory that names these, and the session whose journal it belongs in; None if in none.

    The session must exist and have the memory's user, since the erasure of a user must find all their memories. A
    memory that names no user or namespace gets the session's.
    """
    if owner.session_id is None:
        return owner, None
    stream = await journal.find_session(owner.project, owner.session_id)
    if stream is None or stream.kind != SESSION_KIND:
        return owner, None
    scope = scope_of(stream)
    if owner.user_id not in (None, scope.user_id):
        return owner, None
    namespace = scope.namespace if owner.namespace is None else owner.namespace
    return owner._replace(namespace=namespace, user_id=scope.user_id), stream


async def ensure_stream(journal: Journal, owner: Scope, session: Stream | None, now_ms: int) -> Stream:
    """Return the current stream whose journal holds a memory of this owner.

    Raises `Refused` (`unknown_session`) for a session that was erased meanwhile.
    """
    if session is None:
        return await journal.ensure_user(owner.project, owner.user_id or NO_USER, now_ms)
    current = await journal.find_session(owner.project, session.id)
    if current is None or current.key != session.key:
        raise Refused("unknown_session")
    return current


async def stream_of(journal: Journal, row: MemoryRow) -> Stream | None:
    """Return the stream whose journal holds a memory; None if it is gone."""
    session = None if row.session_id is None else await journal.find_session(row.project, row.session_id)
    if session is not None and session.key == row.key:
        return session
    user = await journal.find_user(row.project, row.user_id or NO_USER)
    return user if user is not None and user.key == row.key else None


CYCLE = "A memory cannot be out of date by itself, or by one that is out of date by it: `supersedes`"


class Plan:
    """Planned changes to the memories in one stream, from its position on: events, and the resulting rows."""

    def __init__(self, memories: Memories, stream: Stream, now_ms: int) -> None:
        self.memories = memories
        self.stream = stream
        self.now_ms = now_ms
        self.payloads: list[bytes] = []
        self.rows: dict[str, MemoryRow] = {}
        self.replaced: list[ReplacedMemory] = []

    @property
    def session_id(self) -> str | None:
        return self.stream.id if self.stream.kind == SESSION_KIND else None

    def append(self, event: msgspec.Struct) -> int:
        self.payloads.append(msgspec.json.encode(event))
        return self.stream.position + len(self.payloads)

    def add(self, row: MemoryRow) -> MemoryRow:
        return self.note(row, self.append(records.added_event(row, self.session_id)))

    def edit(self, before: MemoryRow, after: MemoryRow) -> MemoryRow:
        one, other = (records.to_memory(structs.replace(row, **records.NO_TIMES)) for row in (before, after))
        if one == other:
            return before
        after = structs.replace(after, updated_ms=self.now_ms)
        return self.note(after, self.append(records.edited_event(before, after)))

    def replace(self, row: MemoryRow) -> None:
        """Remove a memory of another stream, whose id is reused here."""
        event = MemoryRemoved(memory_id=row.id, reason="replaced")
        self.replaced.append(ReplacedMemory(row, msgspec.json.encode(event)))

    def remove(self, row: MemoryRow, reason: RemovalReason) -> None:
        position = self.append(MemoryRemoved(memory_id=row.id, reason=reason))
        self.rows[row.id] = tombstone(row, position, self.now_ms)

    def note(self, row: MemoryRow, position: int) -> MemoryRow:
        self.rows[row.id] = structs.replace(row, key=self.stream.key, position=position)
        return self.rows[row.id]

    async def with_known(self, draft: records.MemoryDraft, owner: Scope) -> records.MemoryDraft:
        """Return the draft, superseding only known memories. Raises `Refused` for others, unless it was extracted."""
        if not draft.supersedes:
            return draft
        rows = await self.memories.find_memories(owner.project, draft.supersedes)
        there = {row.id for row in rows if row.removed_ms is None and row.scope.owner == owner.owner}
        missing = [place for place, id in enumerate(draft.supersedes) if id not in there]
        if missing and draft.source != "extracted":
            raise Refused("invalid_field", f"The same owner has no memory with this id: `supersedes[{missing[0]}]`")
        return structs.replace(draft, supersedes=tuple(id for id in draft.supersedes if id in there))

    async def without_cycles(self, draft: records.MemoryDraft, id: str) -> records.MemoryDraft:
        """Return the draft of the memory `id`, not superseding any that supersede it. Raises `Refused` likewise."""
        cycle = {old for old in draft.supersedes if await self.reaches(old, id)}
        if cycle and draft.source != "extracted":
            raise Refused("invalid_field", CYCLE)
        return structs.replace(draft, supersedes=tuple(old for old in draft.supersedes if old not in cycle))

    async def reaches(self, first: str, last: str) -> bool:
        """Return whether one memory supersedes another, directly or through others."""
        seen, next_ids = set[str](), {first}
        while next_ids and last not in next_ids:
            seen |= next_ids
            stored = {row.id: row for row in await self.memories.find_memories(self.stream.project, sorted(next_ids))}
            rows = [self.rows.get(one) or stored.get(one) for one in next_ids]
            next_ids = {old for row in rows if row is not None for old in row.supersedes} - seen
        return last in next_ids


class Settled(NamedTuple):
    """A draft with its owner, and the session whose journal it belongs in, if any."""

    place: int
    """Its place among all drafts of a request."""
    draft: records.MemoryDraft
    owner: Scope
    session: Stream | None


def owned(draft: records.MemoryDraft, owner: Scope) -> records.MemoryDraft:
    return structs.replace(draft, namespace=owner.namespace, user_id=owner.user_id, session_id=owner.session_id)


def strengthened(row: MemoryRow, draft: records.MemoryDraft) -> MemoryRow:
    """Return the row of a memory that was said again, with more evidence."""
    details = records.details_of(row)
    evidence = records.merged(details.evidence, draft.evidence, MAX_EVIDENCE)
    fields: dict[str, Any] = {} if evidence == details.evidence else {"evidence": evidence}
    if draft.pinned and not row.pinned:
        fields["pinned"] = True
    supersedes = records.merged(row.supersedes, [id for id in draft.supersedes if id != row.id], MAX_SUPERSEDED)
    if supersedes != row.supersedes:
        fields["supersedes"] = supersedes
    return records.changed_row(row, fields)


def continued(draft: records.MemoryDraft, same: MemoryRow) -> records.MemoryDraft:
    """Return the draft of a memory that replaces one with the same text."""
    return structs.replace(
        draft,
        supersedes=records.merged(draft.supersedes, [same.id], MAX_SUPERSEDED),
        evidence=records.merged(records.details_of(same).evidence, draft.evidence, MAX_EVIDENCE),
        topics=draft.topics or same.topics,
        entities=draft.entities or same.entities,
        event_at=draft.event_at or same.event_at,
        pinned=draft.pinned or same.pinned,
    )
