"""`voicemem.store.port.DeliveryLists` on SQLite: the deliveries of a project's sessions, over all endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import apsw

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
from voicemem.store.records import DeliveryFilter
from voicemem.store.sqlite.database.connections import Database
from voicemem.store.sqlite.deliveries.outbox import attempts_of
from voicemem.store.sqlite.journal.row_cache import fetch_one

OF_PROJECT = """
    s.project = :project and s.state != 'erased' and (:operators or e.stream is not null or e.project is not null)
"""
JOINED = "join endpoints e on e.key = x.endpoint join streams s on s.key = x.stream"
SCANNED = f"select key from deliveries where {{scanned}} order by key desc limit {MOST_SCANNED}"
LIST = f"""
    select {LISTED_COLUMNS}, {ENDPOINT_COLUMNS} from ({SCANNED}) c cross join deliveries x on x.key = c.key {JOINED}
    where {OF_PROJECT} and {{conditions}} order by x.key desc limit :limit + 1
"""
COUNT_SCANNED = f"select count(*), min(key) from ({SCANNED})"
FIND = f"""
    select {LISTED_COLUMNS}, {ENDPOINT_COLUMNS}, x.payload from deliveries x {JOINED}
    where x.key = :key and {OF_PROJECT}
"""
COUNT_DELIVERIES = """
    select ifnull(sum(state = 'delivered'), 0), ifnull(sum(state = 'failed'), 0),
    (select count(*) from deliveries where endpoint = ?1 and due_ms is not null)
    from deliveries where endpoint = ?1 and made_ms >= ?2
"""
NOT_DELIVERED = "state != 'delivered' and state = :state"
"""As the index has it."""


class SqliteDeliveryLists:
    """The methods are documented in `voicemem.store.port.DeliveryLists`."""

    database: Database

    async def list_project_deliveries(
        self, project: str, wanted: DeliveryFilter, operators: bool, stream: int | None = None
    ) -> DeliveryPage:
        scanned, conditions = clauses(wanted, stream)
        values = {"project": project, "operators": operators, "stream": stream}
        values |= {field: getattr(wanted, field) for field in DeliveryFilter.__struct_fields__}
        query = LIST.format(scanned=scanned, conditions=conditions)
        count = COUNT_SCANNED.format(scanned=scanned)

        def job(connection: apsw.Connection) -> DeliveryPage:
            rows = connection.execute(query, values).fetchall()
            found = [listed_delivery(row, partial(attempts_of, connection)) for row in rows]
            if len(found) > wanted.limit:
                return page_of(found, wanted.limit, 0, None)
            return page_of(found, wanted.limit, *(connection.execute(count, values).fetchone() or (0, None)))

        return await self.database.read(job)

    async def find_project_delivery(
        self, project: str, delivery: int, operators: bool
    ) -> tuple[ListedDelivery, bytes | None] | None:
        values = {"project": project, "key": delivery, "operators": operators}

        def job(connection: apsw.Connection) -> tuple[ListedDelivery, bytes | None] | None:
            row: tuple[Any, ...] | None = connection.execute(FIND, values).fetchone()
            if row is None:
                return None
            return listed_delivery(row[:-1], partial(attempts_of, connection)), row[-1]

        return await self.database.read(job)

    async def count_endpoint_deliveries(self, keys: Sequence[int], since_ms: int) -> dict[int, EndpointCounts]:
        def job(connection: apsw.Connection) -> dict[int, EndpointCounts]:
            return {key: EndpointCounts(*fetch_one(connection, COUNT_DELIVERIES, (key, since_ms))) for key in keys}

        return await self.database.read(job)


def clauses(wanted: DeliveryFilter, stream: int | None) -> tuple[str, str]:
    """The conditions for what is looked at, by an index, and for what of that is listed."""
    scanned = ["true"] if stream is None else ["stream = :stream"]
    if wanted.before is not None:
        scanned.append("key < :before")
    if wanted.state not in (None, "delivered") and stream is None:
        scanned.append(NOT_DELIVERED)
    given = [name for name in FILTER_COLUMNS if getattr(wanted, name) is not None]
    conditions = [f"{FILTER_COLUMNS[name]} = :{name}" for name in given]
    return " and ".join(scanned), " and ".join(["true", *conditions])
