"""`voicemem.store.port.Outbox` on PostgreSQL: leases, frozen bodies, the attempt log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

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
from voicemem.store.postgresql.database.connection import Row, Session
from voicemem.store.postgresql.database.pool import Database
from voicemem.store.postgresql.database.turns import take_turn
from voicemem.store.postgresql.journal.rows import Rows
from voicemem.store.records import Attempt, ClaimedDelivery, Delivery, Endpoint

CLAIMS = "claims of deliveries"
"""The turn of a claim: the places of a URL are counted over all nodes."""
NOT_ERASED = "(select s.state from streams s where s.key = x.stream) != 'erased'"
"""True for deliveries (x) of sessions that are not erased: those of an erased one stay a while, and are not sent."""
OLDEST_DUE = "(select * from deliveries where due_ms <= $1 order by due_ms, key limit $3) c"
OLDEST_OF_EACH_ENDPOINT = """
    waiting cross join lateral (
        select * from deliveries where endpoint = waiting.key and due_ms <= $1 order by due_ms, key
        limit greatest($2::bigint, $3::bigint)
    ) c
"""
SELECT_DUE_FROM = f"""
    select {DELIVERY_COLUMNS}, {ENDPOINT_COLUMNS} from {{candidates}} join deliveries x on x.key = c.key
    join endpoints e on e.key = x.endpoint
    where x.due_ms <= $1 and x.leased_until_ms <= $1 and e.disabled_ms is null
    and e.url != all($4::text[]) and {NOT_ERASED} order by x.due_ms, x.key limit $2
    for no key update of x skip locked
"""
SELECT_DUE_AT_FRONT = SELECT_DUE_FROM.format(candidates=OLDEST_DUE)
SELECT_DUE_EVERYWHERE = WITH_WAITING + SELECT_DUE_FROM.format(candidates=OLDEST_OF_EACH_ENDPOINT)
COUNT_DUE = "select count(*) from (select 1 from deliveries where due_ms <= $1 limit $2) c"
LEASE_DELIVERIES = """
    update deliveries set lease = lease + 1, leased_until_ms = $1, due_ms = $1, node = $2 where key = any($3::bigint[])
"""
FREEZE_PAYLOAD = f"""
    update deliveries x set payload = $1, waiting_for = null where key = $2 and payload is null and {NOT_ERASED}
"""
SELECT_PAYLOAD = f"select payload from deliveries x where key = $1 and {NOT_ERASED}"
FINISH_DELIVERY = f"""
    update deliveries x set state = case when state = 'failed' and $1 = 'pending' then 'failed' else $1 end,
    due_ms = case when state = 'failed' then null else $2::bigint end, attempts = attempts + 1, lease = lease + 1,
    leased_until_ms = 0, node = null where key = $3 and lease = $4 and {NOT_ERASED}
"""
"""A delivery that was given up meanwhile (its endpoint was disabled) is not tried again, but a success counts."""
POSTPONE_DELIVERY = """
    update deliveries set waiting_for = $1, due_ms = $2, leased_until_ms = 0, node = null, lease = lease + 1
    where key = $3 and lease = $4 and due_ms is not null
"""
INSERT_ATTEMPT = "insert into attempts values ($1, $2, $3, $4, $5, $6, $7)"
SELECT_ATTEMPTS = """
    select started_ms, duration_ms, status, error, excerpt from attempts where delivery = $1 order by number
"""
DISABLE_GONE_ENDPOINT = """
    update endpoints set disabled_ms = $1, disabled_reason = 'gone'
    where key = $2 and url = $3 and disabled_ms is null
"""
DISABLE_FAILING_ENDPOINT = """
    update endpoints set disabled_ms = $1, disabled_reason = 'failing'
    where key = $2 and disabled_ms is null and project is not null and failing_since_ms <= $3
"""
SELECT_NEXT_DUE_MS = "select due_ms from deliveries where due_ms is not null order by due_ms limit 1"
SELECT_SESSION_DELIVERIES = f"""
    select x.key, x.notice_id, e.url, x.event_type, x.state, x.waiting_for
    from deliveries x join endpoints e on e.key = x.endpoint
    where x.stream = $1 and {NOT_ERASED} order by x.key
"""
FAIL_PENDING_DELIVERIES = """
    update deliveries set state = 'failed', due_ms = null where endpoint = $1 and due_ms is not null
"""
CLEAR_FAILING_SINCE = """
    update endpoints set failing_since_ms = null where key = $1 and failing_since_ms is not null
"""
SET_FAILING_SINCE = """
    update endpoints set failing_since_ms = $2
    where key = $1 and failing_since_ms is null and stream is null
"""


class PostgresqlOutbox:
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
        def job(rows: Rows) -> list[ClaimedDelivery]:
            rows.hold_node(node)
            take_turn(rows.session, CLAIMS)
            leased = rows.session.rows(SELECT_LEASED_BY_OTHERS, (now_ms, node))
            left = Places(places, taken, leased)
            due = select_due(rows.session, now_ms, left.full, limit)
            deliveries = left.fill(to_claimed_delivery(row) for row in due)
            keys = [delivery.key for delivery in deliveries]
            if keys:
                rows.session.execute(LEASE_DELIVERIES, (now_ms + lease_ms, node, keys))
            return deliveries

        if await self.database.read(lambda session: session.one(COUNT_DUE, (now_ms, 1))) == (0,):
            return []
        return await self.database.write(job)

    async def freeze_payload(self, delivery: ClaimedDelivery, payload: bytes) -> bytes | None:
        def job(rows: Rows) -> bytes | None:
            rows.session.execute(FREEZE_PAYLOAD, (payload, delivery.key))
            row = rows.session.row(SELECT_PAYLOAD, (delivery.key,))
            return None if row is None else row[0]

        return await self.database.write(job)

    async def finish_delivery(
        self,
        delivery: ClaimedDelivery,
        attempt: Attempt,
        state: Literal["pending", "delivered", "failed"],
        due_ms: int | None,
    ) -> bool:
        def job(rows: Rows) -> bool:
            if not rows.session.change(FINISH_DELIVERY, (state, due_ms, delivery.key, delivery.lease)):
                return False
            rows.session.execute(INSERT_ATTEMPT, (delivery.key, delivery.attempts + 1, *attempt))
            record_health(rows.session, delivery.endpoint.key, attempt, state)
            return True

        return await self.database.write(job)

    async def postpone_delivery(self, delivery: ClaimedDelivery, waiting_for: str, due_ms: int) -> None:
        values = (waiting_for, due_ms, delivery.key, delivery.lease)
        await self.database.write(lambda rows: rows.session.change(POSTPONE_DELIVERY, values))

    async def disable_endpoint(self, endpoint: Endpoint, now_ms: int) -> None:
        def job(rows: Rows) -> None:
            if rows.session.change(DISABLE_GONE_ENDPOINT, (now_ms, endpoint.key, endpoint.url)):
                fail_pending(rows.session, endpoint.key)

        await self.database.write(job)

    async def disable_failing(self, key: int, since_ms: int, now_ms: int) -> bool:
        def job(rows: Rows) -> bool:
            disabled = bool(rows.session.change(DISABLE_FAILING_ENDPOINT, (now_ms, key, since_ms)))
            if disabled:
                fail_pending(rows.session, key)
            return disabled

        return await self.database.write(job)

    async def next_delivery_ms(self) -> int | None:
        row = await self.database.read(lambda session: session.row(SELECT_NEXT_DUE_MS))
        return None if row is None else int(row[0])

    async def list_deliveries(self, stream: int) -> list[Delivery]:
        def job(session: Session) -> list[Delivery]:
            return [
                Delivery(notice, url, event_type, state, attempts_of(session, key), waiting_for)
                for key, notice, url, event_type, state, waiting_for in session.rows(
                    SELECT_SESSION_DELIVERIES, (stream,)
                )
            ]

        return await self.database.read(job)


def select_due(session: Session, now_ms: int, full: Sequence[str], limit: int) -> list[Row]:
    """The deliveries that are due at URLs that are not full, the oldest first, locked.

    Thousands may be due at one receiver that is down. The oldest few are enough as a rule; the search over all
    endpoints is made only when these are held up by busy receivers, so that one of them cannot delay the others.
    """
    values = (now_ms, limit, FRONT_ROWS, [url for url in full])
    rows = session.rows(SELECT_DUE_AT_FRONT, values)
    if len(rows) == limit or session.one(COUNT_DUE, (now_ms, FRONT_ROWS)) < (FRONT_ROWS,):
        return rows
    return session.rows(SELECT_DUE_EVERYWHERE, values)


def fail_pending(session: Session, endpoint: int) -> None:
    """Mark the deliveries that wait for an endpoint as failed."""
    session.execute(FAIL_PENDING_DELIVERIES, (endpoint,))


def record_health(session: Session, endpoint: int, attempt: Attempt, state: str) -> None:
    """Note since when every attempt at an endpoint that is no session's own has failed."""
    if state == "delivered":
        session.execute(CLEAR_FAILING_SINCE, (endpoint,))
    else:
        session.execute(SET_FAILING_SINCE, (endpoint, attempt.started_ms))


def attempts_of(session: Session, delivery: int) -> list[Attempt]:
    return [
        Attempt(started_ms, duration_ms, status, error, excerpt)
        for started_ms, duration_ms, status, error, excerpt in session.rows(SELECT_ATTEMPTS, (delivery,))
    ]
