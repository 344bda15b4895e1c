"""Sessions that are quarantined; the methods are documented in `voicemem.store.port.Quarantine`."""

from __future__ import annotations

import apsw
from msgspec.structs import astuple

from voicemem.store.records import QuarantineEntry
from voicemem.store.sqlite.database.connections import Database
from voicemem.store.sqlite.journal.row_cache import STREAM_COLUMNS, fetch_one, to_stream
from voicemem.store.streams import SESSION_KIND, Stream

IS_READABLE = "exists (select 1 from streams where key = ?1 and state != 'erased')"
SELECT_ENTRY = f"""
    select reason, since_ms, version from quarantined where stream = ?1 and version = ?2 and {IS_READABLE}
"""
SAVE_ENTRY = f"insert or replace into quarantined select ?1, ?2, ?3, ?4 where {IS_READABLE}"
DELETE_ENTRY = "delete from quarantined where stream = ?"
MAKE_DUE = (
    "update deliveries set due_ms = min(due_ms, ?), waiting_for = null where stream = ? and waiting_for is not null"
)
ENTRIES = """
    streams join (select stream, since_ms from quarantined where version = ?1) on stream = key where state != 'erased'
"""
COUNT_ENTRIES = f"select count(*) from {ENTRIES}"
SELECT_SESSIONS = f"select {STREAM_COLUMNS} from {ENTRIES} and kind = ?2 order by since_ms desc, key desc limit ?3"


class SqliteQuarantine:
    """What is quarantined; the methods are documented in `voicemem.store.port.Quarantine`."""

    database: Database

    async def quarantine(self, key: int, entry: QuarantineEntry) -> Stream | None:
        def job(connection: apsw.Connection) -> Stream | None:
            if connection.execute(SELECT_ENTRY, (key, entry.version)).fetchone() is not None:
                return None
            connection.execute(SAVE_ENTRY, (key, *astuple(entry)))
            return self.database.rows.stream(key) if connection.changes() else None

        return await self.database.write(job)

    async def find_quarantined(self, key: int, version: str) -> QuarantineEntry | None:
        row = await self.database.read_inline(
            lambda connection: connection.execute(SELECT_ENTRY, (key, version)).fetchone()
        )
        return None if row is None else QuarantineEntry(*row)

    async def put_back(self, key: int, now_ms: int) -> None:
        def job(connection: apsw.Connection) -> None:
            connection.execute(DELETE_ENTRY, (key,))
            connection.execute(MAKE_DUE, (now_ms, key))

        await self.database.write(job)

    async def count_quarantined(self, version: str) -> int:
        (count,) = await self.database.read(lambda connection: fetch_one(connection, COUNT_ENTRIES, (version,)))
        return int(count)

    async def list_quarantined(self, version: str, limit: int) -> list[Stream]:
        values = (version, SESSION_KIND, limit)
        return await self.database.read(
            lambda connection: [to_stream(row) for row in connection.execute(SELECT_SESSIONS, values)]
        )
