"""Deliveries as the owners of a session, an endpoint or a project read them."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from voicemem.store.database import Connection, Port, Row, reads, writes
from voicemem.store.outbox import ENDPOINT_COLUMNS, NOT_ERASED, Attempt, Endpoint, FrozenPayload, to_endpoint

DeliveryState = Literal["pending", "delivered", "failed"]


class Delivery(NamedTuple):
    notice_id: str
    url: str
    event_type: int
    state: str
    attempts: list[Attempt]
    waiting_for: str | None = None
    """`session_set_aside` while it cannot be made for that reason."""


class EndpointDelivery(NamedTuple):
    key: int
    session_id: str
    made_ms: int
    due_ms: int | None
    """When the next attempt is due; during an attempt, when its lease ends."""
    delivery: Delivery


class DeliveryFilter(Struct, frozen=True, kw_only=True):
    """A filter of deliveries by all its conditions; `before` is the last key of the previous page."""

    session_id: str | None = None
    event_type: int | None = None
    state: str | None = None
    before: int | None = None
    limit: int = 100


class ListedDelivery(NamedTuple):
    """A delivery of a project's session, and the endpoint that it goes to, which may be the session's own."""

    delivery: EndpointDelivery
    endpoint: Endpoint


class DeliveryPage(NamedTuple):
    """A page of deliveries, the newest first; `next_before` is the `before` of the next page, None at the end.

    There may be fewer than the query's limit, or none, before the end.
    """

    deliveries: list[ListedDelivery]
    next_before: int | None


class EndpointCounts(NamedTuple):
    """Counts of an endpoint's deliveries: delivered and failed ones made since a time, and all pending ones."""

    delivered: int = 0
    failed: int = 0
    pending: int = 0


SELECT_ATTEMPTS = """
    select started_ms, duration_ms, status, error, excerpt from attempts where delivery = :delivery order by number
"""
LISTED_COLUMNS = "x.key, s.id, x.made_ms, x.due_ms, x.notice_id, e.url, x.event_type, x.state, x.waiting_for"
JOINED = "join endpoints e on e.key = x.endpoint join streams s on s.key = x.stream"
SELECT_DELIVERY = f"select {LISTED_COLUMNS} from deliveries x {JOINED} where x.key = :key"
LIST_OF_SESSION = f"""
    select {LISTED_COLUMNS} from deliveries x {JOINED}
    where x.stream = :stream and s.state <> 'erased' order by x.key
"""
FILTERS = {"session_id": "s.id = :session_id", "event_type": "x.event_type = :event_type", "state": "x.state = :state"}
LIST_OF_ENDPOINT = f"""
    select {LISTED_COLUMNS} from deliveries x {JOINED}
    where x.endpoint = :endpoint and s.state <> 'erased' and {{conditions}} order by x.key desc limit :limit
"""
SET_PENDING = "state = 'pending', due_ms = :now_ms, restarted_at = attempts"
RESEND_DELIVERY = f"update deliveries as x set {SET_PENDING} where key = :key and endpoint = :endpoint and {NOT_ERASED}"
RESEND_FAILED = f"""
    update deliveries as x set {SET_PENDING}
    where endpoint = :endpoint and state = 'failed' and made_ms >= :since_ms and {NOT_ERASED}
"""
MOST_SCANNED = 5_000
"""Deliveries that are read for one page of a project's list, since they may be of other projects."""
OF_PROJECT = """
    s.project = :project and s.state <> 'erased' and (:operators or e.stream is not null or e.project is not null)
"""
SCANNED = "select key from deliveries where {scanned} order by key desc limit :most"
LIST_OF_PROJECT = f"""
    select {LISTED_COLUMNS}, {ENDPOINT_COLUMNS} from ({SCANNED}) c cross join deliveries x {JOINED}
    where x.key = c.key and {OF_PROJECT} and {{conditions}} order by x.key desc limit :limit
"""
COUNT_SCANNED = f"select count(*), min(key) from ({SCANNED}) c"
FIND = f"""
    select {LISTED_COLUMNS}, {ENDPOINT_COLUMNS}, x.stream, x.payload_bytes from deliveries x {JOINED}
    where x.key = :key and {OF_PROJECT}
"""
NOT_DELIVERED = "state <> 'delivered' and state = :state"
COUNT_DELIVERIES = """
    select count(*) filter (where state = 'delivered'), count(*) filter (where state = 'failed'),
    (select count(*) from deliveries where endpoint = :endpoint and due_ms is not null)
    from deliveries where endpoint = :endpoint and made_ms >= :since_ms
"""


class Deliveries(Port):
    """Deliveries as their owners read them, and send them again; none of erased sessions."""

    most_scanned = MOST_SCANNED

    @reads
    def list_deliveries(self, connection: Connection, stream: int) -> list[Delivery]:
        """Return all deliveries of a session with their attempts, in the order in which they were made."""
        rows = connection.rows(LIST_OF_SESSION, stream=stream)
        return [to_delivery(connection, row).delivery for row in rows]

    # Of an endpoint

    @reads
    def list_endpoint_deliveries(
        self, connection: Connection, key: int, query: DeliveryFilter
    ) -> list[EndpointDelivery]:
        """Return an endpoint's deliveries that match, the newest first."""
        before = "true" if query.before is None else "x.key < :before"
        sql = LIST_OF_ENDPOINT.format(conditions=" and ".join([before, *conditions_of(query)]))
        return [to_delivery(connection, row) for row in connection.rows(sql, endpoint=key, **asdict(query))]

    @writes
    def resend(self, connection: Connection, key: int, delivery: int, now_ms: int) -> EndpointDelivery | None:
        """Make a delivery of an endpoint due now, whatever its state; None when it is unknown.

        Its schedule of retries starts again: `ClaimedDelivery.restarted_at` becomes the number of attempts so far.
        """
        if not connection.execute(RESEND_DELIVERY, key=delivery, endpoint=key, now_ms=now_ms):
            return None
        return to_delivery(connection, connection.one(SELECT_DELIVERY, key=delivery))

    async def resend_failed(self, key: int, since_ms: int, now_ms: int) -> int:
        """Do the same for all failed deliveries made at `since_ms` or later; return how many there are."""
        return await self.database.execute(RESEND_FAILED, endpoint=key, since_ms=since_ms, now_ms=now_ms)

    # Of a project, over all endpoints, the sessions' own included; with `operators` also those to the operator's

    @reads
    def list_project_deliveries(
        self, connection: Connection, project: str, query: DeliveryFilter, operators: bool, stream: int | None = None
    ) -> DeliveryPage:
        """List the deliveries that match, the newest first; with `stream` only those of one session."""
        scanned = ["true"] if stream is None else ["stream = :stream"]
        if query.before is not None:
            scanned.append("key < :before")
        if query.state not in (None, "delivered") and stream is None:
            scanned.append(NOT_DELIVERED)
        texts = {"scanned": " and ".join(scanned), "conditions": " and ".join(["true", *conditions_of(query)])}
        values = asdict(query) | {"stream": stream, "project": project, "operators": operators}
        values |= {"limit": query.limit + 1, "most": self.most_scanned}
        rows = connection.rows(LIST_OF_PROJECT.format(**texts), **values)
        deliveries = [listed_delivery(connection, row) for row in rows[: query.limit]]
        if len(rows) > query.limit:
            return DeliveryPage(deliveries, deliveries[-1].delivery.key)
        count, last = connection.one(COUNT_SCANNED.format(**texts), **values)
        return DeliveryPage(deliveries, last if count >= self.most_scanned else None)

    @reads
    def find_project_delivery(
        self, connection: Connection, project: str, delivery: int, operators: bool
    ) -> tuple[ListedDelivery, FrozenPayload | None] | None:
        """Return one of them with its payload, which is None before it is made; None if the delivery is unknown."""
        row = connection.row(FIND, project=project, key=delivery, operators=operators)
        if row is None:
            return None
        *listed, stream, size = row
        payload = None if size is None else FrozenPayload(stream, delivery, size)
        return listed_delivery(connection, tuple(listed)), payload

    @reads
    def count_endpoint_deliveries(
        self, connection: Connection, keys: Sequence[int], since_ms: int
    ) -> dict[int, EndpointCounts]:
        """Count the deliveries of these endpoints; those made before `since_ms` count only while they are pending."""
        return {key: EndpointCounts(*connection.one(COUNT_DELIVERIES, endpoint=key, since_ms=since_ms)) for key in keys}


def conditions_of(query: DeliveryFilter) -> list[str]:
    return [condition for field, condition in FILTERS.items() if getattr(query, field) is not None]


def to_delivery(connection: Connection, row: Row) -> EndpointDelivery:
    key, session_id, made_ms, due_ms, notice_id, url, event_type, state, waiting_for = row
    attempts = [Attempt(*attempt) for attempt in connection.rows(SELECT_ATTEMPTS, delivery=key)]
    delivery = Delivery(notice_id, url, event_type, state, attempts, waiting_for)
    return EndpointDelivery(key, session_id, made_ms, due_ms, delivery)


def listed_delivery(connection: Connection, row: Row) -> ListedDelivery:
    width = LISTED_COLUMNS.count(",") + 1
    return ListedDelivery(to_delivery(connection, row[:width]), to_endpoint(*row[width:]))
