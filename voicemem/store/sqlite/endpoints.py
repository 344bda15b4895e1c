"""The projects' endpoints on SQLite, and what became of what was sent to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw
import msgspec

from voicemem.store.records import Delivery, DeliveryFilter, Endpoint, EndpointDelivery
from voicemem.store.sqlite.database import Database
from voicemem.store.sqlite.outbox import ENDPOINT, NOT_ERASED, attempts_of, fail_waiting, to_endpoint
from voicemem.store.sqlite.rows import one

OWN = tuple(name for name in Endpoint.__struct_fields__ if name != "key")
INSERT = f"insert into endpoints ({', '.join(OWN)}) values ({', '.join('?' * len(OWN))})"
UPDATE = f"update endpoints set {', '.join(f'{name} = ?' for name in OWN)} where key = ?"
DELIVERY = "x.key, s.id, x.made_ms, x.due_ms, x.notice_id, e.url, x.event_type, x.state"
DELIVERIES = (
    f"select {DELIVERY} from exports x join endpoints e on e.key = x.endpoint join streams s on s.key = x.stream"
)
AGAIN = "state = 'pending', due_ms = ?1, restarted_at = attempts"


class SqliteEndpoints:
    """Endpoints; the methods are documented in `voicemem.store.port.Endpoints`."""

    database: Database

    async def add_endpoint(self, endpoint: Endpoint, limit: int) -> Endpoint | None:
        count = "select count(*) from endpoints where project = ?"

        def job(connection: apsw.Connection) -> Endpoint | None:
            ((there,),) = connection.execute(count, (endpoint.project,))
            if there >= limit:
                return None
            connection.execute(INSERT, values_of(endpoint))
            return msgspec.structs.replace(endpoint, key=connection.last_insert_rowid())

        return await self.database.write(job)

    async def endpoints(self, project: str) -> list[Endpoint]:
        query = f"select {ENDPOINT} from endpoints e where project = ? order by key"
        return await self.database.read(
            lambda connection: [to_endpoint(row) for row in connection.execute(query, (project,))]
        )

    async def endpoint(self, project: str, endpoint_id: str) -> Endpoint | None:
        return await self.database.read(lambda connection: load(connection, project, endpoint_id))

    async def operator_endpoint(self) -> Endpoint | None:
        query = (
            f"select {ENDPOINT} from endpoints e indexed by endpoints_of_operator"
            " where stream is null and project is null and disabled_ms is not 0"
        )
        row = await self.database.read(lambda connection: connection.execute(query).fetchone())
        return None if row is None else to_endpoint(row)

    async def change_endpoint(
        self, project: str, endpoint_id: str, change: Callable[[Endpoint], Endpoint]
    ) -> Endpoint | None:
        def job(connection: apsw.Connection) -> Endpoint | None:
            endpoint = load(connection, project, endpoint_id)
            if endpoint is None:
                return None
            changed = change(endpoint)
            connection.execute(UPDATE, (*values_of(changed), changed.key))
            if changed.disabled_ms is not None:
                fail_waiting(connection, changed.key)
            return changed

        return await self.database.write(job)

    async def delete_endpoint(self, project: str, endpoint_id: str) -> bool:
        def job(connection: apsw.Connection) -> bool:
            endpoint = load(connection, project, endpoint_id)
            if endpoint is None:
                return False
            fail_waiting(connection, endpoint.key)
            connection.execute("delete from endpoints where key = ?", (endpoint.key,))
            return True

        return await self.database.write(job)

    async def endpoint_deliveries(self, key: int, wanted: DeliveryFilter) -> list[EndpointDelivery]:
        given = {
            "s.id = ?": wanted.session_id,
            "x.event_type = ?": wanted.event_type,
            "x.state = ?": wanted.state,
            "x.key < ?": wanted.before,
        }
        conditions = {clause: value for clause, value in given.items() if value is not None}
        clauses = " and ".join(["x.endpoint = ?", "s.state != 'erased'", *conditions])
        query = f"{DELIVERIES} where {clauses} order by x.key desc limit ?"
        values = (key, *conditions.values(), wanted.limit)

        def job(connection: apsw.Connection) -> list[EndpointDelivery]:
            return [to_delivery(connection, row) for row in connection.execute(query, values).fetchall()]

        return await self.database.read(job)

    async def send_again(self, key: int, delivery: int, now_ms: int) -> EndpointDelivery | None:
        def job(connection: apsw.Connection) -> EndpointDelivery | None:
            query = f"update exports as x set {AGAIN} where key = ?2 and endpoint = ?3 and {NOT_ERASED}"
            connection.execute(query, (now_ms, delivery, key))
            if not connection.changes():
                return None
            return to_delivery(connection, one(connection, f"{DELIVERIES} where x.key = ?", (delivery,)))

        return await self.database.write(job)

    async def recover(self, key: int, since_ms: int, now_ms: int) -> int:
        query = (
            f"update exports as x set {AGAIN} where endpoint = ?2 and state = 'failed' and made_ms >= ?3"
            f" and {NOT_ERASED}"
        )

        def job(connection: apsw.Connection) -> int:
            connection.execute(query, (now_ms, key, since_ms))
            return connection.changes()

        return await self.database.write(job)


def load(connection: apsw.Connection, project: str, endpoint_id: str) -> Endpoint | None:
    query = f"select {ENDPOINT} from endpoints e where project = ? and id = ?"
    row = connection.execute(query, (project, endpoint_id)).fetchone()
    return None if row is None else to_endpoint(row)


def values_of(endpoint: Endpoint) -> tuple[Any, ...]:
    """The values of its columns, without the key."""
    values = {name: getattr(endpoint, name) for name in OWN}
    values["event_types"] = msgspec.json.encode(endpoint.event_types).decode()
    return tuple(values.values())


def to_delivery(connection: apsw.Connection, row: tuple[Any, ...]) -> EndpointDelivery:
    key, session_id, made_ms, due_ms, notice_id, url, event_type, state = row
    delivery = Delivery(notice_id, url, event_type, state, attempts_of(connection, key))
    return EndpointDelivery(key, session_id, made_ms, due_ms, delivery)
