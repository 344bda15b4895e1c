"""`voicemem.store.port.DeliveryLists` on PostgreSQL: the deliveries of a project's sessions, over all endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from voicemem.store.delivery_rows import (
    ENDPOINT_COLUMNS,
    FILTER_COLUMNS,
    LISTED_COLUMNS,
    MOST_SCANNED,
    DeliveryPage,
    EndpointCounts,
    ListedDelivery,
    listed_delivery,
    page_of,
)
from voicemem.store.postgresql.database.connection import Session
from voicemem.store.postgresql.database.pool import Database
from voicemem.store.postgresql.deliveries.outbox import attempts_of
from voicemem.store.records import DeliveryFilter

OF_PROJECT = """
    s.project = $1 and s.state != 'erased' and ($2::boolean or e.stream is not null or e.project is not null)
"""
JOINED = """
    join endpoints e on e.key = x.endpoint join streams s on s.key = x.stream
"""
SCANNED = f"select key from deliveries x where {{scanned}} order by key desc limit {MOST_SCANNED}"
LIST = f"""
    select {LISTED_COLUMNS}, {ENDPOINT_COLUMNS} from ({SCANNED}) c join deliveries x on x.key = c.key {JOINED}
    where {OF_PROJECT} and {{conditions}} order by x.key desc limit {{limit}}
"""
COUNT_SCANNED = f"select count(*), min(key) from ({SCANNED}) c"
FIND = f"""
    select {LISTED_COLUMNS}, {ENDPOINT_COLUMNS}, x.payload from deliveries x {JOINED}
    where x.key = $3 and {OF_PROJECT}
"""
COUNT_DELIVERIES = """
    select count(*) filter (where state = 'delivered'), count(*) filter (where state = 'failed'),
    (select count(*) from deliveries where endpoint = $1 and due_ms is not null)
    from deliveries where endpoint = $1 and made_ms >= $2
"""


class PostgresqlDeliveryLists:
    """The methods are documented in `voicemem.store.port.DeliveryLists`."""

    database: Database

    async def list_project_deliveries(
        self, project: str, wanted: DeliveryFilter, operators: bool, stream: int | None = None
    ) -> DeliveryPage:
        scanned, scan_values = scan_clauses(wanted, stream, 1)
        count_query = COUNT_SCANNED.format(scanned=scanned)
        scanned, _ = scan_clauses(wanted, stream, 3)
        values = [project, operators, *scan_values]
        conditions = list_clauses(wanted, values)
        query = LIST.format(scanned=scanned, conditions=conditions, limit=wanted.limit + 1)

        def job(session: Session) -> DeliveryPage:
            found = [listed_delivery(row, partial(attempts_of, session)) for row in session.rows(query, values)]
            if len(found) > wanted.limit:
                return page_of(found, wanted.limit, 0, None)
            count, last = session.one(count_query, scan_values)
            return page_of(found, wanted.limit, count, last)

        return await self.database.read(job)

    async def find_project_delivery(
        self, project: str, delivery: int, operators: bool
    ) -> tuple[ListedDelivery, bytes | None] | None:
        def job(session: Session) -> tuple[ListedDelivery, bytes | None] | None:
            row = session.row(FIND, (project, operators, delivery))
            if row is None:
                return None
            return listed_delivery(row[:-1], partial(attempts_of, session)), row[-1]

        return await self.database.read(job)

    async def count_endpoint_deliveries(self, keys: Sequence[int], since_ms: int) -> dict[int, EndpointCounts]:
        def job(session: Session) -> dict[int, EndpointCounts]:
            return {key: EndpointCounts(*session.one(COUNT_DELIVERIES, (key, since_ms))) for key in keys}

        return await self.database.read(job)


def scan_clauses(wanted: DeliveryFilter, stream: int | None, first: int) -> tuple[str, list[Any]]:
    """The condition for what is looked at, by an index, with its values from this number on."""
    given: list[tuple[str, Any]] = [] if stream is None else [("x.stream = ${}", stream)]
    if wanted.before is not None:
        given.append(("x.key < ${}", wanted.before))
    if wanted.state not in (None, "delivered") and stream is None:
        given.append(("x.state != 'delivered' and x.state = ${}", wanted.state))
    marked = [clause.format(first + number) for number, (clause, _) in enumerate(given)]
    return " and ".join(marked) or "true", [value for _, value in given]


def list_clauses(wanted: DeliveryFilter, values: list[Any]) -> str:
    """The condition for what of that is listed; adds its values."""
    conditions = ["true"]
    for name, column in FILTER_COLUMNS.items():
        value: Any = getattr(wanted, name)
        if value is not None:
            values.append(value)
            conditions.append(f"{column} = ${len(values)}")
    return " and ".join(conditions)
