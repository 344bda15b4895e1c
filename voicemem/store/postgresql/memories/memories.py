"""The methods of `voicemem.store.port.Memories` on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from voicemem.search.words import QueryWord
from voicemem.store.memories_port import MemoryFilter, MemoryRow
from voicemem.store.streams import Stream


class PostgresqlMemories:
    """The methods are documented in `voicemem.store.port.Memories`; none of them is there yet."""

    async def write_memories(
        self, key: int, payloads: Sequence[bytes], expected: int, rows: Sequence[MemoryRow], now_ms: int
    ) -> Stream | None:
        raise NotImplementedError

    async def find_memories(self, project: str, ids: Sequence[str]) -> list[MemoryRow]:
        raise NotImplementedError

    async def list_memories(self, wanted: MemoryFilter) -> list[MemoryRow]:
        raise NotImplementedError

    async def find_memories_by_words(
        self, wanted: MemoryFilter, words: Sequence[QueryWord], limit: int
    ) -> list[tuple[MemoryRow, float]]:
        raise NotImplementedError

    async def find_expired_memories(self, now_ms: int, limit: int) -> list[MemoryRow]:
        raise NotImplementedError

    async def touch_memories(self, project: str, ids: Sequence[str], now_ms: int) -> None:
        raise NotImplementedError
