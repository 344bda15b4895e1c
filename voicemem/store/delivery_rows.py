"""Notices, deliveries and endpoints as rows: what the tables of all engines hold, and the records made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from voicemem.config.session import CLOSE_EVENTS, HISTORY_EVENT, LEFT_EVENT, parse_config
from voicemem.protocol.types import JsonObject
from voicemem.store.records import ClaimedDelivery, Delivery, Endpoint, EndpointDelivery, SessionHeader, notice_id
from voicemem.store.streams import Stream

DELIVERY_COLUMNS = ", ".join(f"x.{name}" for name in ClaimedDelivery.__struct_fields__ if name != "endpoint")
ENDPOINT_COLUMNS = ", ".join(f"e.{name}" for name in Endpoint.__struct_fields__)
FRONT_ROWS = 200
"""How many of the oldest due deliveries a claim looks at first. When these are not enough, since their receivers are
busy or were taken away, it looks at the oldest of each endpoint."""
WITH_WAITING = """
    with recursive waiting(key) as (
        select min(endpoint) from deliveries where due_ms is not null
        union all
        select (select min(endpoint) from deliveries where due_ms is not null and endpoint > waiting.key)
        from waiting where waiting.key is not null
    )
"""
"""The endpoints that have waiting deliveries: one step through the index for each."""
SELECT_LEASED_BY_OTHERS = """
    select e.url, count(*) from deliveries x join endpoints e on e.key = x.endpoint
    where x.node is not null and x.leased_until_ms > $1 and x.node != $2 group by e.url
"""
"""How many deliveries to each URL other nodes than $2 have under lease at $1."""
LISTED_COLUMNS = "x.key, s.id, x.made_ms, x.due_ms, x.notice_id, e.url, x.event_type, x.state, x.waiting_for"
FILTER_COLUMNS = {"session_id": "s.id", "event_type": "x.event_type", "state": "x.state"}
"""What a filter of deliveries compares with."""
MOST_SCANNED = 5_000
"""Deliveries that one page of a project's list looks at, since they may be of other projects."""
HEADER_DECODER = msgspec.json.Decoder(SessionHeader)
EVENT_TYPES_DECODER = msgspec.json.Decoder(tuple[int, ...])


# Into the tables


class NoticeRow(NamedTuple):
    """A delivery to be; the outbox makes its payload from it."""

    stream: int
    endpoint: int
    notice_id: str
    event_type: int
    position: int
    header: bytes
    now_ms: int


def close_event_types(stream: Stream, was_joined: Callable[[], bool]) -> Sequence[int]:
    """What the close of a session is told by.

    A session that was closed as idle before anybody joined it has no history, metrics or turns to tell of. That it has
    left is told all the same, since its start was.
    """
    return (LEFT_EVENT,) if stream.provisional and not was_joined() else CLOSE_EVENTS


def notice_rows(
    stream: Stream,
    event_types: Iterable[int],
    subscribers: Sequence[tuple[int, Collection[int]]],
    reason: str | None,
    base_id: str,
    now_ms: int,
) -> list[NoticeRow]:
    """A row for each event type and endpoint (key and types) that subscribed to it, in the order of the types."""
    receivers = [(event_type, key) for event_type in event_types for key, types in subscribers if event_type in types]
    if not receivers:
        return []
    config = parse_config(stream.config)
    header = SessionHeader(
        stream.id, config.name, config.channel, config.labels, stream.started_ms, now_ms, reason, config.user_id
    )
    encoded = msgspec.json.encode(header)
    return [
        NoticeRow(stream.key, endpoint, notice_id(base_id, event_type), event_type, stream.position, encoded, now_ms)
        for event_type, endpoint in receivers
    ]


class EndpointValues(NamedTuple):
    """The values of a session's own endpoint, without its secret."""

    url: str
    contents: str
    event_types: str
    """As JSON."""


def endpoint_values(config: JsonObject) -> EndpointValues | None:
    """What `webhook` in the configuration says; None without a URL: then the endpoint is disabled."""
    webhook = config.get("webhook") or {}
    url = webhook.get("url")
    if url is None:
        return None
    event_types = msgspec.json.encode(webhook.get("event_types", [HISTORY_EVENT])).decode()
    return EndpointValues(url, webhook.get("contents", "full"), event_types)


# Out of them


class Places:
    """The places of each URL that are still free, of as many as each has."""

    def __init__(self, each: int, taken: Mapping[str, int], leased: Iterable[tuple[str | bytes, int]]) -> None:
        self.each = each
        self.taken = Counter(taken)
        self.taken.update({to_text(url): count for url, count in leased})

    @property
    def full(self) -> list[str]:
        """The URLs without a free place."""
        return [url for url, count in self.taken.items() if count >= self.each]

    def fill(self, found: Iterable[ClaimedDelivery]) -> list[ClaimedDelivery]:
        """Those of these deliveries that get a place, in their order."""
        filled = []
        for delivery in found:
            if self.taken[delivery.endpoint.url] < self.each:
                self.taken[delivery.endpoint.url] += 1
                filled.append(delivery)
        return filled


def to_claimed_delivery(row: Sequence[Any]) -> ClaimedDelivery:
    """The delivery of a row of both kinds of columns, under the lease that it gets now."""
    key, stream, notice_id, event_type, position, header, payload, attempts, lease, restarted_at, *endpoint = row
    return ClaimedDelivery(
        key=key,
        stream=stream,
        endpoint=to_endpoint(endpoint),
        notice_id=to_text(notice_id),
        event_type=event_type,
        position=position,
        header=HEADER_DECODER.decode(header),
        payload=payload,
        attempts=attempts,
        lease=lease + 1,
        restarted_at=restarted_at,
    )


def to_endpoint(values: Sequence[Any]) -> Endpoint:
    row = dict(zip(Endpoint.__struct_fields__, values, strict=True))
    row["public_only"] = bool(row["public_only"])
    row["event_types"] = EVENT_TYPES_DECODER.decode(row["event_types"])
    return Endpoint(**{name: to_text(value) for name, value in row.items()})


def to_text(value: Any) -> Any:
    """A text that an engine keeps as bytes; other values stay as they are."""
    return value.decode() if isinstance(value, bytes) else value


# Lists of a project


class ListedDelivery(NamedTuple):
    """A delivery of a project's session, and the endpoint that it goes to, which may be the session's own."""

    delivery: EndpointDelivery
    endpoint: Endpoint


class DeliveryPage(NamedTuple):
    """The newest first; `next_before` is the key with which the list goes on, None at its end.

    There may be fewer than were asked for, or none, before the end.
    """

    deliveries: list[ListedDelivery]
    next_before: int | None


class EndpointCounts(NamedTuple):
    """How an endpoint does: its deliveries made since a time that were delivered or failed, and all that wait."""

    delivered: int = 0
    failed: int = 0
    pending: int = 0


def listed_delivery(row: Sequence[Any], attempts: Callable[[int], list[Any]]) -> ListedDelivery:
    """The delivery of a row of `LISTED_COLUMNS` and `ENDPOINT_COLUMNS`; `attempts` reads those of a key."""
    key, session_id, made_ms, due_ms, notice_id, url, event_type, state, waiting_for, *endpoint = row
    delivery = Delivery(to_text(notice_id), to_text(url), event_type, state, attempts(key), waiting_for)
    return ListedDelivery(EndpointDelivery(key, to_text(session_id), made_ms, due_ms, delivery), to_endpoint(endpoint))


def page_of(rows: Sequence[ListedDelivery], limit: int, scanned: int, last_scanned: int | None) -> DeliveryPage:
    """A page of rows, of which there may be one too many, out of so many that were looked at."""
    if len(rows) > limit:
        return DeliveryPage([*rows[:limit]], rows[limit - 1].delivery.key)
    return DeliveryPage([*rows], last_scanned if scanned >= MOST_SCANNED else None)
