"""Reading and writing the rows of streams and producers, for the jobs of the store's parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw
import msgspec

from voicemem.admission import Producer, Stream, due_ms

SESSION = "session"
COLUMNS = ", ".join(Stream.__struct_fields__)

CONFIG = COLUMNS.split(", ").index("config")


def to_stream(row: tuple[Any, ...]) -> Stream:
    values: list[Any] = list(row)
    values[CONFIG] = msgspec.json.decode(values[CONFIG])
    values[-1] = bool(values[-1])
    return Stream(*values)


def one(connection: apsw.Connection, query: str, values: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """The single row of a query that always has one."""
    row: tuple[Any, ...] | None = connection.execute(query, values).fetchone()
    assert row is not None
    return row


def find_stream(connection: apsw.Connection, project: str, session_id: str) -> Stream | None:
    query = f"select {COLUMNS} from streams where project = ? and kind = ? and id = ?"
    row = connection.execute(query, (project, SESSION, session_id)).fetchone()
    return None if row is None else to_stream(row)


def load_stream(connection: apsw.Connection, key: int) -> Stream | None:
    row = connection.execute(f"select {COLUMNS} from streams where key = ?", (key,)).fetchone()
    return None if row is None else to_stream(row)


def insert_stream(connection: apsw.Connection, stream: Stream) -> Stream:
    connection.execute(
        "insert into streams (project, kind, id, state, position, started_ms, config, silent_since_ms, due_ms)"
        " values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            stream.project,
            stream.kind,
            stream.id,
            stream.state,
            stream.position,
            stream.started_ms,
            msgspec.json.encode(stream.config),
            stream.silent_since_ms,
            due_ms(stream),
        ),
    )
    stream.key = connection.last_insert_rowid()
    return stream


def update_stream(connection: apsw.Connection, stream: Stream) -> None:
    connection.execute(
        "update streams set state = ?, position = ?, ended_ms = ?, reason = ?, config = ?, silent_since_ms = ?,"
        " ending_ms = ?, ending_ts = ?, ending_reason = ?, provisional = ?, due_ms = ? where key = ?",
        (
            stream.state,
            stream.position,
            stream.ended_ms,
            stream.reason,
            msgspec.json.encode(stream.config),
            stream.silent_since_ms,
            stream.ending_ms,
            stream.ending_ts,
            stream.ending_reason,
            stream.provisional,
            due_ms(stream),
            stream.key,
        ),
    )


def load_producer(connection: apsw.Connection, key: int, name: str) -> Producer:
    row = connection.execute(
        "select epoch, next_seq, unsequenced, ended from producers where stream = ? and name = ?", (key, name)
    ).fetchone()
    if row is None:
        return Producer(name)
    epoch, next_seq, unsequenced, ended = row
    return Producer(name, epoch, next_seq, bool(unsequenced), bool(ended))


def save_producer(connection: apsw.Connection, key: int, producer: Producer) -> None:
    connection.execute(
        "insert or replace into producers values (?, ?, ?, ?, ?, ?)",
        (key, producer.name, producer.epoch, producer.next_seq, producer.unsequenced, producer.ended),
    )


def insert_rows(connection: apsw.Connection, rows: Iterable[tuple[Any, ...]]) -> None:
    """Journal rows: stream, position, producer, seq, received_ms, payload."""
    connection.executemany("insert into journal values (?, ?, ?, ?, ?, ?)", rows)


def append_own(connection: apsw.Connection, stream: Stream, now_ms: int, event: dict[str, Any] | bytes) -> None:
    """Journal an event of the server's own; the stream's row is still to be updated."""
    stream.position += 1
    payload = event if isinstance(event, bytes) else msgspec.json.encode(event)
    insert_rows(connection, [(stream.key, stream.position, None, None, now_ms, payload)])
