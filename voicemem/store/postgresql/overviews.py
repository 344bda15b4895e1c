"""Slim rows of sessions; the methods are documented in `voicemem.store.port.Overviews`."""

from __future__ import annotations

from collections.abc import Sequence

from voicemem.store.postgresql.connection import Row
from voicemem.store.postgresql.database import Database
from voicemem.store.postgresql.journal.reads import conditions
from voicemem.store.postgresql.journal.rows import POSITION, Rows, to_text
from voicemem.store.records import SessionFilter, SessionOverview
from voicemem.store.streams import MAX_OVERVIEW_TEXT

ACTIVE_MS = """coalesce((
    select j.received_ms from journal j where j.bucket = s.bucket and j.stream = s.key order by j.position desc limit 1
), s.ended_ms, s.started_ms)"""
"""When the last entry was journaled; the journal of a session that ended long ago is in the archive."""
WORST_STATE = """(
    select case when bool_or(x.state = 'failed') then 'failed' when bool_or(x.state = 'pending') then 'pending'
    when count(*) > 0 then 'delivered' end from exports x where x.stream = s.key
)"""
NEXT_ATTEMPT_MS = "(select min(x.due_ms) from exports x where x.stream = s.key)"
LIST_OVERVIEWS = f"""
    select s.key, s.id, s.state, s.reason, s.started_ms, s.ended_ms, {ACTIVE_MS}, {POSITION},
    o.name, o.user_id, o.labels, o.position, o.figures, {WORST_STATE}, {NEXT_ATTEMPT_MS}
    from streams s left join overviews o on o.bucket = s.bucket and o.stream = s.key
    where {{conditions}} order by s.started_ms desc, s.key desc limit ${{limit}}
"""
SAVE_FIGURES = """
    insert into overviews (bucket, stream, position, figures) select $1 % 64, $1, $2, $3
    where exists (select 1 from streams where bucket = $1 % 64 and key = $1 and state != 'erased')
    on conflict (bucket, stream) do update set position = excluded.position, figures = excluded.figures
"""


class PostgresqlOverviews:
    """Slim rows; the methods are documented in `voicemem.store.port.Overviews`."""

    database: Database

    async def list_overviews(self, wanted: SessionFilter) -> list[SessionOverview]:
        clauses, values = conditions(wanted)
        query = LIST_OVERVIEWS.format(conditions=clauses, limit=len(values) + 1)
        rows = await self.database.read(lambda session: session.rows(query, (*values, wanted.limit)))
        return [to_overview(row) for row in rows]

    async def save_figures(self, made: Sequence[tuple[int, int, bytes]]) -> None:
        def job(rows: Rows) -> None:
            for entry in sorted(made):
                rows.session.execute(SAVE_FIGURES, entry)

        await self.database.write(job)


def to_overview(row: Row) -> SessionOverview:
    key, session_id, state, reason, *times, position, name, user_id, labels = row[:11]
    figures_position, figures, webhooks, due_ms = row[11:]
    started_ms, ended_ms, active_ms = times
    return SessionOverview(
        key=key,
        session_id=session_id.decode(),
        state=state,
        reason=None if reason is None else reason.decode()[:MAX_OVERVIEW_TEXT],
        started_ms=started_ms,
        ended_ms=ended_ms,
        active_ms=active_ms,
        position=position,
        name=to_text(name),
        user_id=to_text(user_id),
        labels=to_text(labels),
        figures_position=figures_position,
        figures=figures,
        webhooks=webhooks,
        next_attempt_ms=due_ms,
    )
