"""The methods of `voicemem.store.port.Memories` on SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
from msgspec.structs import replace

from voicemem.search.passages import ABOUT_WEIGHT
from voicemem.search.words import QueryWord
from voicemem.store.ports.heard_index import LAST_MS
from voicemem.store.ports.memories import (
    TOUCH_AGAIN_MS,
    MemoryFilter,
    MemoryRow,
    ReplacedMemory,
    check_rows,
    is_newer,
    row_of_values,
    single_scope,
    tombstone,
)
from voicemem.store.sqlite.database.connections import Database
from voicemem.store.sqlite.memories.conditions import conditions, match_expression
from voicemem.store.sqlite.memories.rows import COLUMNS, IS_THERE, is_there, refuse_taken_ids, save
from voicemem.store.stream_changes import find
from voicemem.store.streams import Stream

NEWEST_FIRST = "m.created_ms desc, m.id desc"
LIST = f"select {COLUMNS} from memories m where {{conditions}} order by {NEWEST_FIRST} limit ?"
FIND_BY_WORDS = f"""
    select -bm25(memory_words, 0.0, 1.0, {ABOUT_WEIGHT}) as score, {COLUMNS}
    from memory_words cross join memories m on m.number = memory_words.rowid
    where memory_words match ? and {{conditions}} order by score desc, {NEWEST_FIRST} limit ?
"""
"""A cross join, so that SQLite looks at the words first whatever the conditions are."""
FIND_BY_ID = f"select {COLUMNS} from memories m where project = ? and id in ({{marks}}) and {IS_THERE}"
FIND_EXPIRED = f"""
    select {COLUMNS} from memories m where expires_ms <= ? and removed_ms is null and {IS_THERE}
    order by expires_ms limit ?
"""
SELECT_LINKS = """
    select old_id, by_id, s.created_ms from superseded s join streams on key = s.stream and state != 'erased'
    where s.project = ? and old_id in ({marks}) and s.created_ms <= ? order by s.created_ms desc, by_id desc
"""
IS_TO_TOUCH = f"ifnull(last_accessed_ms, 0) <= ? - {TOUCH_AGAIN_MS}"
TOUCH = f"""
    update memories as m set last_accessed_ms = ?, access_count = access_count + 1
    where project = ? and id in ({{marks}}) and removed_ms is null and {IS_THERE} and {IS_TO_TOUCH}
"""


class SqliteMemories:
    """The methods are documented in `voicemem.store.port.Memories`."""

    database: Database

    async def write_memories(
        self,
        key: int,
        payloads: Sequence[bytes],
        expected: int,
        rows: Sequence[MemoryRow],
        now_ms: int,
        replaced: Sequence[ReplacedMemory] = (),
    ) -> Stream | None:
        check_rows(rows)
        secret = self.database.identity["cursor_secret"]

        def job(connection: apsw.Connection) -> Stream | None:
            view = self.database.rows
            stream = find(view, key)
            if stream.position != expected or not all(is_there(connection, row) for row, _ in replaced):
                return None
            replaced_ids = {row.id for row, _ in replaced}
            refuse_taken_ids(connection, stream.project, key, [row for row in rows if row.id not in replaced_ids])
            for row, payload in replaced:
                before = find(view, row.key)
                view.append_server_event(before, now_ms, payload)
                view.save_stream(before)
                save(connection, tombstone(row, before.position, now_ms), secret)
            for payload in payloads:
                view.append_server_event(stream, now_ms, payload)
            if payloads:
                view.save_stream(stream)
            for row in rows:
                save(connection, replace(row, key=key, project=stream.project), secret)
            return stream

        return await self.database.write(job)

    async def find_memories(self, project: str, ids: Sequence[str]) -> list[MemoryRow]:
        def job(connection: apsw.Connection) -> list[MemoryRow]:
            found: dict[str, MemoryRow] = {}
            for values in connection.execute(FIND_BY_ID.format(marks=marks(ids)), (project, *ids)):
                row = row_of_values(values)
                found[row.id] = max(found.get(row.id, row), row, key=is_newer)
            return with_newer(connection, project, list(found.values()))

        return await self.database.read(job)

    async def list_memories(self, wanted: MemoryFilter) -> list[MemoryRow]:
        clauses, values = conditions(wanted)
        if wanted.after is not None:
            clauses += " and (m.created_ms, m.id) < (?, ?)"
            values += wanted.after
        query = LIST.format(conditions=clauses)

        def job(connection: apsw.Connection) -> list[MemoryRow]:
            rows = [row_of_values(row) for row in connection.execute(query, (*values, wanted.limit))]
            return with_newer(connection, wanted.project, rows, wanted.as_of_ms) if wanted.with_superseded else rows

        return await self.database.scan(job)

    async def find_memories_by_words(
        self, wanted: MemoryFilter, words: Sequence[QueryWord], limit: int
    ) -> list[tuple[MemoryRow, float]]:
        if not words:
            return []
        clauses, values = conditions(wanted)
        query = FIND_BY_WORDS.format(conditions=clauses)
        asked = match_expression(single_scope(wanted), words, self.database.identity["cursor_secret"])

        def job(connection: apsw.Connection) -> list[tuple[MemoryRow, float]]:
            found: list[tuple[Any, ...]] = connection.execute(query, (asked, *values, limit)).fetchall()
            rows = [row_of_values(row[1:]) for row in found]
            if wanted.with_superseded:
                rows = with_newer(connection, wanted.project, rows, wanted.as_of_ms)
            return [(row, score) for row, (score, *_) in zip(rows, found, strict=True)]

        return await self.database.scan(job)

    async def find_expired_memories(self, now_ms: int, limit: int) -> list[MemoryRow]:
        return await self.database.read(
            lambda connection: [row_of_values(row) for row in connection.execute(FIND_EXPIRED, (now_ms, limit))]
        )

    async def touch_memories(self, project: str, ids: Sequence[str], now_ms: int) -> None:
        values = (now_ms, project, *ids, now_ms)
        await self.database.write(
            lambda connection: connection.execute(TOUCH.format(marks=marks(ids)), values).fetchall()
        )


def marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def with_newer(
    connection: apsw.Connection, project: str, rows: list[MemoryRow], as_of_ms: int | None = None
) -> list[MemoryRow]:
    """The rows, each with what had first taken its place by that time."""
    ids = [row.id for row in rows]
    values = (project, *ids, LAST_MS if as_of_ms is None else as_of_ms)
    newer = {old: rest for old, *rest in connection.execute(SELECT_LINKS.format(marks=marks(ids)), values)}
    return [
        replace(row, superseded_by=newer[row.id][0], superseded_ms=newer[row.id][1]) if row.id in newer else row
        for row in rows
    ]
