"""Slim rows of sessions on SQLite; the methods are documented in `voicemem.store.port.Overviews`."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from voicemem.store.records import SessionFilter, SessionOverview
from voicemem.store.sqlite.database import Database
from voicemem.store.sqlite.journal.reads import conditions, is_scan
from voicemem.store.sqlite.journal.row_cache import POSITION
from voicemem.store.streams import MAX_OVERVIEW_TEXT

ACTIVE_MS = """
    ifnull((select j.received_ms from journal j where j.stream = streams.key order by j.position desc limit 1),
    ifnull(ended_ms, started_ms))
"""
"""When the last entry was journaled; the journal of a session that ended long ago is in the archive."""
WORST_STATE = """
    case when exists (select 1 from exports x where x.stream = streams.key and x.state = 'failed') then 'failed'
    when exists (select 1 from exports x where x.stream = streams.key and x.state = 'pending') then 'pending'
    when exists (select 1 from exports x where x.stream = streams.key) then 'delivered' end
"""
NEXT_ATTEMPT_MS = "(select min(x.due_ms) from exports x where x.stream = streams.key)"
LIST_OVERVIEWS = f"""
    select streams.key, id, state, substr(reason, 1, {MAX_OVERVIEW_TEXT}), started_ms, ended_ms, {ACTIVE_MS},
    {POSITION.replace("(position,", "(streams.position,")},
    overviews.name, overviews.user_id, labels, overviews.position, figures, {WORST_STATE}, {NEXT_ATTEMPT_MS}
    from streams left join overviews on stream = streams.key
    where {{conditions}} order by started_ms desc, streams.key desc limit ?
"""
SAVE_FIGURES = """
    insert into overviews (stream, position, figures) select ?1, ?2, ?3
    where exists (select 1 from streams where key = ?1 and state != 'erased')
    on conflict (stream) do update set position = excluded.position, figures = excluded.figures
"""


class SqliteOverviews:
    """Slim rows; the methods are documented in `voicemem.store.port.Overviews`."""

    database: Database

    async def list_overviews(self, wanted: SessionFilter) -> list[SessionOverview]:
        clauses, values = conditions(wanted)
        query = LIST_OVERVIEWS.format(conditions=clauses)

        def job(connection: apsw.Connection) -> list[SessionOverview]:
            return [SessionOverview(*row) for row in connection.execute(query, (*values, wanted.limit))]

        return await (self.database.scan(job) if is_scan(wanted) else self.database.read(job))

    async def save_figures(self, made: Sequence[tuple[int, int, bytes]]) -> None:
        def job(connection: apsw.Connection) -> None:
            for entry in made:
                connection.execute(SAVE_FIGURES, entry)

        await self.database.write(job)
