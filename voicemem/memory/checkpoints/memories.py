"""Memories in checkpoints: their texts stand in the events that told of them last, and are taken out of them again.

A journal has no texts of memories, so that each can be erased alone; a checkpoint has those that are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, field, structs

from voicemem.errors import Refused, StoreUnavailable
from voicemem.memory.long_term.drafts import memory_id, redacted
from voicemem.memory.long_term.memory import changed_row, details_of, packed_details
from voicemem.protocol.codec import ENCODER, decode_stored
from voicemem.protocol.events import JournaledEvent, MemoriesExtracted, MemoryAdded, MemoryEdited, MemoryRemoved
from voicemem.protocol.strict_json import JSON_DECODER
from voicemem.redaction.rules import Rules
from voicemem.sessions.derived import MAX_APPEND_ATTEMPTS
from voicemem.store.port import Store
from voicemem.store.ports.memories import MAX_ROWS, MemoryRow
from voicemem.store.records import JournalRow
from voicemem.store.streams import Stream

CONTENT = ("text", "topics", "entities", "event_at", "metadata")
"""What a journal must not have of a memory."""
TELLS = b'"memory.added"', b'"memory.edited"'
NAMES_MEMORIES = MemoryAdded | MemoryEdited | MemoryRemoved | MemoriesExtracted
LOOKED_UP = 500
"""Ids that are looked up at a time."""
CHANGEABLE = (
    *("kind", "namespace", "user_id", "topics", "entities", "event_at", "said_at", "expires_at", "confidence"),
    *("evidence", "supersedes", "same_as", "pinned", "metadata", "text"),
)


# Writing


async def payloads_with_texts(store: Store, stream: Stream, rows: Sequence[JournalRow]) -> list[bytes]:
    """The payloads of these entries; where one is the last that told of a memory that is there, with its content."""
    ids: dict[str, None] = {}
    for row in rows:
        if any(tells in row.payload for tells in TELLS):
            event = decode_stored(row.payload)
            if isinstance(event, MemoryAdded | MemoryEdited):
                ids[event.memory_id] = None
    found = await store.find_memories(stream.project, list(ids)) if ids else []
    there = {row.position: row for row in found if row.key == stream.key and row.removed_ms is None}
    return [with_content(row.payload, there[row.position]) if row.position in there else row.payload for row in rows]


def with_content(payload: bytes, row: MemoryRow) -> bytes:
    """An event about a memory, with what the memory says now."""
    content: dict[str, Any] = {
        "text": row.text,
        "topics": row.topics,
        "entities": row.entities,
        "event_at": row.event_at,
        "metadata": details_of(row).metadata,
    }
    return ENCODER.encode(JSON_DECODER.decode(payload) | content)


# Restoring


class RestoredMemories(Struct):
    """The memories of a journal that is read entry by entry."""

    rows: dict[str, MemoryRow] = field(default_factory=dict)
    """By id, as of the entry that was read last; without a text where the checkpoint has none."""
    positions: list[int] = field(default_factory=list)
    """Of the entries that name memories."""

    def apply(self, event: JournaledEvent, payload: bytes, position: int, received_ms: int) -> bytes:
        """Take over what an entry says, and return its payload as a journal has it."""
        if not isinstance(event, NAMES_MEMORIES):
            return payload
        self.positions.append(position)
        if isinstance(event, MemoryAdded):
            self.rows[event.memory_id] = row_of_event(event, position, received_ms)
        elif isinstance(event, MemoryRemoved):
            self.rows.pop(event.memory_id, None)
        elif isinstance(event, MemoryEdited) and (row := self.rows.get(event.memory_id)) is not None:
            changes = {name: value for name in CHANGEABLE if (value := getattr(event, name)) is not UNSET}
            if event.metadata is None:  # not said, or none
                changes.pop("metadata")
            row = structs.replace(row, position=position, updated_ms=received_ms)
            self.rows[event.memory_id] = changed_row(row, changes)
        if not isinstance(event, MemoryAdded | MemoryEdited):
            return payload
        values = JSON_DECODER.decode(payload)
        return ENCODER.encode({name: value for name, value in values.items() if name not in CONTENT})

    @property
    def there(self) -> list[MemoryRow]:
        """Those that have a text."""
        return [row for row in self.rows.values() if row.text]


def row_of_event(event: MemoryAdded, position: int, received_ms: int) -> MemoryRow:
    """The memory that an event tells of; whose it is follows when it is written."""
    return MemoryRow(
        key=0,
        position=position,
        id=event.memory_id,
        project="",
        namespace=event.namespace,
        user_id=event.user_id,
        kind=event.kind,
        text=event.text or "",
        said_ms=event.said_at,
        created_ms=received_ms,
        updated_ms=received_ms,
        event_at=event.event_at,
        expires_ms=event.expires_at,
        pinned=event.pinned,
        topics=event.topics,
        entities=event.entities,
        details=packed_details(event, event.same_as),
        supersedes=event.supersedes,
    )


class Renaming(Struct, frozen=True):
    """How the memories of a checkpoint are called where it is restored, and its session."""

    session: tuple[str, str]
    """The old id and the new one."""
    ids: Mapping[str, str]

    def name(self, id: str) -> str:
        return self.ids.get(id, id)

    def payload(self, payload: bytes) -> bytes:
        """An event about memories, with the new names."""
        values = JSON_DECODER.decode(payload)
        for one in ("memory_id", "same_as"):
            if isinstance(values.get(one), str):
                values[one] = self.name(values[one])
        for several in ("supersedes", "added"):
            if several in values:
                values[several] = [self.name(id) for id in values[several]]
        for source in values.get("from", ()):
            source["session_id"] = self.session_id(source["session_id"])
        return ENCODER.encode(values)

    def session_id(self, id: str) -> str:
        old, new = self.session
        return new if id == old else id

    def row(self, row: MemoryRow, rules: Rules | None) -> MemoryRow:
        """A memory with the new names, without what must not be kept."""
        details = details_of(row)
        evidence = tuple(structs.replace(one, session_id=self.session_id(one.session_id)) for one in details.evidence)
        same_as = None if details.same_as is None else self.name(details.same_as)
        fields: dict[str, Any] = {"evidence": evidence, "same_as": same_as}
        fields["supersedes"] = tuple(self.name(id) for id in row.supersedes)
        if rules is not None:
            fields |= {"text": redacted(row.text, rules), "metadata": redacted(details.metadata, rules)}
            fields |= {name: tuple(redacted([*getattr(row, name)], rules)) for name in ("topics", "entities")}
        return structs.replace(changed_row(row, fields), id=self.name(row.id), session_id=self.session[1])


async def renaming_of(
    store: Store, project: str, memories: RestoredMemories, old_session: str, new_session: str
) -> Renaming:
    """New ids for those memories whose own are taken in the project."""
    wanted, taken = [row.id for row in memories.there], set[str]()
    for first in range(0, len(wanted), LOOKED_UP):
        found = await store.find_memories(project, wanted[first : first + LOOKED_UP])
        taken |= {row.id for row in found if row.removed_ms is None}
    return Renaming((old_session, new_session), {id: memory_id(new_session, id) for id in taken})


def renamed_rows(rows: Sequence[JournalRow], memories: RestoredMemories, renaming: Renaming) -> list[JournalRow]:
    """The journal with the new names."""
    changed = list(rows)
    for position in memories.positions:
        row = changed[position - 1]
        changed[position - 1] = row._replace(payload=renaming.payload(row.payload))
    return changed


async def write_restored(store: Store, stream: Stream, rows: Sequence[MemoryRow], now_ms: int) -> None:
    """Write the memories of a session that was just restored. Raises `Refused`, `StoreUnavailable`."""
    for first in range(0, len(rows), MAX_ROWS):
        some = rows[first : first + MAX_ROWS]
        for _ in range(MAX_APPEND_ATTEMPTS):
            current = await store.find_session(stream.project, stream.id)
            if current is None:
                raise Refused("unknown_session")
            if await store.write_memories(stream.key, (), current.position, some, now_ms) is not None:
                break
        else:
            raise StoreUnavailable("The session changes faster than its memories can be stored.")
