"""Adds the webhook notices of a session's start and close to the table `exports`, in the writer's transaction."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

import apsw
import msgspec

from voicemem.config.session import CLOSE_EVENTS, LEFT_EVENT, STARTED_EVENT, parse_config
from voicemem.store.records import SessionHeader, notice_id
from voicemem.store.sqlite.journal.row_cache import RowCache
from voicemem.store.streams import Stream

SUBSCRIBERS = """
    select key, event_types from endpoints where disabled_ms is null and stream = ?1
    union all
    select key, event_types from endpoints where disabled_ms is null and project = ?2
    union all
    select key, '[103]' from endpoints indexed by endpoints_of_operator
    where disabled_ms is null and stream is null and project is null
"""
"""Endpoints that get a session's notices: its own, its project's, and the operator's, which gets histories only."""
INSERT_DELIVERY = """
    insert into exports (stream, endpoint, notice_id, event_type, position, closing, payload, state, attempts, due_ms,
    lease, leased_until_ms, made_ms) values (?, ?, ?, ?, ?, ?, null, 'pending', 0, ?7, 0, 0, ?7)
"""
SELECT_WAS_JOINED = """
    select 1 from producers where stream = ?1
    union all
    select 1 from journal where stream = ?1 and producer is not null
    limit 1
"""


def enqueue_start(rows: RowCache, stream: Stream, now_ms: int) -> None:
    """Add the notices that a session has started, or was reopened."""
    enqueue(rows.connection, stream, (STARTED_EVENT,), None, secrets.token_hex(16), now_ms)


def enqueue_close(rows: RowCache, stream: Stream, close_id: str, now_ms: int) -> None:
    """Add the notices of a close; `close_id` is the notice id of its history.

    A session that was closed as idle before anybody joined it has no history, metrics or turns to tell of. That it has
    left is told all the same, since its start was.
    """
    unjoined = stream.provisional and not was_joined(rows.connection, stream)
    event_types = (LEFT_EVENT,) if unjoined else CLOSE_EVENTS
    enqueue(rows.connection, stream, event_types, stream.reason, close_id, now_ms)


def was_joined(connection: apsw.Connection, stream: Stream) -> bool:
    """Whether a producer ever opened the session, or anything in its journal came from outside."""
    return connection.execute(SELECT_WAS_JOINED, (stream.key,)).fetchone() is not None


def enqueue(
    connection: apsw.Connection,
    stream: Stream,
    event_types: Sequence[int],
    reason: str | None,
    base_id: str,
    now_ms: int,
) -> None:
    """Add a row for each endpoint and event type that it subscribed to; the outbox makes the payload from the row."""
    receivers = subscriptions(connection, stream, event_types)
    if not receivers:
        return
    config = parse_config(stream.config)
    header = SessionHeader(stream.id, config.name, config.channel, config.labels, stream.started_ms, now_ms, reason)
    encoded = msgspec.json.encode(header)
    connection.executemany(
        INSERT_DELIVERY,
        [
            (stream.key, endpoint, notice_id(base_id, event_type), event_type, stream.position, encoded, now_ms)
            for event_type, endpoint in receivers
        ],
    )


def subscriptions(connection: apsw.Connection, stream: Stream, event_types: Sequence[int]) -> list[tuple[int, int]]:
    """Event types and the keys of endpoints that subscribed to them, in the order of the types."""
    rows = connection.execute(SUBSCRIBERS, (stream.key, stream.project))
    endpoints = [(key, json.loads(subscribed)) for key, subscribed in rows]
    return [(event_type, key) for event_type in event_types for key, types in endpoints if event_type in types]
