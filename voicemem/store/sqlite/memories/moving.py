"""Memories that outlive their session: their rows go on in the stream of a user."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
from msgspec.structs import replace

from voicemem.store.ports.memories import MemoryRow, check_rows, row_of_values
from voicemem.store.sqlite.database.connections import Database
from voicemem.store.sqlite.memories.rows import COLUMNS, IS_THERE, is_there, save
from voicemem.store.sqlite.retention import SELECT_IS_EXPIRED
from voicemem.store.stream_changes import create_user_stream
from voicemem.store.streams import USER_KIND

LIST = f"""
    select {COLUMNS} from memories m where stream = ? and id > ? and removed_ms is null and {IS_THERE}
    order by id limit ?
"""
DELETE_TOMBSTONE = "delete from memories where stream = ? and id = ? and removed_ms is not null"
MOVE = "update memories set stream = ? where stream = ? and id = ?"
MOVE_LINKS = "update superseded set stream = ? where stream = ? and by_id = ?"


class SqliteMovedMemories:
    """The methods are documented in `voicemem.store.port.Retention`."""

    database: Database

    async def list_memories_of(self, key: int, after: str, limit: int) -> list[MemoryRow]:
        return await self.database.read(
            lambda connection: [row_of_values(row) for row in connection.execute(LIST, (key, after, limit))]
        )

    async def move_memories(
        self, key: int, user_id: str, payloads: Sequence[bytes], rows: Sequence[MemoryRow], now_ms: int
    ) -> bool:
        check_rows(rows)
        secret = self.database.identity["cursor_secret"]

        def job(connection: apsw.Connection) -> bool:
            view = self.database.rows
            session = view.stream(key)
            if session is None or not connection.execute(SELECT_IS_EXPIRED, (key, now_ms)).fetchall():
                return False
            if not all(is_there(connection, replace(row, key=key)) for row in rows):
                return False
            known = self.database.rows.find_by_name(session.project, USER_KIND, user_id)
            user = known or create_user_stream(self.database.rows, session.project, user_id, now_ms)
            for payload, row in zip(payloads, rows, strict=True):
                view.append_server_event(user, now_ms, payload)
                connection.execute(DELETE_TOMBSTONE, (user.key, row.id))
                connection.execute(MOVE, (user.key, key, row.id))
                connection.execute(MOVE_LINKS, (user.key, key, row.id))
                moved = replace(row, key=user.key, project=user.project, position=user.position)
                save(connection, moved, secret)
            view.save_stream(user)
            return True

        return await self.database.write(job)
