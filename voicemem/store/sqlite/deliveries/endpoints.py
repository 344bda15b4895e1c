"""`voicemem.store.port.Endpoints` on SQLite: the projects' endpoints and their deliveries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw
import msgspec

from voicemem.store.delivery_rows import ENDPOINT_COLUMNS, LISTED_COLUMNS, to_endpoint
from voicemem.store.records import Delivery, DeliveryFilter, Endpoint, EndpointDelivery
from voicemem.store.sqlite.database.connections import Database
from voicemem.store.sqlite.deliveries.outbox import NOT_ERASED, attempts_of, fail_pending
from voicemem.store.sqlite.journal.row_cache import fetch_one

VALUE_COLUMNS = tuple(name for name in Endpoint.__struct_fields__ if name != "key")
"""The columns of `endpoints` that are written."""
COUNT_ENDPOINTS = "select count(*) from endpoints where project = ?"
INSERT_ENDPOINT = f"insert into endpoints ({', '.join(VALUE_COLUMNS)}) values ({', '.join('?' * len(VALUE_COLUMNS))})"
UPDATE_ENDPOINT = f"update endpoints set {', '.join(f'{name} = ?' for name in VALUE_COLUMNS)} where key = ?"
DELETE = "delete from endpoints where key = ?"
SELECT_ENDPOINTS = f"select {ENDPOINT_COLUMNS} from endpoints e where project = ? order by key"
SELECT_ENDPOINT = f"select {ENDPOINT_COLUMNS} from endpoints e where project = ? and id = ?"
SELECT_OPERATOR_ENDPOINT = f"""
    select {ENDPOINT_COLUMNS} from endpoints e indexed by endpoints_of_operator
    where stream is null and project is null and disabled_ms is not 0
"""
SELECT_DELIVERIES = f"""
    select {LISTED_COLUMNS}
    from deliveries x join endpoints e on e.key = x.endpoint join streams s on s.key = x.stream
"""
SELECT_DELIVERY = f"{SELECT_DELIVERIES} where x.key = ?"
DELIVERY_FILTERS = {
    "session_id": "s.id = ?",
    "event_type": "x.event_type = ?",
    "state": "x.state = ?",
    "before": "x.key < ?",
}
"""The condition of each field of a `DeliveryFilter` that is set."""
LIST_DELIVERIES = (
    f"{SELECT_DELIVERIES} where x.endpoint = ? and s.state != 'erased' and {{conditions}} order by x.key desc limit ?"
)
SET_PENDING = "state = 'pending', due_ms = ?1, restarted_at = attempts"
RESEND_DELIVERY = f"update deliveries as x set {SET_PENDING} where key = ?2 and endpoint = ?3 and {NOT_ERASED}"
RESEND_FAILED = f"""
    update deliveries as x set {SET_PENDING} where endpoint = ?2 and state = 'failed' and made_ms >= ?3 and {NOT_ERASED}
"""


class SqliteEndpoints:
    """Endpoints and deliveries; the methods are documented in `voicemem.store.port.Endpoints`."""

    database: Database

    async def add_endpoint(self, endpoint: Endpoint, limit: int) -> Endpoint | None:
        def job(connection: apsw.Connection) -> Endpoint | None:
            (count,) = fetch_one(connection, COUNT_ENDPOINTS, (endpoint.project,))
            if count >= limit:
                return None
            connection.execute(INSERT_ENDPOINT, endpoint_values(endpoint))
            return msgspec.structs.replace(endpoint, key=connection.last_insert_rowid())

        return await self.database.write(job)

    async def list_endpoints(self, project: str) -> list[Endpoint]:
        return await self.database.read(
            lambda connection: [to_endpoint(row) for row in connection.execute(SELECT_ENDPOINTS, (project,))]
        )

    async def find_endpoint(self, project: str, endpoint_id: str) -> Endpoint | None:
        return await self.database.read(lambda connection: load_endpoint(connection, project, endpoint_id))

    async def find_operator_endpoint(self) -> Endpoint | None:
        row = await self.database.read(lambda connection: connection.execute(SELECT_OPERATOR_ENDPOINT).fetchone())
        return None if row is None else to_endpoint(row)

    async def change_endpoint(
        self, project: str, endpoint_id: str, change: Callable[[Endpoint], Endpoint]
    ) -> Endpoint | None:
        def job(connection: apsw.Connection) -> Endpoint | None:
            endpoint = load_endpoint(connection, project, endpoint_id)
            if endpoint is None:
                return None
            changed = change(endpoint)
            connection.execute(UPDATE_ENDPOINT, (*endpoint_values(changed), changed.key))
            if changed.disabled_ms is not None:
                fail_pending(connection, changed.key)
            return changed

        return await self.database.write(job)

    async def delete_endpoint(self, project: str, endpoint_id: str) -> bool:
        def job(connection: apsw.Connection) -> bool:
            endpoint = load_endpoint(connection, project, endpoint_id)
            if endpoint is None:
                return False
            fail_pending(connection, endpoint.key)
            connection.execute(DELETE, (endpoint.key,))
            return True

        return await self.database.write(job)

    async def list_endpoint_deliveries(self, key: int, wanted: DeliveryFilter) -> list[EndpointDelivery]:
        chosen = {field: getattr(wanted, field) for field in DELIVERY_FILTERS if getattr(wanted, field) is not None}
        query = LIST_DELIVERIES.format(
            conditions=" and ".join(["true", *(DELIVERY_FILTERS[field] for field in chosen)])
        )
        values = (key, *chosen.values(), wanted.limit)

        def job(connection: apsw.Connection) -> list[EndpointDelivery]:
            return [to_delivery(connection, row) for row in connection.execute(query, values).fetchall()]

        return await self.database.read(job)

    async def resend(self, key: int, delivery: int, now_ms: int) -> EndpointDelivery | None:
        def job(connection: apsw.Connection) -> EndpointDelivery | None:
            connection.execute(RESEND_DELIVERY, (now_ms, delivery, key))
            if not connection.changes():
                return None
            return to_delivery(connection, fetch_one(connection, SELECT_DELIVERY, (delivery,)))

        return await self.database.write(job)

    async def resend_failed(self, key: int, since_ms: int, now_ms: int) -> int:
        def job(connection: apsw.Connection) -> int:
            connection.execute(RESEND_FAILED, (now_ms, key, since_ms))
            return connection.changes()

        return await self.database.write(job)


def load_endpoint(connection: apsw.Connection, project: str, endpoint_id: str) -> Endpoint | None:
    row = connection.execute(SELECT_ENDPOINT, (project, endpoint_id)).fetchone()
    return None if row is None else to_endpoint(row)


def endpoint_values(endpoint: Endpoint) -> tuple[Any, ...]:
    """The values of the columns `OWN`."""
    values = {name: getattr(endpoint, name) for name in VALUE_COLUMNS}
    values["event_types"] = msgspec.json.encode(endpoint.event_types).decode()
    return tuple(values.values())


def to_delivery(connection: apsw.Connection, row: tuple[Any, ...]) -> EndpointDelivery:
    key, session_id, made_ms, due_ms, notice_id, url, event_type, state, waiting_for = row
    delivery = Delivery(notice_id, url, event_type, state, attempts_of(connection, key), waiting_for)
    return EndpointDelivery(key, session_id, made_ms, due_ms, delivery)
