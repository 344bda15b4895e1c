"""The methods of `voicemem.store.port.Observations` on SQLite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import apsw
from msgspec.structs import astuple

from voicemem.store.records import Observation, ObservationState, ObservedSession
from voicemem.store.sqlite.database.connections import Database
from voicemem.store.sqlite.journal.row_cache import fetch_one

FIELDS = Observation.__struct_fields__
COLUMNS = ", ".join(("stream", *FIELDS[1:]))
SELECT = f"select {COLUMNS} from observations where stream = ?"
COUNT = "select count(*) from observations where ended_ms is null"
SAVE = f"""
    insert or replace into observations ({COLUMNS}) select {", ".join("?" * len(FIELDS))}
    where exists (select 1 from streams where key = ? and state != 'erased')
"""
LIST = f"""
    select {", ".join(f"o.{name}" for name in ("stream", *FIELDS[1:]))}, s.project, s.id, s.state
    from observations o join streams s on s.key = o.stream where o.ended_ms is null order by o.stream
"""
CLAIM = """
    update observations set node = ?1 where ended_ms is null and node is null
    and stream in (select value from json_each(?2))
"""
SELECT_CLAIMED = """
    select stream from observations where ended_ms is null and node = ?1
    and stream in (select value from json_each(?2)) order by stream
"""
CHANGE = """
    update observations set state = ?3, reason = ?4, status = ?5, changed_ms = ?6,
    connections = connections + (?3 = 'observing'),
    ended_ms = iif(?3 in ('ended', 'stopped', 'failed'), ?6, null),
    node = iif(?3 in ('ended', 'stopped', 'failed'), null, node)
    where stream = ?1 and ended_ms is null and (?2 is null or node = ?2)
"""


class SqliteObservations:
    """The methods are documented in `voicemem.store.port.Observations`."""

    database: Database

    async def begin_observation(self, observation: Observation, limit: int) -> Observation | None:
        def job(connection: apsw.Connection) -> Observation | None:
            known = load(connection, observation.key)
            if known is not None and known.ended_ms is None:
                return known
            if fetch_one(connection, COUNT)[0] >= limit:
                return None
            connection.execute(SAVE, (*astuple(observation), observation.key))
            return observation if connection.changes() else None

        return await self.database.write(job)

    async def find_observation(self, key: int) -> Observation | None:
        return await self.database.read_inline(lambda connection: load(connection, key))

    async def list_observations(self) -> list[ObservedSession]:
        return await self.database.read(
            lambda connection: [
                ObservedSession(to_observation(row[:-3]), *row[-3:]) for row in connection.execute(LIST)
            ]
        )

    async def claim_observations(self, keys: Sequence[int], node: str) -> list[int]:
        values = node, json.dumps(list(keys))

        def job(connection: apsw.Connection) -> list[int]:
            connection.execute(CLAIM, values)
            return [key for (key,) in connection.execute(SELECT_CLAIMED, values)]

        return await self.database.write(job)

    async def change_observation(
        self, key: int, node: str | None, state: ObservationState, reason: str | None, status: int | None, now_ms: int
    ) -> bool:
        def job(connection: apsw.Connection) -> bool:
            connection.execute(CHANGE, (key, node, state, reason, status, now_ms))
            return bool(connection.changes())

        return await self.database.write(job)


def load(connection: apsw.Connection, key: int) -> Observation | None:
    row = connection.execute(SELECT, (key,)).fetchone()
    return None if row is None else to_observation(row)


def to_observation(row: tuple[Any, ...]) -> Observation:
    return Observation(**dict(zip(FIELDS, row, strict=True)))
