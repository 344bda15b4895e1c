"""The outbox: deliveries on their way to the receivers of webhooks, with leases, frozen bodies and attempts."""

import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from voicemem.config import session as config
from voicemem.errors import StoreUnavailable
from voicemem.store.database import Connection, Port, Row, columns, insert, writes
from voicemem.store.streams import USER_KIND, Stream

ANY_NUMBER = 2**31
NOT_ERASED = "(select s.state from streams s where s.key = x.stream) <> 'erased'"
"""True for deliveries (x) of sessions that are not erased: an erased one's stay a while, and are not sent."""
CLAIMS = "claims of deliveries"
"""The lock of a claim: the places of a URL are counted over all nodes."""
FRONT_ROWS = 200
"""The oldest due deliveries that a claim reads, after a few. If these are not enough, since their receivers are busy or
were removed, it reads the oldest of each endpoint."""


class Attempt(NamedTuple):
    """One logged attempt at a delivery. `excerpt` is the beginning of the answer."""

    started_ms: int
    duration_ms: int
    status: int | None
    error: str | None
    excerpt: str


class Endpoint(Struct, frozen=True):
    """A receiver of webhooks. A session's own has a `stream`, a project's a `project`, the operator's neither."""

    key: int
    stream: int | None
    url: str
    secret: str | None
    contents: config.Contents
    public_only: bool
    """True for a URL that came through the API: its address must be a public one."""
    disabled_ms: int | None
    id: str | None = None
    """Only a project's has one."""
    project: str | None = None
    description: str = ""
    event_types: tuple[int, ...] = (config.HISTORY_EVENT,)
    include: tuple[config.Included, ...] = ()
    created_ms: int = 0
    old_secret: str | None = None
    """After a rotation: signs alongside the new one until `old_secret_until_ms`."""
    old_secret_until_ms: int | None = None
    failing_since_ms: int | None = None
    disabled_reason: str | None = None
    """`request` (its owner disabled it), `gone` (it answered 410) or `failing`."""


class SessionHeader(Struct, frozen=True):
    """The session in a webhook event, as it was when the delivery was made.

    `stopped_ms` is the time of the close, or of the start or reopening.
    """

    session_id: str
    name: str | None
    channel: str | None
    labels: dict[str, str]
    started_ms: int
    stopped_ms: int
    reason: str | None = None
    user_id: str | None = None
    recording: str | None = None
    memories: tuple[str, ...] = ()
    """The ids of memories of `project` that were changed."""
    project: str = ""


class FrozenPayload(NamedTuple):
    """The payload of a delivery's body, which is read in parts."""

    stream: int
    delivery: int
    size: int
    is_new: bool = False
    """True from the call that froze it."""


class PayloadPending(Exception):
    """A webhook event cannot be made yet; the argument says what it waits for, as in `waiting_for`."""


class ClaimedDelivery(Struct, frozen=True):
    """A webhook event about a session on its way to one endpoint."""

    key: int
    stream: int
    endpoint: Endpoint
    notice_id: str
    event_type: int
    position: int
    """The body is made from the memory at this position of the journal."""
    header: SessionHeader
    payload_bytes: int | None
    """The size of the body's payload, frozen before the first attempt; None before that."""
    attempts: int
    lease: int
    """Raised by every claim; a finish counts only under the lease of its own claim."""
    restarted_at: int = 0
    """The number of attempts when it was last sent again by hand."""

    @property
    def payload(self) -> FrozenPayload | None:
        return None if self.payload_bytes is None else FrozenPayload(self.stream, self.key, self.payload_bytes)


ENDPOINT_FIELDS = Endpoint.__struct_fields__
ENDPOINT_COLUMNS = columns(ENDPOINT_FIELDS, "e.")
EVENT_TYPES_DECODER = msgspec.json.Decoder(tuple[int, ...])
INCLUDE_DECODER = msgspec.json.Decoder(tuple[config.Included, ...])
HEADER_DECODER = msgspec.json.Decoder(SessionHeader)
DELIVERY_FIELDS = tuple(name for name in ClaimedDelivery.__struct_fields__ if name != "endpoint")
DELIVERY_COLUMNS = columns(DELIVERY_FIELDS, "x.")
SELECT_LEASED_BY_OTHERS = """
    select e.url, count(*) from deliveries x join endpoints e on e.key = x.endpoint
    where x.node is not null and x.leased_until_ms > :now_ms and x.node <> :node group by e.url
"""
OLDEST_DUE = "(select key from deliveries where due_ms <= :now_ms order by due_ms, key limit :most) c"
IS_CANDIDATE = "x.key = c.key"
WITH_WAITING = """
    with recursive waiting(endpoint) as (
        select min(endpoint) from deliveries where due_ms is not null
        union all
        select (select min(endpoint) from deliveries where due_ms is not null and endpoint > waiting.endpoint)
        from waiting where waiting.endpoint is not null
    )
"""
"""The endpoints that have waiting deliveries: one step through the index for each."""
HAS_OTHERS = f"""
    {WITH_WAITING} select 1 from waiting join endpoints e on e.key = waiting.endpoint
    where e.disabled_ms is null and not (e.url in :full) limit 1
"""
OLDEST_OF_ENDPOINT = """
    select key from deliveries where endpoint = waiting.endpoint and due_ms <= :now_ms
    order by due_ms, key limit :most
"""
OLDEST_OF_EACH = {
    "sqlite": ("waiting", f"x.key in ({OLDEST_OF_ENDPOINT})"),
    "postgresql": (f"waiting cross join lateral ({OLDEST_OF_ENDPOINT}) c", IS_CANDIDATE),
}
"""By engine: SQLite has no lateral join, and PostgreSQL would read each delivery for each endpoint."""
IS_NEXT = f"""
    (x.event_type not in {config.ORDERED_EVENTS} or not exists (select 1 from deliveries y where y.stream = x.stream
    and y.endpoint = x.endpoint and y.event_type = x.event_type and y.key < x.key and y.state = 'pending'))
"""
"""True for deliveries (x) that wait for no other of their stream."""
SELECT_DUE = f"""
    select {DELIVERY_COLUMNS}, {ENDPOINT_COLUMNS} from {{candidates}} cross join deliveries x
    join endpoints e on e.key = x.endpoint
    where {{is_candidate}} and x.due_ms <= :now_ms and x.leased_until_ms <= :now_ms and e.disabled_ms is null
    and not (e.url in :full) and {NOT_ERASED} and {IS_NEXT} order by x.due_ms, x.key limit :limit
    for no key update of x skip locked
"""
COUNT_DUE = "select count(*) from (select 1 from deliveries where due_ms <= :now_ms limit :most) c"
LEASE_DELIVERIES = """
    update deliveries set lease = lease + 1, leased_until_ms = :until_ms, due_ms = :until_ms, node = :node
    where key in :keys
"""
IS_UNMADE = f"key = :key and lease = :lease and payload_bytes is null and {NOT_ERASED}"
SELECT_UNFROZEN = f"select 1 from deliveries x where {IS_UNMADE} for no key update"
FREEZE_PAYLOAD = f"update deliveries as x set payload_bytes = :size, waiting_for = null where {IS_UNMADE}"
SELECT_FROZEN = (
    f"select payload_bytes from deliveries x where key = :key and payload_bytes is not null and {NOT_ERASED}"
)
DELETE_PARTS = """
    delete from payloads where stream = :stream and delivery = :delivery returning octet_length(payload)
"""
INSERT_PART = insert("payloads", ["key", "stream", "delivery", "payload"])
SELECT_PART = f"""
    select p.key, p.payload from payloads p join deliveries x on x.key = p.delivery
    where p.stream = :stream and p.delivery = :delivery and p.key > :after and {NOT_ERASED} order by p.key limit 1
"""
FINISH_DELIVERY = f"""
    update deliveries as x set state = case when state = 'failed' and :state = 'pending' then 'failed' else :state end,
    due_ms = case when state = 'failed' then null else cast(:due_ms as bigint) end, attempts = attempts + 1,
    lease = lease + 1, leased_until_ms = 0, node = null where key = :key and lease = :lease and {NOT_ERASED}
"""
"""A delivery that was given up in between (its endpoint was disabled) is not tried again, but a success counts."""
POSTPONE_DELIVERY = """
    update deliveries set waiting_for = :waiting_for, due_ms = :due_ms, leased_until_ms = 0, node = null,
    lease = lease + 1 where key = :key and lease = :lease and due_ms is not null
"""
INSERT_ATTEMPT = insert("attempts", ["delivery", "number", *Attempt._fields])
CLEAR_FAILING_SINCE = "update endpoints set failing_since_ms = null where key = :key and failing_since_ms is not null"
SET_FAILING_SINCE = """
    update endpoints set failing_since_ms = :started_ms
    where key = :key and failing_since_ms is null and stream is null
"""
SELECT_NEXT_DUE_MS = f"""
    select x.due_ms from deliveries x join endpoints e on e.key = x.endpoint
    where x.due_ms is not null and e.disabled_ms is null and {NOT_ERASED} order by x.due_ms limit 1
"""
SUBSCRIBERS = """
    select key, event_types from endpoints where disabled_ms is null and stream = :stream
    union all
    select key, event_types from endpoints where disabled_ms is null and project = :project
    union all
    select key, '[103]' from endpoints where disabled_ms is null and stream is null and project is null
"""
"""Endpoints that get a session's events: its own, its project's, and the operator's, which gets histories only."""
INSERT_DELIVERY = """
    insert into deliveries (key, stream, endpoint, notice_id, event_type, position, header, state, attempts, due_ms,
    lease, leased_until_ms, made_ms) values (:key, :stream, :endpoint, :notice_id, :event_type, :position, :header,
    'pending', 0, :now_ms, 0, 0, :now_ms)
"""
SELECT_UNMADE = """
    select key, header from deliveries where stream = :stream and endpoint = :endpoint and event_type = :event_type
    and state = 'pending' and payload_bytes is null and leased_until_ms <= :now_ms for no key update
"""
EXTEND_DELIVERY = "update deliveries set position = :position, header = :header where key = :key"
MAX_CHANGED = 1_000
"""Memories in one webhook event."""
SELECT_PAYLOAD_BEFORE = """
    select stream, key, payload_bytes from deliveries where stream = :stream and endpoint = :endpoint
    and event_type = :event_type and key < :key and payload_bytes is not null order by key desc limit 1
"""
SELECT_SUBSCRIBED = f"""
    select distinct project from endpoints
    where project is not null and disabled_ms is null and event_types like '%{config.COMPLETE_TURNS_EVENT}%'
"""
SELECT_WAS_JOINED = """
    select 1 where exists (select 1 from producers where stream = :stream)
    or exists (select 1 from journal where stream = :stream and producer is not null)
"""


class Outbox(Port):
    """Deliveries: webhook events on their way to endpoints.

    The journal's transactions make them: at a start or reopening (event type 101) and at a close (102, 103, 111, 112;
    only 102 at the idle close of a session that no one joined), one for each endpoint that subscribed to it and is not
    disabled: the session's own, its project's, and the operator's, which gets 103 only. Those of complete turns (1001)
    are added while the call runs too, and those of memories (1002) when these are written. A delivery is `pending` with
    a time at which it is due, then `delivered` or `failed`.
    """

    async def claim_deliveries(
        self, now_ms: int, lease_ms: int, taken: Mapping[str, int], limit: int, node: str = "", places: int = ANY_NUMBER
    ) -> list[ClaimedDelivery]:
        """Lease due deliveries to a node, the longest due first; fewer than `limit` if there are no more.

        Each URL has a number of places over all nodes. Places that other nodes have leased are taken, and so are those
        in `taken`: the node's own, and those that it leaves free. However many nodes claim at once, no place is given
        twice.

        Until its lease is over, or its node is retired, a delivery is claimed by no other node. Deliveries of erased
        sessions and disabled endpoints are not claimed. A receiver that is down must not delay the claims of others,
        however many deliveries wait for it.
        """

        def job(connection: Connection) -> list[ClaimedDelivery]:
            connection.hold_node(node)
            connection.lock(CLAIMS)
            leased = Counter(taken)
            if not self.database.is_exclusive:
                leased.update(dict(connection.rows(SELECT_LEASED_BY_OTHERS, now_ms=now_ms, node=node)))
            claimed, is_more = list[ClaimedDelivery](), True
            while is_more and len(claimed) < limit:
                full = [url for url, count in leased.items() if count >= places]
                rows, keys = select_due(connection, self.database.engine, now_ms, full, limit - len(claimed)), []
                is_more = len(rows) == limit - len(claimed)
                for delivery in map(to_claimed_delivery, rows):
                    if leased[delivery.endpoint.url] < places:
                        leased[delivery.endpoint.url] += 1
                        claimed.append(delivery)
                        keys.append(delivery.key)
                if keys:
                    connection.execute(LEASE_DELIVERIES, until_ms=now_ms + lease_ms, node=node, keys=keys)
            return claimed

        is_shared = not self.database.is_exclusive  # to see what others hold takes a commit, and a lock
        if is_shared and await self.database.read(lambda one: one.one(COUNT_DUE, now_ms=now_ms, most=1)) == (0,):
            return []
        return await self.database.write(job)

    @writes
    def freeze_payload(
        self,
        connection: Connection,
        delivery: ClaimedDelivery,
        part: bytes,
        *,
        before: int = 0,
        is_last: bool = True,
    ) -> FrozenPayload | None:
        """Store a part of the payload of a delivery's body, and freeze it with the last, unless it is frozen.

        There are `before` bytes of it already. Return the frozen payload; None if it is not complete, another claim
        makes it, or the session was erased.
        """
        key, stream, size = delivery.key, delivery.stream, before + len(part)
        claim = {"key": key, "lease": delivery.lease}
        if is_last:
            is_new = connection.execute(FREEZE_PAYLOAD, size=size, **claim) > 0
        else:
            is_new = connection.row(SELECT_UNFROZEN, **claim) is not None
        if not is_new:
            frozen = connection.row(SELECT_FROZEN, key=key)
            return None if frozen is None else FrozenPayload(stream, key, frozen[0])
        if not before and delivery.lease > 1:  # an earlier claim may have left some
            left = connection.rows(DELETE_PARTS, stream=stream, delivery=key)
            connection.streams.count_stored(stream, -sum(size for (size,) in left))
        connection.execute(INSERT_PART, key=connection.draw_key(), stream=stream, delivery=key, payload=part)
        connection.streams.count_stored(stream, len(part))
        return FrozenPayload(stream, key, size, is_new=True) if is_last else None

    async def parts_of(self, payload: FrozenPayload) -> AsyncGenerator[bytes, None]:
        """Yield the parts of a frozen payload. Raises `StoreUnavailable`, also if the session is erased meanwhile."""
        after = size = 0
        while size < payload.size:
            row = await self.database.row(SELECT_PART, stream=payload.stream, delivery=payload.delivery, after=after)
            if row is None:
                raise StoreUnavailable
            after, part = row
            size += len(part)
            yield part

    @writes
    def finish_delivery(
        self,
        connection: Connection,
        delivery: ClaimedDelivery,
        attempt: Attempt,
        state: Literal["pending", "delivered", "failed"],
        due_ms: int | None,
    ) -> bool:
        """Log an attempt, set the next state, and end the lease; False, with nothing changed, if the lease was lost.

        A delivery that was failed in between (its endpoint was disabled) is not tried again, but `delivered` counts.
        Also keeps `failing_since_ms` of an endpoint that is not a session's own: the first failed attempt since the
        last success.
        """
        values = {"key": delivery.key, "lease": delivery.lease}
        if not connection.execute(FINISH_DELIVERY, state=state, due_ms=due_ms, **values):
            return False
        number = delivery.attempts + 1
        connection.execute(INSERT_ATTEMPT, delivery=delivery.key, number=number, **attempt._asdict())
        if state == "delivered":
            connection.execute(CLEAR_FAILING_SINCE, key=delivery.endpoint.key)
        else:
            connection.execute(SET_FAILING_SINCE, key=delivery.endpoint.key, started_ms=attempt.started_ms)
        return True

    async def postpone_delivery(self, delivery: ClaimedDelivery, waiting_for: str, due_ms: int) -> None:
        """End the lease without an attempt, and record what the delivery waits for; it is due again at `due_ms`.

        Does nothing when the lease was lost. `freeze_payload` and `Quarantine.release` clear the note.
        """
        values = {"key": delivery.key, "lease": delivery.lease, "waiting_for": waiting_for, "due_ms": due_ms}
        await self.database.execute(POSTPONE_DELIVERY, **values)

    async def list_turn_subscribers(self) -> set[str]:
        """Return the projects that have a receiver of complete turns; a session's own is in its configuration."""
        return {project for (project,) in await self.database.rows(SELECT_SUBSCRIBED)}

    @writes
    def offer_turns(self, connection: Connection, key: int, now_ms: int) -> None:
        """Add deliveries of a running session's complete turns, where none waits that will have them."""
        stream = connection.streams.stream(key)
        if stream is not None and stream.state == "running":
            enqueue(connection, stream, (config.COMPLETE_TURNS_EVENT,), None, secrets.token_hex(16), now_ms)

    async def payload_before(self, delivery: ClaimedDelivery) -> FrozenPayload | None:
        """Find the last payload of the same type, to the same endpoint, about the same stream."""
        values = {"stream": delivery.stream, "endpoint": delivery.endpoint.key, "event_type": delivery.event_type}
        return await self.database.find(FrozenPayload, SELECT_PAYLOAD_BEFORE, key=delivery.key, **values)

    async def next_delivery_ms(self) -> int | None:
        """Return when the next delivery is due, or its lease ends; None when none waits."""
        row = await self.database.read(lambda connection: connection.row(SELECT_NEXT_DUE_MS))
        return None if row is None else int(row[0])


def select_due(connection: Connection, engine: str, now_ms: int, full: Sequence[str], limit: int) -> list[Row]:
    """Return the deliveries that are due at URLs that are not full, the oldest first, locked.

    Thousands may be due at one receiver that is down. The oldest few are usually enough; more are read, and then those
    of all endpoints, only if these wait for busy receivers, so that one of them cannot delay the others.
    """
    values: dict[str, Any] = {"now_ms": now_ms, "full": list(full), "limit": limit}
    sql = SELECT_DUE.format(candidates=OLDEST_DUE, is_candidate=IS_CANDIDATE)
    for most in (2 * limit, FRONT_ROWS):
        rows = connection.rows(sql, most=most, **values)
        if len(rows) == limit or connection.one(COUNT_DUE, now_ms=now_ms, most=most) < (most,):
            return rows
        if full and connection.row(HAS_OTHERS, full=list(full)) is None:
            return rows
    candidates, is_candidate = OLDEST_OF_EACH[engine]
    sql = WITH_WAITING + SELECT_DUE.format(candidates=candidates, is_candidate=is_candidate)
    return connection.rows(sql, most=max(FRONT_ROWS, limit), **values)


def to_claimed_delivery(row: Row) -> ClaimedDelivery:
    width = len(DELIVERY_FIELDS)
    values = dict(zip(DELIVERY_FIELDS, row[:width], strict=True))
    values |= {"header": HEADER_DECODER.decode(values["header"]), "lease": values["lease"] + 1}
    return ClaimedDelivery(endpoint=to_endpoint(*row[width:]), **values)


def to_endpoint(*values: Any) -> Endpoint:
    row = dict(zip(ENDPOINT_FIELDS, values, strict=True))
    row["public_only"] = bool(row["public_only"])
    row["event_types"] = EVENT_TYPES_DECODER.decode(row["event_types"])
    row["include"] = INCLUDE_DECODER.decode(row["include"])
    return Endpoint(**row)


# What the journal's transactions add


def enqueue_start(connection: Connection, stream: Stream, now_ms: int) -> None:
    """Add the deliveries that say that a session has started, or was reopened."""
    enqueue(connection, stream, (config.STARTED_EVENT,), None, secrets.token_hex(16), now_ms)


def enqueue_close(connection: Connection, stream: Stream, close_id: str, now_ms: int) -> None:
    """Add the deliveries of a close; `close_id` is the id of its history.

    A session that was closed as idle before anyone joined it has no history, metrics or turns. Its end (102) is sent
    all the same, since its start was.
    """
    was_joined = not stream.provisional or connection.row(SELECT_WAS_JOINED, stream=stream.key) is not None
    events = (*config.CLOSE_EVENTS, config.COMPLETE_TURNS_EVENT) if was_joined else (config.LEFT_EVENT,)
    enqueue(connection, stream, events, stream.reason, close_id, now_ms)


def enqueue_memories(connection: Connection, stream: Stream, ids: Sequence[str], now_ms: int) -> None:
    """Add the deliveries that say which memories in a stream's journal have changed."""
    if ids:
        enqueue(connection, stream, (config.MEMORIES_EVENT,), None, secrets.token_hex(16), now_ms, tuple(ids))


def enqueue(
    connection: Connection,
    stream: Stream,
    event_types: Iterable[int],
    reason: str | None,
    base_id: str,
    now_ms: int,
    memories: tuple[str, ...] = (),
) -> None:
    """Add a row for each endpoint and event type that it subscribed to; the outbox makes the payload from the row."""
    subscribers = [
        (key, EVENT_TYPES_DECODER.decode(subscribed))
        for key, subscribed in connection.rows(SUBSCRIBERS, stream=stream.key, project=stream.project)
    ]
    receivers = [(event_type, key) for event_type in event_types for key, types in subscribers if event_type in types]
    if not receivers:
        return
    settings = stream.config
    about = settings.get("name"), settings.get("channel"), settings.get("labels", {}), stream.started_ms
    ended = stream.ended_ms or now_ms, reason, stream.id if stream.kind == USER_KIND else settings.get("user_id")
    project = stream.project if memories else ""
    header = SessionHeader(stream.id, *about, *ended, settings.get("recording"), memories, project)
    common: dict[str, Any] = {"stream": stream.key, "position": stream.position, "now_ms": now_ms}
    common["header"] = msgspec.json.encode(header)
    rows = []
    for event_type, endpoint in receivers:
        if event_type in config.ORDERED_EVENTS and extend_waiting(connection, common, header, event_type, endpoint):
            continue
        notice_id = base_id if event_type == config.HISTORY_EVENT else f"{base_id}-{event_type}"
        own = {"key": connection.draw_key(), "endpoint": endpoint, "event_type": event_type, "notice_id": notice_id}
        rows.append(common | own)
    connection.many(INSERT_DELIVERY, rows)


def extend_waiting(
    connection: Connection, common: dict[str, Any], header: SessionHeader, event_type: int, endpoint: int
) -> bool:
    """Extend a pending delivery without a payload instead of adding another, however long a receiver is away."""
    about = {"stream": common["stream"], "now_ms": common["now_ms"], "endpoint": endpoint, "event_type": event_type}
    for key, waiting in connection.rows(SELECT_UNMADE, **about):
        before = HEADER_DECODER.decode(waiting).memories
        memories = tuple(dict.fromkeys((*before, *header.memories)))
        if len(memories) <= MAX_CHANGED:
            changed = msgspec.json.encode(replace(header, memories=memories))
            connection.execute(EXTEND_DELIVERY, key=key, position=common["position"], header=changed)
            return True
    return False
