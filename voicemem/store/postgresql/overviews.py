"""Slim rows of sessions; the methods are documented in `voicemem.store.port.Overviews`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from voicemem.store import looks
from voicemem.store.database import Row
from voicemem.store.looks import OverviewPage, Place, among, find_keys, plan_of
from voicemem.store.postgresql.connection import Session
from voicemem.store.postgresql.driver import Database
from voicemem.store.postgresql.rows import Rows
from voicemem.store.postgresql.session_queries import FILTERS, IS_LISTED, clauses_of
from voicemem.store.records import SLOW_MS, SavedFigures, SessionFilter, SessionOverview
from voicemem.store.stream_rows import POSITION
from voicemem.store.streams import MAX_OVERVIEW_TEXT, SESSION_KIND

ACTIVE_MS = """coalesce((
    select j.received_ms from journal j where j.stream = s.key order by j.position desc limit 1
), s.ended_ms, s.started_ms)"""
"""When the last entry was journaled; the journal of a session that ended long ago is in the archive."""
WORST_STATE = """(
    select case when bool_or(x.state = 'failed') then 'failed' when bool_or(x.state = 'pending') then 'pending'
    when count(*) > 0 then 'delivered' end from deliveries x where x.stream = s.key
)"""
NEXT_ATTEMPT_MS = "(select min(x.due_ms) from deliveries x where x.stream = s.key)"
INDEXED = ("keys", "user_id", "interrupted", "slow_ms", "state")
"""The fields by which an index finds sessions, in the order of a list."""
LITERALS = {"interrupted": " and s.interruptions > 0", "slow_ms": f" and s.slowest_ms >= {SLOW_MS}"}
"""The conditions of partial indexes."""
ALL, AMONG = "streams s", "(select * from streams s where {found} offset 0) s"
"""Where sessions come from; those of given keys are found first, since there are few."""
LOOK = """
    select s.key, s.started_ms, {checked} from {source} where {found}
    order by s.started_ms desc, s.key desc limit ${limit}
"""
COUNT_LOOKS = """
    select count(*), count(*) filter (where matches)
    from (select {checked} as matches from {source} where {found} limit ${limit}) looked
"""
LAST_CHARACTER = "\U0010ffff"
FIND_NAMED = (
    "select key from streams where project = $1 and kind = $2 and id >= $3 and id < $4 limit $5",
    "select key from streams where project = $1 and kind = $2 and user_id >= $3 and user_id < $4 limit $5",
)
SELECT_CANDIDATES = "select distinct stream from deliveries where state = '{state}' limit $1"
LIST_OVERVIEWS = f"""
    select s.key, s.id, s.state, s.reason, s.started_ms, s.ended_ms, {ACTIVE_MS}, {POSITION},
    o.name, o.user_id, o.labels, o.position, o.figures, s.interruptions, s.slowest_ms, {WORST_STATE}, {NEXT_ATTEMPT_MS}
    from unnest($1::bigint[]) as wanted (key) join streams s on s.key = wanted.key
    left join overviews o on o.stream = s.key
    where s.state <> 'erased' order by s.started_ms desc, s.key desc
"""
SAVE_FIGURES = """
    insert into overviews (stream, position, figures) select $1, $2, $3
    where exists (select 1 from streams where key = $1 and state != 'erased')
    on conflict (stream) do update set position = excluded.position, figures = excluded.figures
"""
SAVE_FILTERED = """
    update streams set interruptions = $2, slowest_ms = $3 where key = $1 and state != 'erased'
    and (interruptions, slowest_ms) is distinct from ($2, $3)
"""


class PostgresqlOverviews:
    """Slim rows; the methods are documented in `voicemem.store.port.Overviews`."""

    database: Database

    async def list_overviews(self, wanted: SessionFilter, most_looks: int | None = None) -> OverviewPage:
        def job(session: Session) -> OverviewPage:
            found = with_candidates(session, wanted)

            def look(place: Place | None, size: int) -> list[Any]:
                query, values = look_query(LOOK, msgspec.structs.replace(found, after=place))
                return session.rows(query, (*values, size))

            keys, after = find_keys(found, most_looks or looks.MAX_LOOKS, look)
            return OverviewPage([to_overview(row) for row in session.rows(LIST_OVERVIEWS, (keys,))], after)

        return await self.database.read(job)

    async def count_overviews(self, wanted: SessionFilter, most: int) -> int | None:
        def job(session: Session) -> int | None:
            found = msgspec.structs.replace(with_candidates(session, wanted), after=None)
            bound = looks.MAX_COUNT_LOOKS if plan(found, INDEXED).checked else most
            query, values = look_query(COUNT_LOOKS, found)
            looked, count = session.one(query, (*values, bound))
            return None if looked == bound and count < most else min(count, most)

        return await self.database.read(job)

    async def find_named(self, project: str, beginning: str, limit: int) -> list[int]:
        values = (project, SESSION_KIND, beginning, beginning + LAST_CHARACTER, limit)

        def job(session: Session) -> list[int]:
            return [key for query in FIND_NAMED for (key,) in session.rows(query, values)]

        return await self.database.read(job) if beginning else []

    async def save_figures(self, made: Sequence[SavedFigures]) -> None:
        def job(rows: Rows) -> None:
            for one in sorted(made):
                rows.session.execute(SAVE_FIGURES, one[:3])
                rows.session.execute(SAVE_FILTERED, (one.key, one.interruptions, one.slowest_ms))

        await self.database.write(job)


plan = partial(plan_of, conditions=FILTERS)


def look_query(query: str, wanted: SessionFilter) -> tuple[str, list[Any]]:
    """A query over the sessions that an index finds, with its values; one more is the number of sessions."""
    by, found, checked = plan(wanted, INDEXED)
    values: list[Any] = [wanted.project, SESSION_KIND]
    where = " and ".join([IS_LISTED, *clauses_of(wanted, found, values)]) + LITERALS.get(by or "", "")
    checks = " and ".join(f"({check})" for check in clauses_of(wanted, checked, values)) or "true"
    source = AMONG.format(found=where) if by == "keys" else ALL
    return query.format(checked=checks, source=source, found=where, limit=len(values) + 1), values


def with_candidates(session: Session, wanted: SessionFilter) -> SessionFilter:
    """The filter by the sessions that have deliveries in its state, where these are not too many."""
    if wanted.webhook is None or wanted.keys is not None:
        return wanted
    rows = session.rows(SELECT_CANDIDATES.format(state=wanted.webhook), (looks.MAX_CANDIDATES + 1,))
    return among(wanted, [key for (key,) in rows])


def to_overview(row: Row) -> SessionOverview:
    key, session_id, state, reason, *times, position, name, user_id, labels = row[:11]
    started_ms, ended_ms, active_ms = times
    return SessionOverview(
        key,
        session_id,
        state,
        None if reason is None else reason[:MAX_OVERVIEW_TEXT],
        started_ms,
        ended_ms,
        active_ms,
        position,
        name,
        user_id,
        labels,
        *row[11:],
    )
