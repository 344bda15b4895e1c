"""The methods of `voicemem.store.port.Extractions` on SQLite."""

from __future__ import annotations

import json

import apsw

from voicemem.store.ports.extraction import EXTRACT, ExtractionCheck
from voicemem.store.sqlite.database.connections import Database
from voicemem.store.sqlite.journal.reads import POSITION, STREAM_COLUMNS
from voicemem.store.stream_rows import to_stream
from voicemem.store.streams import SESSION_KIND

LOOK_AT_SESSIONS = f"""
    select key, (?1 or instr(config, ?2)) and {POSITION} > ifnull(
        (select e.position from extracted e where e.stream = streams.key), 0
    )
    from streams where kind = '{SESSION_KIND}' and state != 'erased' and key > ?3 order by key limit ?4
"""
SELECT_STREAMS = (
    f"select {STREAM_COLUMNS} from streams where key in (select value from json_each(?)) and state != 'erased'"
)
NOTE = """
    insert into extracted select ?1, ?2 where exists (select 1 from streams where key = ?1 and state != 'erased')
    on conflict (stream) do update set position = max(position, ?2)
"""
SPEND = """
    insert into spent_tokens select ?1, ?2, max(0, ?3) where ?4 = 0 or ?3 <= ?4
    on conflict (project, day) do update set tokens = max(0, tokens + ?3) where ?4 = 0 or ?3 < 0 or tokens + ?3 <= ?4
"""
FORGET_OLD_DAYS = "delete from spent_tokens where day < ?"
KEPT_DAYS = 2


class SqliteExtractions:
    """The methods are documented in `voicemem.store.port.Extractions`."""

    database: Database

    async def check_extractions(self, everywhere: bool, after_key: int, limit: int) -> ExtractionCheck:
        values = (everywhere, EXTRACT, after_key, limit)

        def job(connection: apsw.Connection) -> ExtractionCheck:
            found = list(connection.execute(LOOK_AT_SESSIONS, values))
            behind = json.dumps([key for key, is_behind in found if is_behind])
            streams = [to_stream(row) for row in connection.execute(SELECT_STREAMS, (behind,))]
            return ExtractionCheck(streams, found[-1][0] if len(found) == limit else None)

        return await self.database.scan(job)

    async def note_extracted(self, key: int, position: int) -> None:
        await self.database.write(lambda connection: connection.execute(NOTE, (key, position)).fetchall())

    async def spend_tokens(self, project: str, day: int, tokens: int, limit: int) -> bool:
        def job(connection: apsw.Connection) -> bool:
            connection.execute(FORGET_OLD_DAYS, (day - KEPT_DAYS,))
            connection.execute(SPEND, (project, day, tokens, limit))
            return bool(connection.changes())

        return await self.database.write(job)
