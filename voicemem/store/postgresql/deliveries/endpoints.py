"""`voicemem.store.port.Endpoints` on PostgreSQL: the projects' endpoints and their deliveries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from voicemem.store.delivery_rows import ENDPOINT_COLUMNS, LISTED_COLUMNS, to_endpoint
from voicemem.store.postgresql.database.connection import Row, Session
from voicemem.store.postgresql.database.pool import Database
from voicemem.store.postgresql.deliveries.outbox import NOT_ERASED, attempts_of, fail_pending
from voicemem.store.postgresql.journal.rows import Rows
from voicemem.store.records import Delivery, DeliveryFilter, Endpoint, EndpointDelivery

VALUE_COLUMNS = tuple(name for name in Endpoint.__struct_fields__ if name != "key")
"""The columns of `endpoints` that are written, after the key."""
WORDS = ("contents", "disabled_reason")
"""Those of them that hold words of the service's own."""
MARKS = ", ".join(f"${number}" for number in range(2, len(VALUE_COLUMNS) + 2))
COUNT_ENDPOINTS = "select count(*) from endpoints where project = $1"
INSERT_ENDPOINT = f"insert into endpoints (key, {', '.join(VALUE_COLUMNS)}) values ($1, {MARKS})"
UPDATE_ENDPOINT = f"update endpoints set ({', '.join(VALUE_COLUMNS)}) = row({MARKS}) where key = $1"
DELETE = "delete from endpoints where key = $1"
SELECT_ENDPOINTS = f"select {ENDPOINT_COLUMNS} from endpoints e where project = $1 order by key"
SELECT_ENDPOINT = f"select {ENDPOINT_COLUMNS} from endpoints e where project = $1 and id = $2"
SELECT_OPERATOR_ENDPOINT = f"""
    select {ENDPOINT_COLUMNS} from endpoints e
    where stream is null and project is null and disabled_ms is distinct from 0
"""
LOCK_PROJECT = "select pg_advisory_xact_lock(hashtextextended(encode($1, 'hex'), 0))"
SELECT_DELIVERIES = f"""
    select {LISTED_COLUMNS} from deliveries x join endpoints e on e.key = x.endpoint
    join streams s on s.key = x.stream
"""
SELECT_DELIVERY = f"{SELECT_DELIVERIES} where x.key = $1"
DELIVERY_FILTERS = {
    "session_id": "s.id = ${}",
    "event_type": "x.event_type = ${}",
    "state": "x.state = ${}",
    "before": "x.key < ${}",
}
"""The condition of each field of a `DeliveryFilter` that is set."""
SET_PENDING = "state = 'pending', due_ms = $1, restarted_at = attempts"
RESEND_DELIVERY = f"update deliveries x set {SET_PENDING} where key = $2 and endpoint = $3 and {NOT_ERASED}"
RESEND_FAILED = f"""
    update deliveries x set {SET_PENDING} where endpoint = $2 and state = 'failed' and made_ms >= $3 and {NOT_ERASED}
"""


class PostgresqlEndpoints:
    """Endpoints and deliveries; the methods are documented in `voicemem.store.port.Endpoints`."""

    database: Database

    async def add_endpoint(self, endpoint: Endpoint, limit: int) -> Endpoint | None:
        def job(rows: Rows) -> Endpoint | None:
            rows.session.execute(LOCK_PROJECT, (endpoint.project,))  # two at once must not both get the last place
            if rows.session.one(COUNT_ENDPOINTS, (endpoint.project,)) >= (limit,):
                return None
            added = msgspec.structs.replace(endpoint, key=rows.shared.keys.draw())
            rows.session.execute(INSERT_ENDPOINT, endpoint_values(added))
            return added

        return await self.database.write(job)

    async def list_endpoints(self, project: str) -> list[Endpoint]:
        rows = await self.database.read(lambda session: session.rows(SELECT_ENDPOINTS, (project,)))
        return [to_endpoint(row) for row in rows]

    async def find_endpoint(self, project: str, endpoint_id: str) -> Endpoint | None:
        return await self.database.read(lambda session: load_endpoint(session, project, endpoint_id))

    async def find_operator_endpoint(self) -> Endpoint | None:
        row = await self.database.read(lambda session: session.row(SELECT_OPERATOR_ENDPOINT))
        return None if row is None else to_endpoint(row)

    async def change_endpoint(
        self, project: str, endpoint_id: str, change: Callable[[Endpoint], Endpoint]
    ) -> Endpoint | None:
        def job(rows: Rows) -> Endpoint | None:
            endpoint = load_endpoint(rows.session, project, endpoint_id, " for no key update")
            if endpoint is None:
                return None
            changed = change(endpoint)
            rows.session.execute(UPDATE_ENDPOINT, endpoint_values(changed))
            if changed.disabled_ms is not None:
                fail_pending(rows.session, changed.key)
            return changed

        return await self.database.write(job)

    async def delete_endpoint(self, project: str, endpoint_id: str) -> bool:
        def job(rows: Rows) -> bool:
            endpoint = load_endpoint(rows.session, project, endpoint_id, " for update")
            if endpoint is None:
                return False
            fail_pending(rows.session, endpoint.key)
            rows.session.execute(DELETE, (endpoint.key,))
            return True

        return await self.database.write(job)

    async def list_endpoint_deliveries(self, key: int, wanted: DeliveryFilter) -> list[EndpointDelivery]:
        clauses = ["x.endpoint = $1 and s.state != 'erased'"]
        values: list[Any] = [key]
        for field, clause in DELIVERY_FILTERS.items():
            value: Any = getattr(wanted, field)
            if value is not None:
                values.append(value)
                clauses.append(clause.format(len(values)))
        values.append(wanted.limit)
        query = f"{SELECT_DELIVERIES} where {' and '.join(clauses)} order by x.key desc limit ${len(values)}"

        def job(session: Session) -> list[EndpointDelivery]:
            return [to_delivery(session, row) for row in session.rows(query, values)]

        return await self.database.read(job)

    async def resend(self, key: int, delivery: int, now_ms: int) -> EndpointDelivery | None:
        def job(rows: Rows) -> EndpointDelivery | None:
            if not rows.session.change(RESEND_DELIVERY, (now_ms, delivery, key)):
                return None
            return to_delivery(rows.session, rows.session.one(SELECT_DELIVERY, (delivery,)))

        return await self.database.write(job)

    async def resend_failed(self, key: int, since_ms: int, now_ms: int) -> int:
        return await self.database.write(lambda rows: rows.session.change(RESEND_FAILED, (now_ms, key, since_ms)))


def load_endpoint(session: Session, project: str, endpoint_id: str, lock: str = "") -> Endpoint | None:
    row = session.row(SELECT_ENDPOINT + lock, (project, endpoint_id))
    return None if row is None else to_endpoint(row)


def endpoint_values(endpoint: Endpoint) -> tuple[Any, ...]:
    """The key, and the values of `VALUE_COLUMNS`."""
    values = {name: getattr(endpoint, name) for name in VALUE_COLUMNS}
    values["event_types"] = msgspec.json.encode(endpoint.event_types)
    for name in WORDS:
        values[name] = None if values[name] is None else values[name]
    return (endpoint.key, *values.values())


def to_delivery(session: Session, row: Row) -> EndpointDelivery:
    key, session_id, made_ms, due_ms, notice_id, url, event_type, state, waiting_for = row
    attempts = attempts_of(session, key)
    delivery = Delivery(notice_id, url, event_type, state, attempts, waiting_for)
    return EndpointDelivery(key, session_id, made_ms, due_ms, delivery)
