"""Slim rows of sessions: a list of a thousand must not read a configuration, nor fold a memory.

A page is found by one condition that has an index, in the order of the list. The other conditions are checked for each
session that it finds. The search stops after a number of sessions, full page or not, so that no page costs more in a
larger store.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from voicemem.store.database import Connection, Port, reads, scans, writes
from voicemem.store.records import CLIENT_ID_LABEL, SLOW_MS, SavedFigures, SessionOverview
from voicemem.store.session_filters import CONDITIONS, IS_LISTED, SessionFilter, clauses_of, in_order, with_linked
from voicemem.store.stream_changes import POSITION
from voicemem.store.streams import MAX_OVERVIEW_TEXT, SESSION_KIND

MAX_LOOKS = 5_000
"""Sessions that are checked for a page."""
MAX_COUNT_LOOKS = 20_000
MAX_CANDIDATES = 10_000
"""If more sessions than this have deliveries in a state, the filter is checked session by session instead."""
FIRST_LOOKS = 4
"""Sessions that are checked first, for each one that the page may still hold."""
LOOKS_GROW = 4
PLACE_FIELDS = ("started_after", "started_before", "after")
"""The conditions that only say where in the order the page is."""
INDEXED = ("keys", "user_id", "outcome", "interrupted", "slow_ms", "state")
"""The fields by which an index finds sessions, in the order of a list, the one that finds the fewest first."""
INDEX_CONDITIONS = {"interrupted": " and s.interruptions > 0", "slow_ms": f" and s.slowest_ms >= {SLOW_MS}"}
SOURCES = {
    "sqlite": {
        "keys": "streams s not indexed",
        "outcome": "streams s indexed by streams_by_outcome",
        "interrupted": "streams s indexed by streams_interrupted",
        "state": "streams s indexed by streams_by_state",
        "slow_ms": "streams s indexed by streams_slow",
    },
    "postgresql": {"keys": "(select * from streams s where {conditions} offset 0) s"},
}
"""Tables in place of `streams s`, by engine and field, where it might not use the index; few keys come first."""
LOOK = """
    select s.key, s.started_ms, {checked} from {source} where {conditions}
    order by s.started_ms desc, s.key desc limit :size
"""
COUNT_LOOKS = """
    select count(*), count(*) filter (where matches)
    from (select {checked} as matches from {source} where {conditions} limit :size) looked
"""
LAST_CHARACTER = chr(0x10FFFF)
FIND_NAMED = tuple(
    f"select key from streams where project = :project and kind = '{SESSION_KIND}'"
    f" and {name} >= :beginning and {name} < :end limit :limit"
    for name in ("id", "user_id")
)
SELECT_CANDIDATES = "select distinct stream from deliveries where state = '{state}' limit :most"
LIST_OVERVIEWS = f"""
    select s.key, s.id, s.state, substr(s.reason, 1, {MAX_OVERVIEW_TEXT}), s.started_ms, s.ended_ms, coalesce(
        (select j.received_ms from journal j where j.stream = s.key order by j.position desc limit 1),
        s.ended_ms, s.started_ms
    ), {POSITION}, o.name, o.user_id, o.labels, o.position, o.figures, s.interruptions, s.slowest_ms, s.outcome,
    (select x.state from deliveries x where x.stream = s.key
        order by case x.state when 'failed' then 1 when 'pending' then 2 else 3 end limit 1),
    (select min(x.due_ms) from deliveries x where x.stream = s.key)
    from streams s left join overviews o on o.stream = s.key
    where s.key in :keys and s.state <> 'erased' order by s.started_ms desc, s.key desc
"""
"""The journal of a session that ended long ago is in the archive: then its end is when it was last active."""
SAVE_FIGURES = """
    insert into overviews (stream, position, figures)
    select key, cast(:position as bigint), :figures from streams where key = :key and state <> 'erased'
    on conflict (stream) do update set position = excluded.position, figures = excluded.figures
"""
SAVE_FILTERED = """
    update streams set interruptions = :interruptions, slowest_ms = :slowest_ms, outcome = :outcome
    where key = :key and state <> 'erased' and (interruptions is distinct from :interruptions
    or slowest_ms is distinct from :slowest_ms or outcome is distinct from :outcome)
"""
Place = tuple[int, int]


class OverviewPage(NamedTuple):
    """Slim rows in the order of the list, and the place after which there may be more; None at the end."""

    rows: list[SessionOverview]
    after: Place | None


class QueryPlan(NamedTuple):
    """How to query the sessions of a filter: parts of the SQL, and its values except `size`."""

    by: str
    """The field by which an index finds them."""

    source: str
    conditions: str
    """The conditions by which an index finds them."""
    checked: str
    """The conditions that are checked for each of these sessions; empty if there are none."""
    values: dict[str, Any]

    def text(self, query: str) -> str:
        source = self.source.format(conditions=self.conditions)
        return query.format(checked=self.checked or "true", source=source, conditions=self.conditions)


class Overviews(Port):
    async def list_overviews(self, query: SessionFilter, most_looks: int | None = None) -> OverviewPage:
        """List the same sessions as `Journal.list_sessions`, in the same order, with their saved figures.

        A page ends early, with a place to continue from, after `most_looks` sessions (by default `MAX_LOOKS`).
        """

        def job(connection: Connection) -> OverviewPage:
            chosen = with_candidates(connection, with_linked(connection, query))
            keys, after = self.find_keys(connection, chosen, most_looks or MAX_LOOKS)
            return OverviewPage([SessionOverview(*row) for row in connection.rows(LIST_OVERVIEWS, keys=keys)], after)

        is_checked = bool(plan_of(query, self.database.engine).checked)
        return await (self.database.scan(job) if is_checked else self.database.read(job))

    @scans
    def count_overviews(self, connection: Connection, query: SessionFilter, most: int) -> int | None:
        """Return the number of sessions that match over all pages, up to `most`; None if that takes too many checks."""
        chosen = with_candidates(connection, with_linked(connection, query))
        look = plan_of(replace(chosen, after=None), self.database.engine)
        bound = MAX_COUNT_LOOKS if look.checked else most
        looked, count = connection.one(look.text(COUNT_LOOKS), size=bound, **look.values)
        return None if looked == bound and count < most else min(count, most)

    @reads
    def find_named(self, connection: Connection, project: str, beginning: str, limit: int) -> list[int]:
        """Return the keys of sessions whose id or user id has this prefix: at most `limit` of each kind."""
        values = {"project": project, "beginning": beginning, "end": beginning + LAST_CHARACTER, "limit": limit}
        return [key for query in FIND_NAMED for (key,) in connection.rows(query, **values)] if beginning else []

    @writes
    def save_figures(self, connection: Connection, figures: Sequence[SavedFigures]) -> None:
        """Save the figures of memories for slim rows, in place of the previous ones; nothing of erased sessions."""
        for values in (one._asdict() for one in sorted(figures)):
            connection.execute(SAVE_FIGURES, **values)
            connection.execute(SAVE_FILTERED, **values)

    def find_keys(self, connection: Connection, query: SessionFilter, most: int) -> tuple[list[int], Place | None]:
        """Return the keys of a page, and the place of the next page, None at the end; check up to `most` sessions.

        The first query reads a few sessions for each one that the page may hold, each further one reads more: all rows
        of a query are in memory, and a client may set no bound.
        """
        keys: list[int] = []
        place, looked, size = query.after, 0, min(most, FIRST_LOOKS * (query.limit + 1))
        while size > 0:
            look = plan_of(replace(query, after=place), self.database.engine)
            text = look.text(LOOK)
            text = in_order(text, query, "size") if look.by == "user_id" else text
            rows = connection.rows(text, size=size, **look.values)
            for key, started_ms, matches in rows:
                if matches and len(keys) == query.limit:
                    return keys, place
                place = (started_ms, key)
                if matches:
                    keys.append(key)
            if len(rows) < size:
                return keys, None
            looked += len(rows)
            size = min(most - looked, LOOKS_GROW * size)
        return keys, place


def plan_of(query: SessionFilter, engine: str) -> QueryPlan:
    """Find an index for a filter: one condition leads to sessions, the others are checked."""
    fields = [field for field in ("label", *CONDITIONS) if getattr(query, field) is not None]
    by_client_id = engine == "sqlite" and query.label is not None and query.label[0] == CLIENT_ID_LABEL
    indexed = ("keys", "label", *INDEXED[1:]) if by_client_id else INDEXED
    by = next((field for field in indexed if field in fields and has_index(query, field)), "")
    finding = [field for field in fields if field == by or field in PLACE_FIELDS]
    conditions, values = clauses_of(query, engine, finding)
    checked, more_values = clauses_of(query, engine, [field for field in fields if field not in finding])
    return QueryPlan(
        by,
        SOURCES[engine].get(by, "streams s"),
        " and ".join([IS_LISTED, *conditions]) + INDEX_CONDITIONS.get(by, ""),
        " and ".join(f"({check})" for check in checked),
        {"project": query.project, "kind": SESSION_KIND, **values, **more_values},
    )


def has_index(query: SessionFilter, field: str) -> bool:
    if field == "interrupted":
        return bool(query.interrupted)
    return field != "slow_ms" or (query.slow_ms or 0) >= SLOW_MS


def with_candidates(connection: Connection, query: SessionFilter) -> SessionFilter:
    """Return the filter with the keys of the sessions that have deliveries in its state, unless these are too many."""
    if query.webhook is None or query.keys is not None:
        return query
    rows = connection.rows(SELECT_CANDIDATES.format(state=query.webhook), most=MAX_CANDIDATES + 1)
    if len(rows) > MAX_CANDIDATES:
        return query
    return replace(query, keys=tuple(key for (key,) in rows), webhook=None)
