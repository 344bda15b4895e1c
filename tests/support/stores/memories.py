"""Short ways to write memories into a store, and to find them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tests.support.stores.contract import NOW
from voicemem.config.session import validate_config
from voicemem.search.words import query_words
from voicemem.store.memories import MemoryRow
from voicemem.store.memory_filters import MemoryFilter
from voicemem.store.port import Store
from voicemem.store.streams import Stream


async def stream_of(store: Store, user_id: str = "ann", project: str = "p") -> Stream:
    """The stream of a user as it is now, made where there is none."""
    return await store.journal.ensure_user(project, user_id, NOW)


async def session_of(store: Store, session_id: str = "s", project: str = "p") -> Stream:
    """A session as it is now, made where there is none."""
    found = await store.journal.find_session(project, session_id)
    return found or (await store.journal.create_session(project, session_id, validate_config({}), NOW))[0]


def memory_of(stream: Stream, memory_id: str, text: str = "walnuts", **more: Any) -> MemoryRow:
    """A memory that stands behind the journal of a stream as it is."""
    owner = {"user_id": stream.id} if stream.kind == "user" else {"session_id": stream.id}
    given = {"kind": "fact", "created_ms": NOW, "updated_ms": NOW, "position": stream.position + 1, **owner, **more}
    return MemoryRow(key=stream.key, id=memory_id, project=stream.project, text=text, **given)


async def write(store: Store, stream: Stream, *rows: MemoryRow, now_ms: int = NOW) -> Stream | None:
    """Journal an event for each of these rows, and save them."""
    payloads = [event_of(row) for row in rows]
    return await store.memories.write_memories(stream.key, payloads, stream.position, rows, now_ms)


def event_of(row: MemoryRow) -> bytes:
    """An event that stands for a memory; stores look at none."""
    return msgspec.json.encode({"type": "memory.added", "memory_id": row.id})


async def remember(
    store: Store, memory_id: str, text: str = "walnuts", *, stream: Stream | None = None, **more: Any
) -> MemoryRow:
    """A memory that is written now, of a user unless another stream is given."""
    stream = stream or await stream_of(store)
    stream = await store.journal.find_user(stream.project, stream.id) or stream if stream.kind == "user" else stream
    if stream.kind == "session":
        stream = await session_of(store, stream.id, stream.project)
    row = memory_of(stream, memory_id, text, **more)
    assert await write(store, stream, row, now_ms=row.updated_ms) is not None
    return row


async def listed(store: Store, project: str = "p", **conditions: Any) -> list[str]:
    """The ids of the memories for which conditions hold, newest first."""
    return [row.id for row in await store.memories.list_memories(MemoryFilter(project=project, **conditions))]


async def found(store: Store, query: str, project: str = "p", limit: int = 100, **conditions: Any) -> list[str]:
    """The ids of the memories that have words of a query, best first."""
    wanted = MemoryFilter(project=project, **conditions)
    return [row.id for row, _ in await store.memories.find_memories_by_words(wanted, query_words(query), limit)]


async def one(store: Store, memory_id: str, project: str = "p") -> MemoryRow:
    (row,) = await store.memories.find_memories(project, [memory_id])
    return row


async def delete_content(store: Store, keys: Sequence[int]) -> int:
    """Delete everything of erased streams; in how many portions."""
    portions = 0
    while await store.retention.delete_erased(keys):
        portions += 1
    return portions
