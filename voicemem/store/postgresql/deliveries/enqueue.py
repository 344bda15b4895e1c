"""Adds the webhook notices of a session's start and close to the table `deliveries`, in the same transaction."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from voicemem.config.session import STARTED_EVENT
from voicemem.store.delivery_rows import close_event_types, notice_rows
from voicemem.store.keys import KeySource
from voicemem.store.postgresql.database.connection import Session
from voicemem.store.streams import Stream

SUBSCRIBERS = """
    select key, event_types from endpoints where disabled_ms is null and stream = $1
    union all
    select key, event_types from endpoints where disabled_ms is null and project = $2
    union all
    select key, '[103]' from endpoints where disabled_ms is null and stream is null and project is null
"""
"""Endpoints that get a session's notices: its own, its project's, and the operator's, which gets histories only."""
INSERT_DELIVERY = """
    insert into deliveries (key, stream, endpoint, notice_id, event_type, position, header, payload, state, attempts,
    due_ms, lease, leased_until_ms, made_ms) values ($1, $2, $3, $4, $5, $6, $7, null, 'pending', 0, $8, 0, 0, $8)
"""
SELECT_WAS_JOINED = """
    select 1 from producers where stream = $1
    union all
    select 1 from journal where stream = $1 and producer is not null
    limit 1
"""


def enqueue_start(session: Session, keys: KeySource, stream: Stream, now_ms: int) -> None:
    """Add the notices that a session has started, or was reopened."""
    enqueue(session, keys, stream, (STARTED_EVENT,), None, secrets.token_hex(16), now_ms)


def enqueue_close(session: Session, keys: KeySource, stream: Stream, close_id: str, now_ms: int) -> None:
    """Add the notices of a close; `close_id` is the notice id of its history."""
    event_types = close_event_types(stream, lambda: session.row(SELECT_WAS_JOINED, (stream.key,)) is not None)
    enqueue(session, keys, stream, event_types, stream.reason, close_id, now_ms)


def enqueue(
    session: Session,
    keys: KeySource,
    stream: Stream,
    event_types: Sequence[int],
    reason: str | None,
    base_id: str,
    now_ms: int,
) -> None:
    """Add a row for each endpoint and event type that it subscribed to; the outbox makes the payload from the row."""
    found = session.rows(SUBSCRIBERS, (stream.key, stream.project))
    subscribers = [(key, msgspec.json.decode(subscribed)) for key, subscribed in found]
    for row in notice_rows(stream, event_types, subscribers, reason, base_id, now_ms):
        session.execute(INSERT_DELIVERY, (keys.draw(), *row))
