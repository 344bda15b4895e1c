"""Adds the webhook notices of a session's start and close to the table `deliveries`, in the writer's transaction."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

import apsw

from voicemem.config.session import STARTED_EVENT
from voicemem.store.delivery_rows import close_event_types, notice_rows
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
    insert into deliveries (stream, endpoint, notice_id, event_type, position, header, payload, state, attempts, due_ms,
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
    """Add the notices of a close; `close_id` is the notice id of its history."""
    event_types = close_event_types(stream, lambda: was_joined(rows.connection, stream))
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
    found = connection.execute(SUBSCRIBERS, (stream.key, stream.project))
    subscribers = [(key, json.loads(subscribed)) for key, subscribed in found]
    connection.executemany(INSERT_DELIVERY, notice_rows(stream, event_types, subscribers, reason, base_id, now_ms))
