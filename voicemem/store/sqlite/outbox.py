"""The outbox's port on SQLite: leases, frozen bodies, the attempt log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import apsw
import msgspec

from voicemem.store.records import Attempt, Closing, Delivery, Endpoint, Export
from voicemem.store.sqlite.database import Database
from voicemem.store.sqlite.rows import one

EXPORT = ", ".join(f"x.{name}" for name in Export.__struct_fields__ if name != "endpoint")
ENDPOINT = ", ".join(f"e.{name}" for name in Endpoint.__struct_fields__)
NOT_ERASED = "(select s.state from streams s where s.key = x.stream) != 'erased'"
"""What was erased is not sent any more, though its exports (x) may still be there for a little while."""
CLOSING = msgspec.json.Decoder(Closing)
EVENT_TYPES = msgspec.json.Decoder(tuple[int, ...])
FRONT = 200
"""Of what is due longest, so much is looked at first. Only when receivers that are busy (or were taken away) have left
too little of it, each endpoint with something due is asked for its own."""
WAITING = """
    with recursive waiting(key) as (
        select min(endpoint) from exports where due_ms is not null
        union all
        select (select min(endpoint) from exports where due_ms is not null and endpoint > waiting.key)
        from waiting where waiting.key is not null
    )
"""
"""The endpoints for which something waits, found by steps through an index."""


class SqliteOutbox:
    """Exports; the methods are documented in `voicemem.store.port.Outbox`."""

    database: Database

    async def claim_exports(self, now_ms: int, lease_ms: int, busy: Sequence[str], limit: int) -> list[Export]:
        def job(connection: apsw.Connection) -> list[Export]:
            exports = [to_export(row) for row in due(connection, now_ms, busy, limit)]
            connection.executemany(
                "update exports set lease = ?1, leased_until_ms = ?2, due_ms = ?2 where key = ?3",
                [(export.lease, now_ms + lease_ms, export.key) for export in exports],
            )
            return exports

        return await self.database.write(job)

    async def release_exports(self, now_ms: int) -> None:
        query = (
            "update exports set leased_until_ms = 0, due_ms = min(due_ms, ?1)"
            " where due_ms is not null and (leased_until_ms > 0 or (attempts = 0 and due_ms > ?1))"
        )
        await self.database.write(lambda connection: connection.execute(query, (now_ms,)).fetchall())

    async def freeze(self, export: Export, payload: bytes) -> bytes | None:
        def job(connection: apsw.Connection) -> bytes | None:
            connection.execute(
                f"update exports as x set payload = ? where key = ? and payload is null and {NOT_ERASED}",
                (payload, export.key),
            )
            query = f"select payload from exports x where key = ? and {NOT_ERASED}"
            row = connection.execute(query, (export.key,)).fetchone()
            return None if row is None else row[0]

        return await self.database.write(job)

    async def finish_export(
        self, export: Export, attempt: Attempt, state: Literal["pending", "delivered", "failed"], due_ms: int | None
    ) -> bool:
        def job(connection: apsw.Connection) -> bool:
            # What was given up meanwhile (its endpoint was disabled) is not tried again, but a success counts.
            connection.execute(
                "update exports as x set state = iif(state = 'failed' and ?1 = 'pending', 'failed', ?1),"
                " due_ms = iif(state = 'failed', null, ?2), attempts = attempts + 1, lease = lease + 1,"
                f" leased_until_ms = 0 where key = ?3 and lease = ?4 and {NOT_ERASED}",
                (state, due_ms, export.key, export.lease),
            )
            if not connection.changes():
                return False
            connection.execute(
                "insert into attempts values (?, ?, ?, ?, ?, ?, ?)", (export.key, export.attempts + 1, *attempt)
            )
            note_health(connection, export.endpoint.key, attempt, state)
            return True

        return await self.database.write(job)

    async def disable_endpoint(self, endpoint: Endpoint, now_ms: int) -> None:
        query = (
            "update endpoints set disabled_ms = ?, disabled_reason = 'gone'"
            " where key = ? and url = ? and disabled_ms is null"
        )

        def job(connection: apsw.Connection) -> None:
            connection.execute(query, (now_ms, endpoint.key, endpoint.url))
            if connection.changes():
                fail_waiting(connection, endpoint.key)

        await self.database.write(job)

    async def disable_failing(self, key: int, since_ms: int, now_ms: int) -> bool:
        query = (
            "update endpoints set disabled_ms = ?, disabled_reason = 'failing' where key = ? and disabled_ms is null"
            " and project is not null and failing_since_ms <= ?"
        )

        def job(connection: apsw.Connection) -> bool:
            connection.execute(query, (now_ms, key, since_ms))
            disabled = bool(connection.changes())
            if disabled:
                fail_waiting(connection, key)
            return disabled

        return await self.database.write(job)

    async def next_export_ms(self) -> int | None:
        query = (
            "select x.due_ms from exports x join endpoints e on e.key = x.endpoint"
            f" where x.due_ms is not null and e.disabled_ms is null and {NOT_ERASED} order by x.due_ms limit 1"
        )
        row = await self.database.read(lambda connection: connection.execute(query).fetchone())
        return None if row is None else int(row[0])

    async def deliveries(self, stream: int) -> list[Delivery]:
        def job(connection: apsw.Connection) -> list[Delivery]:
            rows: list[tuple[Any, ...]] = connection.execute(
                "select x.key, x.notice_id, e.url, x.event_type, x.state from exports x"
                f" join endpoints e on e.key = x.endpoint where x.stream = ? and {NOT_ERASED} order by x.key",
                (stream,),
            ).fetchall()
            return [
                Delivery(notice_id, url, event_type, state, attempts_of(connection, key))
                for key, notice_id, url, event_type, state in rows
            ]

        return await self.database.read(job)


def due(connection: apsw.Connection, now_ms: int, busy: Sequence[str], limit: int) -> list[tuple[Any, ...]]:
    """What is due at endpoints that are not busy, the oldest first."""
    marks = ",".join(f"?{number}" for number in range(4, 4 + len(busy)))
    chosen = (
        f"select {EXPORT}, {ENDPOINT} from {{}} join endpoints e on e.key = x.endpoint where x.due_ms <= ?1"
        f" and x.leased_until_ms <= ?1 and e.disabled_ms is null and e.url not in ({marks}) and {NOT_ERASED}"
        " order by x.due_ms limit ?2"
    )
    front = "(select * from exports where due_ms <= ?1 order by due_ms limit ?3) x"
    values = (now_ms, limit, FRONT, *busy)
    rows = connection.execute(chosen.format(front), values).fetchall()
    query = "select count(*) from (select 1 from exports where due_ms <= ? limit ?)"
    if len(rows) == limit or one(connection, query, (now_ms, FRONT)) < (FRONT,):
        return rows
    oldest = "select key from exports where endpoint = waiting.key and due_ms <= ?1 order by due_ms limit max(?2, ?3)"
    every = f"waiting cross join exports x on x.key in ({oldest})"
    return connection.execute(WAITING + chosen.format(every), values).fetchall()


def fail_waiting(connection: apsw.Connection, endpoint: int) -> None:
    """Give up what waits for an endpoint."""
    query = "update exports set state = 'failed', due_ms = null where endpoint = ? and due_ms is not null"
    connection.execute(query, (endpoint,))


def note_health(connection: apsw.Connection, endpoint: int, attempt: Attempt, state: str) -> None:
    """Keep the time since when nothing gets through to a project's endpoint."""
    values: tuple[Any, ...] = (endpoint,)
    query = "update endpoints set failing_since_ms = null where key = ? and failing_since_ms is not null"
    if state != "delivered":
        query = (
            "update endpoints set failing_since_ms = ? where key = ? and failing_since_ms is null and project not null"
        )
        values = (attempt.started_ms, endpoint)
    connection.execute(query, values)


def attempts_of(connection: apsw.Connection, export: int) -> list[Attempt]:
    query = "select started_ms, duration_ms, status, error, excerpt from attempts where export = ? order by number"
    return [Attempt(*row) for row in connection.execute(query, (export,))]


def to_export(row: tuple[Any, ...]) -> Export:
    key, stream, notice_id, event_type, position, closing, payload, attempts, lease, restarted_at, *endpoint = row
    return Export(
        key=key,
        stream=stream,
        endpoint=to_endpoint(endpoint),
        notice_id=notice_id,
        event_type=event_type,
        position=position,
        closing=CLOSING.decode(closing),
        payload=payload,
        attempts=attempts,
        lease=lease + 1,
        restarted_at=restarted_at,
    )


def to_endpoint(values: Sequence[Any]) -> Endpoint:
    row = dict(zip(Endpoint.__struct_fields__, values, strict=True))
    row["public_only"] = bool(row["public_only"])
    row["event_types"] = EVENT_TYPES.decode(row["event_types"])
    return Endpoint(**row)
