"""Which endpoints hear of a session's start and close: rows of `exports`, inside the writer's transaction."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

import apsw
import msgspec

from voicemem import config
from voicemem.admission import Stream
from voicemem.notices import AT_CLOSE, LEFT, STARTED, about, left_payload, notice_id, started_payload
from voicemem.store.base import Closing
from voicemem.store.sqlite.rows import Rows

LISTENING = """
    select key, event_types from endpoints where disabled_ms is null and stream = ?1
    union all
    select key, event_types from endpoints where disabled_ms is null and project = ?2
    union all
    select key, '[103]' from endpoints indexed by endpoints_of_operator
    where disabled_ms is null and stream is null and project is null
"""
"""Endpoints that hear of a session: its own, its project's, and the operator's, which hears of histories only."""
INSERT = """
    insert into exports (stream, endpoint, notice_id, event_type, position, closing, payload, state, attempts, due_ms,
    lease, leased_until_ms, made_ms) values (?, ?, ?, ?, ?, ?, ?, 'pending', 0, ?8, 0, 0, ?8)
"""


def tell_start(rows: Rows, stream: Stream, now_ms: int) -> None:
    """Make the notices that a session has started, or runs again."""
    wanted = listening(rows.connection, stream, (STARTED,))
    if not wanted:
        return
    closing = closing_of(stream, now_ms)
    add(rows.connection, stream, closing, wanted, {STARTED: started_payload(told(closing))}, secrets.token_hex(16))


def tell_close(rows: Rows, stream: Stream, of_close: str, now_ms: int) -> None:
    """Make the notices of a close; `of_close` is the id of its history's."""
    wanted = listening(rows.connection, stream, AT_CLOSE)
    if not wanted:
        return
    closing = closing_of(stream, now_ms)
    add(rows.connection, stream, closing, wanted, {LEFT: left_payload(told(closing), now_ms, stream.reason)}, of_close)


def listening(connection: apsw.Connection, stream: Stream, event_types: Sequence[int]) -> list[tuple[int, int]]:
    """Event types and keys of the endpoints that want them, in the order of the types."""
    found = [(key, json.loads(text)) for key, text in connection.execute(LISTENING, (stream.key, stream.project))]
    return [(event_type, key) for event_type in event_types for key, subscribed in found if event_type in subscribed]


def closing_of(stream: Stream, now_ms: int) -> Closing:
    settings = config.read(stream.config)
    return Closing(stream.id, settings.name, settings.channel, settings.labels, stream.started_ms, now_ms)


def told(closing: Closing) -> dict[str, object]:
    return about(closing.session_id, closing.name, closing.channel, closing.labels, closing.started_ms)


def add(
    connection: apsw.Connection,
    stream: Stream,
    closing: Closing,
    wanted: Sequence[tuple[int, int]],
    payloads: dict[int, bytes],
    base_id: str,
) -> None:
    """A row for each notice; `payloads` are those that need no memory, which are frozen at once."""
    encoded, now_ms = msgspec.json.encode(closing), closing.stopped_ms
    connection.executemany(
        INSERT,
        [
            (
                stream.key,
                endpoint,
                notice_id(base_id, event_type),
                event_type,
                stream.position,
                encoded,
                payloads.get(event_type),
                now_ms,
            )
            for event_type, endpoint in wanted
        ],
    )
