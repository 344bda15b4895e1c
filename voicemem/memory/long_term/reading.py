"""Memories that last beyond their call: read and found, with the lines that they come from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import structs

from voicemem.errors import Refused
from voicemem.memory.long_term.memory import EvidenceLine, Memory, to_memory
from voicemem.protocol.memories import Evidence
from voicemem.search.passages import passages_in
from voicemem.search.words import query_words
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.store.port import Store
from voicemem.store.ports.memories import MemoryFilter, MemoryRow
from voicemem.store.streams import Stream

MAX_USED = 10_000
"""Memories of a project of which it is noted at a time that they were used."""
MAX_TOUCHED = 200


class MemoryReader:
    """Reads memories of all projects of a store. `clock` gives Unix ms."""

    def __init__(self, store: Store, read_models: ReadModelCache, clock: Callable[[], int]) -> None:
        self.store = store
        self.read_models = read_models
        self.clock = clock
        self.used: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """By project: memories that were found since this was last noted in the store."""

    async def find(self, project: str, id: str) -> Memory:
        """A memory. Raises `Refused` (`unknown_memory`)."""
        return to_memory(await self.require_row(project, id))

    async def find_all(self, project: str, ids: Sequence[str]) -> list[Memory]:
        """Those of these memories that are there, in the order of the ids."""
        rows = {row.id: row for row in await self.store.find_memories(project, ids) if row.removed_ms is None}
        return [to_memory(rows[id]) for id in dict.fromkeys(ids) if id in rows]

    async def list_memories(self, project: str, wanted: MemoryFilter) -> list[Memory]:
        """Memories for which all conditions hold, the newest first; expired ones are never among them."""
        return [to_memory(row) for row in await self.store.list_memories(self.restricted(project, wanted))]

    async def find_by_words(
        self, project: str, wanted: MemoryFilter, query: str, limit: int
    ) -> list[tuple[Memory, float]]:
        """Memories with words of a query and how well they fit, the best first; as `list_memories` otherwise."""
        words = query_words(query)
        found = await self.store.find_memories_by_words(self.restricted(project, wanted), words, limit)
        return [(to_memory(row), score) for row, score in found]

    def restricted(self, project: str, wanted: MemoryFilter) -> MemoryFilter:
        """The same filter, but of this project, and without what has expired."""
        expired_ms = self.clock() if wanted.unexpired_at_ms is None else wanted.unexpired_at_ms
        return structs.replace(wanted, project=project, unexpired_at_ms=expired_ms)

    async def evidence(self, project: str, memory: Memory) -> list[EvidenceLine]:
        """The messages that a memory comes from, as they were heard; of sessions that are gone there are none."""
        lines: list[EvidenceLine] = []
        for source in memory.evidence:
            stream = None if source.evidence else await self.store.find_session(project, source.session_id)
            if stream is not None:
                lines += await self.lines_of(stream, source)
        return lines

    async def lines_of(self, stream: Stream, source: Evidence) -> list[EvidenceLine]:
        """The messages of a session that began between two positions of its journal."""

        def read(memory: Any) -> list[EvidenceLine]:
            return [
                EvidenceLine(stream.id, one.turn_id, one.position, one.role, one.said_ms, one.text)
                for number in sorted(set(source.turn_ids))
                for one in passages_in(memory.state, number)
                if source.first <= one.position <= source.last
            ]

        return await self.read_models.read(stream, read)

    def count_use(self, project: str, ids: Iterable[str]) -> None:
        """Have it noted soon that these memories were used; a search does not wait for that."""
        used = self.used[project]
        if len(used) < MAX_USED:
            used.update(dict.fromkeys(ids))

    async def note_used(self) -> None:
        """Note which memories were used. Raises `StoreUnavailable`."""
        while self.used:
            project, ids = self.used.popitem()
            wanted = list(ids)
            for first in range(0, len(wanted), MAX_TOUCHED):
                await self.store.touch_memories(project, wanted[first : first + MAX_TOUCHED], self.clock())

    async def find_row(self, project: str, id: str) -> MemoryRow | None:
        found = await self.store.find_memories(project, [id])
        return next((row for row in found if row.removed_ms is None), None)

    async def require_row(self, project: str, id: str) -> MemoryRow:
        row = await self.find_row(project, id)
        if row is None or (row.expires_ms is not None and row.expires_ms <= self.clock()):
            raise Refused("unknown_memory")
        return row
