"""Changes of the memories in one journal, planned before they are written in one step."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from voicemem.memory.long_term.drafts import MemoryDraft, merged
from voicemem.memory.long_term.memory import added_event, changed_row, details_of, edited_event, is_same_content
from voicemem.memory.long_term.owners import MemoryOwner
from voicemem.protocol.events import MemoryRemoved
from voicemem.protocol.memories import MAX_EVIDENCE, MAX_SUPERSEDED, RemovalReason
from voicemem.store.ports.memories import MemoryRow, ReplacedMemory, tombstone
from voicemem.store.streams import SESSION_KIND, Stream


class Plan:
    """Changes of the memories in one stream, from its position on: events, and the rows that follow from them."""

    def __init__(self, stream: Stream, now_ms: int) -> None:
        self.stream = stream
        self.now_ms = now_ms
        self.payloads: list[bytes] = []
        self.rows: dict[str, MemoryRow] = {}
        self.replaced: list[ReplacedMemory] = []
        """Memories of other streams whose ids go on here."""

    @property
    def session_id(self) -> str | None:
        """The id of the session whose journal it is."""
        return self.stream.id if self.stream.kind == SESSION_KIND else None

    def append(self, event: msgspec.Struct) -> int:
        self.payloads.append(msgspec.json.encode(event))
        return self.stream.position + len(self.payloads)

    def add(self, row: MemoryRow) -> MemoryRow:
        return self.note(row, self.append(added_event(row, self.session_id)))

    def edit(self, before: MemoryRow, after: MemoryRow) -> MemoryRow:
        """Change a memory, if anything is another."""
        if is_same_content(before, after):
            return before
        after = structs.replace(after, updated_ms=self.now_ms)
        return self.note(after, self.append(edited_event(before, after)))

    def replace(self, row: MemoryRow) -> None:
        """Remove a memory of another stream, whose id is added here."""
        event = MemoryRemoved(memory_id=row.id, reason="replaced")
        self.replaced.append(ReplacedMemory(row, msgspec.json.encode(event)))

    def remove(self, row: MemoryRow, reason: RemovalReason) -> None:
        position = self.append(MemoryRemoved(memory_id=row.id, reason=reason))
        self.rows[row.id] = tombstone(row, position, self.now_ms)

    def note(self, row: MemoryRow, position: int) -> MemoryRow:
        self.rows[row.id] = structs.replace(row, key=self.stream.key, position=position)
        return self.rows[row.id]


class Settled(NamedTuple):
    """A draft of which it is known whose it is, and in the journal of which session it stands, if of any."""

    place: int
    """Among all that were given."""
    draft: MemoryDraft
    owner: MemoryOwner
    session: Stream | None


def owner_of(row: MemoryRow) -> MemoryOwner:
    return MemoryOwner(*row.scope)


def owned(draft: MemoryDraft, owner: MemoryOwner) -> MemoryDraft:
    return structs.replace(draft, namespace=owner.namespace, user_id=owner.user_id, session_id=owner.session_id)


def strengthened(row: MemoryRow, draft: MemoryDraft) -> MemoryRow:
    """A memory that was said again: it comes from more messages."""
    details = details_of(row)
    evidence = merged(details.evidence, draft.evidence, MAX_EVIDENCE)
    fields: dict[str, Any] = {} if evidence == details.evidence else {"evidence": evidence}
    if draft.pinned and not row.pinned:
        fields["pinned"] = True
    supersedes = merged(row.supersedes, [id for id in draft.supersedes if id != row.id], MAX_SUPERSEDED)
    if supersedes != row.supersedes:
        fields["supersedes"] = supersedes
    return changed_row(row, fields)


def continued(draft: MemoryDraft, same: MemoryRow) -> MemoryDraft:
    """A memory that takes the place of one that says the same."""
    return structs.replace(
        draft,
        supersedes=merged(draft.supersedes, [same.id], MAX_SUPERSEDED),
        evidence=merged(details_of(same).evidence, draft.evidence, MAX_EVIDENCE),
        topics=draft.topics or same.topics,
        entities=draft.entities or same.entities,
        event_at=draft.event_at or same.event_at,
        pinned=draft.pinned or same.pinned,
    )
