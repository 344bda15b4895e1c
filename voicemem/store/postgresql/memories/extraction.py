"""The methods of `voicemem.store.port.Extractions` on PostgreSQL."""

from __future__ import annotations

from voicemem.store.ports.extraction import EXTRACT, ExtractionCheck
from voicemem.store.postgresql.database.connection import Session
from voicemem.store.postgresql.database.pool import Database
from voicemem.store.postgresql.heard_index.index import SELECT_STATE, SELECT_STREAMS
from voicemem.store.postgresql.journal.rows import Rows
from voicemem.store.stream_rows import POSITION, to_stream
from voicemem.store.streams import SESSION_KIND

LOOK_AT_SESSIONS = f"""
    select s.key, ($1 or position($2 in s.config) > 0)
    and case when s.state = 'ended' then s.position else {POSITION} end > coalesce(e.position, 0)
    from streams s left join extracted e on e.stream = s.key
    where s.key > $3 and s.kind = '{SESSION_KIND}' and s.state <> 'erased' order by s.key limit $4
"""
NOTE = """
    insert into extracted values ($1, $2)
    on conflict (stream) do update set position = greatest(extracted.position, excluded.position)
"""
SPEND = """
    insert into spent_tokens select $1, $2, greatest(0, $3) where $4 = 0 or $3 <= $4
    on conflict (project, day) do update set tokens = greatest(0, spent_tokens.tokens + $3)
    where $4 = 0 or $3 < 0 or spent_tokens.tokens + $3 <= $4
"""
FORGET_OLD_DAYS = "delete from spent_tokens where project = $1 and day < $2"
KEPT_DAYS = 2


class PostgresqlExtractions:
    """The methods are documented in `voicemem.store.port.Extractions`."""

    database: Database

    async def check_extractions(self, everywhere: bool, after_key: int, limit: int) -> ExtractionCheck:
        def job(session: Session) -> ExtractionCheck:
            found = session.rows(LOOK_AT_SESSIONS, (everywhere, EXTRACT, after_key, limit))
            keys = [key for key, is_behind in found if is_behind]
            streams = [to_stream(row) for row in session.rows(SELECT_STREAMS, (keys,))] if keys else []
            return ExtractionCheck(streams, found[-1][0] if len(found) == limit else None)

        return await self.database.read(job)

    async def note_extracted(self, key: int, position: int) -> None:
        def job(rows: Rows) -> None:
            state = rows.session.row(SELECT_STATE, (key,))
            if state is not None and state[0] != "erased":
                rows.session.execute(NOTE, (key, position))

        await self.database.write(job)

    async def spend_tokens(self, project: str, day: int, tokens: int, limit: int) -> bool:
        def job(rows: Rows) -> bool:
            rows.session.execute(FORGET_OLD_DAYS, (project, day - KEPT_DAYS))
            return bool(rows.session.change(SPEND, (project, day, tokens, limit)))

        return await self.database.write(job)
