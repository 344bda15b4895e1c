"""`voicemem.store.port.Outbox` on SQLite: leases, frozen bodies, the attempt log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import apsw
import msgspec

from voicemem.store.delivery_rows import (
    DELIVERY_COLUMNS,
    ENDPOINT_COLUMNS,
    FRONT_ROWS,
    SELECT_LEASED_BY_OTHERS,
    WITH_WAITING,
    Places,
    to_claimed_delivery,
)
from voicemem.store.ports.deliveries import ANY_NUMBER
from voicemem.store.records import Attempt, ClaimedDelivery, Delivery, Endpoint
from voicemem.store.sqlite.database.connections import Database
from voicemem.store.sqlite.journal.row_cache import fetch_one

NOT_ERASED = "(select s.state from streams s where s.key = x.stream) != 'erased'"
"""True for deliveries (x) of sessions that are not erased: those of an erased one stay a while, and are not sent."""
OLDEST_DUE = "(select * from deliveries where due_ms <= ?1 order by due_ms limit ?3) x"
OLDEST_OF_EACH_ENDPOINT = """
    waiting cross join deliveries x on x.key in (
        select key from deliveries where endpoint = waiting.key and due_ms <= ?1 order by due_ms limit max(?2, ?3)
    )
"""
SELECT_DUE_FROM = f"""
    select {DELIVERY_COLUMNS}, {ENDPOINT_COLUMNS} from {{candidates}} join endpoints e on e.key = x.endpoint
    where x.due_ms <= ?1 and x.leased_until_ms <= ?1 and e.disabled_ms is null
    and e.url not in (select value from json_each(?4)) and {NOT_ERASED} order by x.due_ms limit ?2
"""
SELECT_DUE_AT_FRONT = SELECT_DUE_FROM.format(candidates=OLDEST_DUE)
SELECT_DUE_EVERYWHERE = WITH_WAITING + SELECT_DUE_FROM.format(candidates=OLDEST_OF_EACH_ENDPOINT)
COUNT_DUE = "select count(*) from (select 1 from deliveries where due_ms <= ? limit ?)"
LEASE_DELIVERY = "update deliveries set lease = ?1, leased_until_ms = ?2, due_ms = ?2, node = ?4 where key = ?3"
FREEZE_PAYLOAD = f"""
    update deliveries as x set payload = ?, waiting_for = null where key = ? and payload is null and {NOT_ERASED}
"""
SELECT_PAYLOAD = f"select payload from deliveries x where key = ? and {NOT_ERASED}"
FINISH_DELIVERY = f"""
    update deliveries as x set state = iif(state = 'failed' and ?1 = 'pending', 'failed', ?1),
    due_ms = iif(state = 'failed', null, ?2), attempts = attempts + 1,
    lease = lease + 1, leased_until_ms = 0, node = null
    where key = ?3 and lease = ?4 and {NOT_ERASED}
"""
"""A delivery that was given up meanwhile (its endpoint was disabled) is not tried again, but a success counts."""
POSTPONE_DELIVERY = """
    update deliveries set waiting_for = ?, due_ms = ?, leased_until_ms = 0, node = null, lease = lease + 1
    where key = ? and lease = ? and due_ms is not null
"""
INSERT_ATTEMPT = "insert into attempts values (?, ?, ?, ?, ?, ?, ?)"
SELECT_ATTEMPTS = """
    select started_ms, duration_ms, status, error, excerpt from attempts where delivery = ? order by number
"""
DISABLE_GONE_ENDPOINT = """
    update endpoints set disabled_ms = ?, disabled_reason = 'gone' where key = ? and url = ? and disabled_ms is null
"""
DISABLE_FAILING_ENDPOINT = """
    update endpoints set disabled_ms = ?, disabled_reason = 'failing'
    where key = ? and disabled_ms is null and project is not null and failing_since_ms <= ?
"""
SELECT_NEXT_DUE_MS = f"""
    select x.due_ms from deliveries x join endpoints e on e.key = x.endpoint
    where x.due_ms is not null and e.disabled_ms is null and {NOT_ERASED} order by x.due_ms limit 1
"""
SELECT_SESSION_DELIVERIES = f"""
    select x.key, x.notice_id, e.url, x.event_type, x.state, x.waiting_for
    from deliveries x join endpoints e on e.key = x.endpoint
    where x.stream = ? and {NOT_ERASED} order by x.key
"""
FAIL_PENDING_DELIVERIES = """
    update deliveries set state = 'failed', due_ms = null where endpoint = ? and due_ms is not null
"""
CLEAR_FAILING_SINCE = """
    update endpoints set failing_since_ms = null where key = ? and failing_since_ms is not null
"""
SET_FAILING_SINCE = """
    update endpoints set failing_since_ms = ? where key = ? and failing_since_ms is null and stream is null
"""


class SqliteOutbox:
    """Deliveries on their way; the methods are documented in `voicemem.store.port.Outbox`."""

    database: Database

    async def claim_deliveries(
        self,
        now_ms: int,
        lease_ms: int,
        taken: Mapping[str, int],
        limit: int,
        node: str = "",
        places: int = ANY_NUMBER,
    ) -> list[ClaimedDelivery]:
        def job(connection: apsw.Connection) -> list[ClaimedDelivery]:
            others = () if self.database.is_exclusive else connection.execute(SELECT_LEASED_BY_OTHERS, (now_ms, node))
            left = Places(places, taken, others)
            due = select_due(connection, now_ms, left.full, limit)
            deliveries = left.fill(to_claimed_delivery(row) for row in due)
            leases = [(delivery.lease, now_ms + lease_ms, delivery.key, node) for delivery in deliveries]
            connection.executemany(LEASE_DELIVERY, leases)
            return deliveries

        return await self.database.write(job)

    async def freeze_payload(self, delivery: ClaimedDelivery, payload: bytes) -> bytes | None:
        def job(connection: apsw.Connection) -> bytes | None:
            connection.execute(FREEZE_PAYLOAD, (payload, delivery.key))
            row = connection.execute(SELECT_PAYLOAD, (delivery.key,)).fetchone()
            return None if row is None else row[0]

        return await self.database.write(job)

    async def finish_delivery(
        self,
        delivery: ClaimedDelivery,
        attempt: Attempt,
        state: Literal["pending", "delivered", "failed"],
        due_ms: int | None,
    ) -> bool:
        def job(connection: apsw.Connection) -> bool:
            connection.execute(FINISH_DELIVERY, (state, due_ms, delivery.key, delivery.lease))
            if not connection.changes():
                return False
            connection.execute(INSERT_ATTEMPT, (delivery.key, delivery.attempts + 1, *attempt))
            record_health(connection, delivery.endpoint.key, attempt, state)
            return True

        return await self.database.write(job)

    async def postpone_delivery(self, delivery: ClaimedDelivery, waiting_for: str, due_ms: int) -> None:
        values = (waiting_for, due_ms, delivery.key, delivery.lease)
        await self.database.write(lambda connection: connection.execute(POSTPONE_DELIVERY, values).fetchall())

    async def disable_endpoint(self, endpoint: Endpoint, now_ms: int) -> None:
        def job(connection: apsw.Connection) -> None:
            connection.execute(DISABLE_GONE_ENDPOINT, (now_ms, endpoint.key, endpoint.url))
            if connection.changes():
                fail_pending(connection, endpoint.key)

        await self.database.write(job)

    async def disable_failing(self, key: int, since_ms: int, now_ms: int) -> bool:
        def job(connection: apsw.Connection) -> bool:
            connection.execute(DISABLE_FAILING_ENDPOINT, (now_ms, key, since_ms))
            disabled = bool(connection.changes())
            if disabled:
                fail_pending(connection, key)
            return disabled

        return await self.database.write(job)

    async def next_delivery_ms(self) -> int | None:
        row = await self.database.read(lambda connection: connection.execute(SELECT_NEXT_DUE_MS).fetchone())
        return None if row is None else int(row[0])

    async def list_deliveries(self, stream: int) -> list[Delivery]:
        def job(connection: apsw.Connection) -> list[Delivery]:
            rows: list[tuple[Any, ...]] = connection.execute(SELECT_SESSION_DELIVERIES, (stream,)).fetchall()
            return [
                Delivery(notice_id, url, event_type, state, attempts_of(connection, key), waiting_for)
                for key, notice_id, url, event_type, state, waiting_for in rows
            ]

        return await self.database.read(job)


def select_due(connection: apsw.Connection, now_ms: int, full: Sequence[str], limit: int) -> list[tuple[Any, ...]]:
    """The deliveries that are due at URLs that are not full, the oldest first.

    Thousands may be due at one receiver that is down. The oldest few are enough as a rule; the search over all
    endpoints is made only when these are held up by busy receivers, so that one of them cannot delay the others.
    """
    values = (now_ms, limit, FRONT_ROWS, msgspec.json.encode(full).decode())
    rows = connection.execute(SELECT_DUE_AT_FRONT, values).fetchall()
    if len(rows) == limit or fetch_one(connection, COUNT_DUE, (now_ms, FRONT_ROWS)) < (FRONT_ROWS,):
        return rows
    return connection.execute(SELECT_DUE_EVERYWHERE, values).fetchall()


def fail_pending(connection: apsw.Connection, endpoint: int) -> None:
    """Mark the deliveries that wait for an endpoint as failed."""
    connection.execute(FAIL_PENDING_DELIVERIES, (endpoint,))


def record_health(connection: apsw.Connection, endpoint: int, attempt: Attempt, state: str) -> None:
    """Note since when every attempt at an endpoint that is no session's own has failed."""
    if state == "delivered":
        connection.execute(CLEAR_FAILING_SINCE, (endpoint,))
    else:
        connection.execute(SET_FAILING_SINCE, (attempt.started_ms, endpoint))


def attempts_of(connection: apsw.Connection, delivery: int) -> list[Attempt]:
    return [Attempt(*row) for row in connection.execute(SELECT_ATTEMPTS, (delivery,))]
