"""The methods of `voicemem.store.port.Observations` on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from voicemem.store.postgresql.database.connection import Row, Session, Word
from voicemem.store.postgresql.database.pool import Database
from voicemem.store.postgresql.journal.rows import Rows
from voicemem.store.postgresql.journal.runs import IS_READABLE
from voicemem.store.records import Observation, ObservationState, ObservedSession

FIELDS = Observation.__struct_fields__
NAMES = ("stream", *FIELDS[1:])
COLUMNS = ", ".join(NAMES)
LOCK = "select pg_advisory_xact_lock(hashtext('voicemem observations'))"
"""So that two nodes that begin one at once do not both see room for it."""
SELECT = f"select {COLUMNS} from observations where bucket = $1 % 64 and stream = $1"
COUNT = "select count(*) from observations where ended_ms is null"
SAVE = f"""
    insert into observations (bucket, {COLUMNS})
    select $1 % 64, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11 where {IS_READABLE}
    on conflict (bucket, stream) do update set {", ".join(f"{name} = excluded.{name}" for name in NAMES[1:])}
"""
LIST = f"""
    select {", ".join(f"o.{name}" for name in NAMES)}, s.project, s.id, s.state
    from observations o join streams s on s.bucket = o.bucket and s.key = o.stream
    where o.ended_ms is null order by o.stream
"""
CLAIM = """
    update observations set node = $1 where ended_ms is null and (node is null or node = $1)
    and stream = any($2::bigint[]) returning stream
"""
CHANGE = """
    update observations set state = $3, reason = $4, status = $5, changed_ms = $6,
    connections = connections + case when $3 = 'observing' then 1 else 0 end,
    ended_ms = case when $7 then $6 end, node = case when $7 then null else node end
    where bucket = $1 % 64 and stream = $1 and ended_ms is null and ($2::text is null or node = $2)
"""
OVER = ("ended", "stopped", "failed")


class PostgresqlObservations:
    """The methods are documented in `voicemem.store.port.Observations`."""

    database: Database

    async def begin_observation(self, observation: Observation, limit: int) -> Observation | None:
        def job(rows: Rows) -> Observation | None:
            session = rows.session
            session.execute(LOCK)
            known = load(session, observation.key)
            if known is not None and known.ended_ms is None:
                return known
            if session.one(COUNT)[0] >= limit:
                return None
            return observation if session.change(SAVE, values_of(observation)) else None

        return await self.database.write(job)

    async def find_observation(self, key: int) -> Observation | None:
        return await self.database.read(lambda session: load(session, key))

    async def list_observations(self) -> list[ObservedSession]:
        return [to_observed(row) for row in await self.database.read(lambda session: session.rows(LIST))]

    async def claim_observations(self, keys: Sequence[int], node: str) -> list[int]:
        def job(rows: Rows) -> list[int]:
            rows.hold_node(node)
            return sorted(key for (key,) in rows.session.rows(CLAIM, (Word(node), list(keys))))

        return await self.database.write(job)

    async def change_observation(
        self, key: int, node: str | None, state: ObservationState, reason: str | None, status: int | None, now_ms: int
    ) -> bool:
        words = None if node is None else Word(node), Word(state), None if reason is None else Word(reason)
        values = (key, *words, status, now_ms, state in OVER)
        return bool(await self.database.write(lambda rows: rows.session.change(CHANGE, values)))


def values_of(observation: Observation) -> tuple[object, ...]:
    reason, node = observation.reason, observation.node
    return (
        *(observation.key, Word(observation.dialect), observation.call, Word(observation.state)),
        *(None if reason is None else Word(reason), observation.status, observation.connections),
        *(observation.started_ms, observation.changed_ms, observation.ended_ms),
        None if node is None else Word(node),
    )


def load(session: Session, key: int) -> Observation | None:
    row = session.row(SELECT, (key,))
    return None if row is None else to_observation(row)


def to_observation(row: Row) -> Observation:
    values = dict(zip(FIELDS, row, strict=True))
    return Observation(**{**values, "call": values["call"].decode()})


def to_observed(row: Row) -> ObservedSession:
    *of_observation, project, session_id, state = row
    return ObservedSession(to_observation(tuple(of_observation)), project.decode(), session_id.decode(), state)
