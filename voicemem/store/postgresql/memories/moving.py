"""Memories that outlive their session: their rows go on in the stream of a user."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from voicemem.store.ports.memories import MemoryRow, check_rows
from voicemem.store.postgresql.database.connection import Session
from voicemem.store.postgresql.database.pool import Database
from voicemem.store.postgresql.journal.rows import Rows
from voicemem.store.postgresql.memories.rows import COLUMNS, IS_THERE, save, to_row
from voicemem.store.postgresql.retention import SELECT_IS_EXPIRED
from voicemem.store.stream_changes import create_user_stream
from voicemem.store.streams import USER_KIND

LIST = f"""
    select {COLUMNS} from memories m where stream = $1 and id > $2 and removed_ms is null
    and {IS_THERE} order by id limit $3
"""
COUNT_THERE = """
    select count(*) from memories m join unnest($2::text[], $3::bigint[]) as given (id, position) using (id, position)
    where m.stream = $1 and m.removed_ms is null
"""
DELETE_TOMBSTONES = """
    delete from memories where stream = $1 and id = any($2::text[]) and removed_ms is not null
"""
MOVE = """
    update memories set stream = $1 where stream = $2 and id = any($3::text[])
"""
MOVE_LINKS = """
    update superseded set stream = $1
    where stream = $2 and by_id = any($3::text[])
"""


class PostgresqlMovedMemories:
    """The methods are documented in `voicemem.store.port.Retention`."""

    database: Database

    async def list_memories_of(self, key: int, after: str, limit: int) -> list[MemoryRow]:
        def job(session: Session) -> list[MemoryRow]:
            return [to_row(row) for row in session.rows(LIST, (key, after, limit))]

        return await self.database.read(job)

    async def move_memories(
        self, key: int, user_id: str, payloads: Sequence[bytes], rows: Sequence[MemoryRow], now_ms: int
    ) -> bool:
        check_rows(rows)
        secret = self.database.identity["cursor_secret"]
        ids = [row.id for row in rows]

        def job(changes: Rows) -> bool:
            session = changes.stream(key)
            if session is None or changes.session.row(SELECT_IS_EXPIRED, (key, now_ms)) is None:
                return False
            (count,) = changes.session.one(COUNT_THERE, (key, ids, [row.position for row in rows]))
            if count < len(rows):
                return False
            known = changes.find_by_name(session.project, USER_KIND, user_id)
            user = known or create_user_stream(changes, session.project, user_id, now_ms)
            moved = []
            for payload, row in zip(payloads, rows, strict=True):
                changes.append_server_event(user, now_ms, payload)
                moved.append(replace(row, key=user.key, project=user.project, position=user.position))
            changes.session.execute(DELETE_TOMBSTONES, (user.key, ids))
            changes.session.execute(MOVE, (user.key, key, ids))
            changes.session.execute(MOVE_LINKS, (user.key, key, ids))
            save(changes.session, user.key, user.project, moved, secret)
            changes.save_stream(user)
            return True

        return await self.database.write(job)
