"""Slim rows of sessions on SQLite; the methods are documented in `voicemem.store.port.Overviews`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import apsw
import msgspec

from voicemem.store import looks
from voicemem.store.looks import OverviewPage, Place, among, find_keys, plan_of
from voicemem.store.records import CLIENT_ID_LABEL, SLOW_MS, SavedFigures, SessionFilter, SessionOverview
from voicemem.store.sqlite.driver import Database
from voicemem.store.sqlite.rows import fetch_one
from voicemem.store.sqlite.session_queries import IN_PROJECT, IS_LISTED, POSITION, SESSION_FILTERS, clauses_of
from voicemem.store.streams import MAX_OVERVIEW_TEXT, SESSION_KIND

ACTIVE_MS = """
    ifnull((select j.received_ms from journal j where j.stream = streams.key order by j.position desc limit 1),
    ifnull(ended_ms, started_ms))
"""
"""When the last entry was journaled; the journal of a session that ended long ago is in the archive."""
WORST_STATE = """
    case when exists (select 1 from deliveries x where x.stream = streams.key and x.state = 'failed') then 'failed'
    when exists (select 1 from deliveries x where x.stream = streams.key and x.state = 'pending') then 'pending'
    when exists (select 1 from deliveries x where x.stream = streams.key) then 'delivered' end
"""
NEXT_ATTEMPT_MS = "(select min(x.due_ms) from deliveries x where x.stream = streams.key)"
INDEXED = ("keys", "user_id", "interrupted", "slow_ms", "state")
"""The fields by which an index finds sessions, in the order of a list."""
INDEX_OF = {
    "keys": ("not indexed", ""),
    "interrupted": ("indexed by streams_interrupted", " and interruptions > 0"),
    "state": ("indexed by streams_by_state", " and state != 'erased'"),
    "slow_ms": ("indexed by streams_slow", f" and slowest_ms >= {SLOW_MS}"),
}
"""How an index is named that SQLite might not choose, and the condition that it has; keys are found without one."""
LOOK = """
    select streams.key, started_ms, {checked} from streams {indexed} where {found}
    order by started_ms desc, streams.key desc limit ?
"""
COUNT_LOOKS = """
    select count(*), ifnull(sum(matches), 0)
    from (select {checked} as matches from streams {indexed} where {found} limit ?)
"""
LAST_CHARACTER = chr(0x10FFFF)
FIND_NAMED = tuple(
    f"select key from streams where project = ? and kind = ? and {name} >= ? and {name} < ? limit ?"
    for name in ("id", "user_id")
)
SELECT_CANDIDATES = "select distinct stream from deliveries where state = '{state}' limit ?"
LIST_OVERVIEWS = f"""
    select streams.key, id, state, substr(reason, 1, {MAX_OVERVIEW_TEXT}), started_ms, ended_ms, {ACTIVE_MS},
    {POSITION.replace("(position,", "(streams.position,")},
    overviews.name, overviews.user_id, labels, overviews.position, figures, interruptions, slowest_ms,
    {WORST_STATE}, {NEXT_ATTEMPT_MS}
    from streams not indexed left join overviews on stream = streams.key
    where streams.key in (select value from json_each(?)) and state != 'erased'
    order by started_ms desc, streams.key desc
"""
SAVE_FIGURES = """
    insert into overviews (stream, position, figures) select ?1, ?2, ?3
    where exists (select 1 from streams where key = ?1 and state != 'erased')
    on conflict (stream) do update set position = excluded.position, figures = excluded.figures
"""
SAVE_FILTERED = "update streams set interruptions = ?, slowest_ms = ? where key = ? and state != 'erased'"


class SqliteOverviews:
    """Slim rows; the methods are documented in `voicemem.store.port.Overviews`."""

    database: Database

    async def list_overviews(self, wanted: SessionFilter, most_looks: int | None = None) -> OverviewPage:
        def job(connection: apsw.Connection) -> OverviewPage:
            found = with_candidates(connection, wanted)
            query, values = look_query(LOOK, found)

            def look(place: Place | None, size: int) -> apsw.Cursor:
                if place == found.after:
                    return connection.execute(query, (*values, size))
                again, more = look_query(LOOK, msgspec.structs.replace(found, after=place))
                return connection.execute(again, (*more, size))

            keys, after = find_keys(found, most_looks or looks.MAX_LOOKS, look)
            return OverviewPage(load_rows(connection, keys), after)

        return await (self.database.scan(job) if is_checked(wanted) else self.database.read(job))

    async def count_overviews(self, wanted: SessionFilter, most: int) -> int | None:
        def job(connection: apsw.Connection) -> int | None:
            found = msgspec.structs.replace(with_candidates(connection, wanted), after=None)
            bound = looks.MAX_COUNT_LOOKS if is_checked(found) else most
            query, values = look_query(COUNT_LOOKS, found)
            looked, count = fetch_one(connection, query, (*values, bound))
            return None if looked == bound and count < most else min(count, most)

        return await self.database.scan(job)

    async def find_named(self, project: str, beginning: str, limit: int) -> list[int]:
        values = (project, SESSION_KIND, beginning, beginning + LAST_CHARACTER, limit)

        def job(connection: apsw.Connection) -> list[int]:
            return [key for query in FIND_NAMED for (key,) in connection.execute(query, values)]

        return await self.database.read(job) if beginning else []

    async def save_figures(self, made: Sequence[SavedFigures]) -> None:
        def job(connection: apsw.Connection) -> None:
            for one in made:
                connection.execute(SAVE_FIGURES, one[:3])
                connection.execute(SAVE_FILTERED, (one.interruptions, one.slowest_ms, one.key))

        await self.database.write(job)


def indexed_fields(wanted: SessionFilter) -> tuple[str, ...]:
    if wanted.label is not None and wanted.label[0] == CLIENT_ID_LABEL:
        return ("keys", "label", *INDEXED[1:])
    return INDEXED


plan = partial(plan_of, conditions=SESSION_FILTERS)


def is_checked(wanted: SessionFilter) -> bool:
    """Whether sessions are looked at that do not match."""
    return bool(plan(wanted, indexed_fields(wanted)).checked)


def look_query(query: str, wanted: SessionFilter) -> tuple[str, list[Any]]:
    """A query over the sessions that an index finds, with its values."""
    by, found, checked = plan(wanted, indexed_fields(wanted))
    indexed, literal = INDEX_OF.get(by or "", ("", ""))
    clauses, values = clauses_of(wanted, found)
    checks, checked_values = clauses_of(wanted, checked)
    where = " and ".join([IN_PROJECT if by == "state" else IS_LISTED, *clauses]) + literal
    text = query.format(checked=" and ".join(f"({check})" for check in checks) or "1", indexed=indexed, found=where)
    return text, [*checked_values, wanted.project, SESSION_KIND, *values]


def with_candidates(connection: apsw.Connection, wanted: SessionFilter) -> SessionFilter:
    """The filter by the sessions that have deliveries in its state, where these are not too many."""
    if wanted.webhook is None or wanted.keys is not None:
        return wanted
    rows = connection.execute(SELECT_CANDIDATES.format(state=wanted.webhook), (looks.MAX_CANDIDATES + 1,))
    return among(wanted, [key for (key,) in rows])


def load_rows(connection: apsw.Connection, keys: list[int]) -> list[SessionOverview]:
    rows = connection.execute(LIST_OVERVIEWS, (msgspec.json.encode(keys).decode(),))
    return [SessionOverview(*row) for row in rows]
