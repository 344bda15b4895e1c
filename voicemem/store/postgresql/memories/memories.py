"""The methods of `voicemem.store.port.Memories` on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from voicemem.search.passages import ABOUT_WEIGHT
from voicemem.search.words import QueryWord
from voicemem.store.ports.heard_index import LAST_MS, asked_terms
from voicemem.store.ports.memories import (
    TOUCH_AGAIN_MS,
    MemoryFilter,
    MemoryRow,
    ReplacedMemory,
    check_rows,
    is_newer,
    single_scope,
    tombstone,
)
from voicemem.store.postgresql.database.connection import Session
from voicemem.store.postgresql.database.pool import Database
from voicemem.store.postgresql.heard_index.ranking import ranked
from voicemem.store.postgresql.journal.rows import Rows
from voicemem.store.postgresql.memories.conditions import Parameters, conditions, scope_of
from voicemem.store.postgresql.memories.rows import COLUMNS, IS_THERE, is_there, refuse_taken_ids, save, to_row
from voicemem.store.stream_changes import find
from voicemem.store.streams import Stream

NEWEST_FIRST = "m.created_ms desc, m.id desc"
KEY = "stream, id"
FIND_BY_ID = f"select {COLUMNS} from memories m where project = $1 and id = any($2::text[]) and {IS_THERE}"
FIND_EXPIRED = f"""
    select {COLUMNS} from memories m where expires_ms <= $1 and removed_ms is null and {IS_THERE}
    order by expires_ms limit $2
"""
SELECT_LINKS = """
    select s.old_id, s.by_id, s.created_ms from superseded s
    join streams t on t.key = s.stream and t.state <> 'erased'
    where s.project = $1 and s.old_id = any($2::text[]) and s.created_ms <= $3
    order by s.created_ms desc, s.by_id desc
"""
IS_TO_TOUCH = f"""
    project = $1 and id = any($2::text[]) and removed_ms is null and {IS_THERE}
    and coalesce(last_accessed_ms, 0) <= $3::bigint - {TOUCH_AGAIN_MS}
"""
SELECT_TO_TOUCH = f"select id from memories m where {IS_TO_TOUCH}"
TOUCH = f"update memories m set last_accessed_ms = $3, access_count = access_count + 1 where {IS_TO_TOUCH}"


class PostgresqlMemories:
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

        def job(changes: Rows) -> Stream | None:
            stream = find(changes, key)
            if stream.position != expected or not all(is_there(changes.session, row) for row, _ in replaced):
                return None
            for row, payload in replaced:
                before = find(changes, row.key)
                changes.append_server_event(before, now_ms, payload)
                changes.save_stream(before)
                gone = tombstone(row, before.position, now_ms)
                save(changes.session, row.key, row.project, [gone], secret)
            refuse_taken_ids(changes.session, stream.project, key, rows)
            for payload in payloads:
                changes.append_server_event(stream, now_ms, payload)
            changes.save_stream(stream)
            owned = [replace(row, key=key, project=stream.project) for row in rows]
            save(changes.session, key, stream.project, owned, secret)
            return stream

        return await self.database.write(job)

    async def find_memories(self, project: str, ids: Sequence[str]) -> list[MemoryRow]:
        def job(session: Session) -> list[MemoryRow]:
            found: dict[str, MemoryRow] = {}
            for values in session.rows(FIND_BY_ID, (project, ids)):
                row = to_row(values)
                found[row.id] = max(found.get(row.id, row), row, key=is_newer)
            return with_newer(session, project, list(found.values()))

        return await self.database.read(job) if ids else []

    async def list_memories(self, wanted: MemoryFilter) -> list[MemoryRow]:
        given = Parameters()
        clauses = conditions(wanted, given)
        if wanted.after is not None:
            created_ms, last_id = wanted.after
            clauses += f" and (m.created_ms, m.id) < ({given.add(created_ms)}, {given.add(last_id)})"
        query = f"select {COLUMNS} from memories m where {clauses} order by {NEWEST_FIRST} limit "
        query += given.add(wanted.limit)

        def job(session: Session) -> list[MemoryRow]:
            rows = [to_row(row) for row in session.rows(query, given.values)]
            return with_newer(session, wanted.project, rows, wanted.as_of_ms) if wanted.with_superseded else rows

        return await self.database.read(job)

    async def find_memories_by_words(
        self, wanted: MemoryFilter, words: Sequence[QueryWord], limit: int
    ) -> list[tuple[MemoryRow, float]]:
        if not words:
            return []
        query, given = query_of(wanted, words, limit, self.database.identity["cursor_secret"])

        def job(session: Session) -> list[tuple[MemoryRow, float]]:
            found = session.rows(query, given.values)
            rows = [to_row(row[1:]) for row in found]
            if wanted.with_superseded:
                rows = with_newer(session, wanted.project, rows, wanted.as_of_ms)
            return [(row, score) for row, (score, *_) in zip(rows, found, strict=True)]

        return await self.database.read(job)

    async def find_expired_memories(self, now_ms: int, limit: int) -> list[MemoryRow]:
        return await self.database.read(
            lambda session: [to_row(row) for row in session.rows(FIND_EXPIRED, (now_ms, limit))]
        )

    async def touch_memories(self, project: str, ids: Sequence[str], now_ms: int) -> None:
        values = project, ids, now_ms
        found = await self.database.read(lambda session: session.rows(SELECT_TO_TOUCH, values)) if ids else []
        if found:  # else nothing needs to be committed
            await self.database.write(lambda rows: rows.session.change(TOUCH, values))


def query_of(wanted: MemoryFilter, words: Sequence[QueryWord], limit: int, secret: bytes) -> tuple[str, Parameters]:
    """The query for the memories with words, best first. The scope is part of the look-up in the index."""
    terms = " & ".join(asked_terms(single_scope(wanted), secret))
    asked = " | ".join(f"'{word.text}'{':*' if word.is_prefix else ''}" for word in words)
    whole = " ".join(word.text for word in words if not word.is_prefix)
    beginnings = " ".join(word.text for word in words if word.is_prefix)
    given = Parameters(terms, asked, whole, beginnings)
    totals = f"select count(*), sum(length) from memories where {scope_of(wanted, given)}"
    query = ranked("memories", KEY, ABOUT_WEIGHT, totals, conditions(wanted, given))
    return (
        f"{query} select score, {COLUMNS} from scored join memories m using ({KEY})"
        f" order by score desc, {NEWEST_FIRST} limit {given.add(limit)}",
        given,
    )


def with_newer(session: Session, project: str, rows: list[MemoryRow], as_of_ms: int | None = None) -> list[MemoryRow]:
    """The rows, each with what had first taken its place by that time."""
    if not rows:
        return rows
    values = project, [row.id for row in rows], LAST_MS if as_of_ms is None else as_of_ms
    newer = {old: (by, made_ms) for old, by, made_ms in session.rows(SELECT_LINKS, values)}
    return [
        replace(row, superseded_by=newer[row.id][0], superseded_ms=newer[row.id][1]) if row.id in newer else row
        for row in rows
    ]
