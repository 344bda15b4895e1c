"""Sessions that are quarantined; the methods are documented in `voicemem.store.port.Quarantine`."""

from __future__ import annotations

from voicemem.store.postgresql.database.connection import Word
from voicemem.store.postgresql.database.pool import Database
from voicemem.store.postgresql.journal.rows import STREAM_COLUMNS, Rows, to_stream
from voicemem.store.postgresql.journal.runs import IS_READABLE
from voicemem.store.records import QuarantineEntry
from voicemem.store.streams import SESSION_KIND, Stream

SELECT_ENTRY = f"""
    select reason, since_ms, version from quarantined
    where bucket = $1 % 64 and stream = $1 and version = $2 and {IS_READABLE}
"""
SAVE_ENTRY = f"""
    insert into quarantined select $1 % 64, $1, $2, $3, $4 where {IS_READABLE}
    on conflict (bucket, stream) do update
    set reason = excluded.reason, since_ms = excluded.since_ms, version = excluded.version
"""
DELETE_ENTRY = "delete from quarantined where bucket = $1 % 64 and stream = $1"
MAKE_DUE = """
    update deliveries set due_ms = least(due_ms, $1), waiting_for = null where stream = $2 and waiting_for is not null
"""
ENTRIES = """
    set_aside a join streams s on s.bucket = a.bucket and s.key = a.stream
    where a.version = $1 and s.state != 'erased'
"""
COUNT_ENTRIES = f"select count(*) from {ENTRIES}"
SELECT_SESSIONS = f"""
    select {STREAM_COLUMNS} from {ENTRIES} and s.kind = $2 order by a.since_ms desc, s.key desc limit $3
"""


class PostgresqlQuarantine:
    """What is quarantined; the methods are documented in `voicemem.store.port.Quarantine`."""

    database: Database

    async def quarantine(self, key: int, entry: QuarantineEntry) -> Stream | None:
        def job(rows: Rows) -> Stream | None:
            stream = rows.stream(key)
            if stream is None or rows.session.row(SELECT_ENTRY, (key, entry.version)) is not None:
                return None
            changed = rows.session.change(SAVE_ENTRY, (key, Word(entry.reason), entry.since_ms, entry.version))
            return stream if changed else None

        return await self.database.write(job)

    async def find_quarantined(self, key: int, version: str) -> QuarantineEntry | None:
        row = await self.database.read(lambda session: session.row(SELECT_ENTRY, (key, version)))
        return None if row is None else QuarantineEntry(row[0], row[1], row[2].decode())

    async def put_back(self, key: int, now_ms: int) -> None:
        def job(rows: Rows) -> None:
            rows.session.execute(DELETE_ENTRY, (key,))
            rows.session.execute(MAKE_DUE, (now_ms, key))

        await self.database.write(job)

    async def count_quarantined(self, version: str) -> int:
        (count,) = await self.database.read(lambda session: session.one(COUNT_ENTRIES, (version,)))
        return int(count)

    async def list_quarantined(self, version: str, limit: int) -> list[Stream]:
        values = (version, Word(SESSION_KIND), limit)
        return [to_stream(row) for row in await self.database.read(lambda s: s.rows(SELECT_SESSIONS, values))]
