"""The journal's port on SQLite: sessions, producers, entries, snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import apsw
import msgspec

from voicemem import config
from voicemem.admission import Ending, Offer, Stream, due_close, due_ms, may_reopen
from voicemem.config import Settled, merged
from voicemem.errors import Refused
from voicemem.exports import HISTORY_EVENT
from voicemem.store.base import Appended, Closing, Opened, Row, Snapshot, StreamFilter
from voicemem.store.sqlite.append import Append, apply_settled, reopen, save_secrets
from voicemem.store.sqlite.database import Database
from voicemem.store.sqlite.rows import (
    COLUMNS,
    SESSION,
    append_own,
    find_stream,
    insert_stream,
    load_producer,
    load_stream,
    one,
    save_producer,
    to_stream,
    update_stream,
)
from voicemem.wire import SORTED

PAGE_BYTES = 4 * 1024 * 1024
"""Payloads read at once: a journal can be much larger than memory allows."""


class SqliteJournal:
    """Streams and their entries; the methods are documented in `voicemem.store.base.Journal`."""

    database: Database

    async def create(
        self, project: str, session_id: str, settled: Settled, now_ms: int
    ) -> tuple[Stream, Literal["created", "same", "different"]]:
        def job(connection: apsw.Connection) -> tuple[Stream, Literal["created", "same", "different"]]:
            stream = find_stream(connection, project, session_id)
            if stream is None:
                return new_stream(connection, project, session_id, settled, now_ms), "created"
            refuse_erased(stream)
            secrets = dict(connection.execute("select name, value from secrets where stream = ?", (stream.key,)))
            given = [merged({}, settled.public), {name: s for name, s in settled.secrets.items() if s is not None}]
            same = SORTED.encode([stream.config, secrets]) == SORTED.encode(given)  # in Python 1 == true
            return stream, "same" if same else "different"

        return await self.database.write(job)

    async def open(
        self, project: str, session_id: str, producer: str, settled: Settled, from_seq: int | None, now_ms: int
    ) -> Opened:
        def job(connection: apsw.Connection) -> Opened:
            stream = find_stream(connection, project, session_id)
            created = stream is None
            if stream is None:
                stream = new_stream(connection, project, session_id, settled, now_ms)
            refuse_erased(stream)
            reopened = may_reopen(stream, now_ms)
            if reopened:
                reopen(connection, stream, now_ms)
            lease = load_producer(connection, stream.key, producer)
            lease.epoch += 1
            if from_seq is not None and from_seq > lease.next_seq and stream.state == "running":
                gap = {"type": "session.gap", "producer": producer, "from_seq": lease.next_seq, "to_seq": from_seq - 1}
                append_own(connection, stream, now_ms, gap)
                lease.next_seq = from_seq
            if stream.state == "running":
                stream.silent_since_ms = None
            save_producer(connection, stream.key, lease)
            update_stream(connection, stream)
            return Opened(stream, lease.epoch, lease.next_seq, created, reopened)

        return await self.database.write(job)

    async def append(
        self, key: int, producer: str, epoch: int | None, offers: Sequence[Offer], now_ms: int
    ) -> Appended:
        return await self.database.write(
            lambda connection: Append(connection, key, producer, epoch, offers, now_ms).run()
        )

    async def silence(self, key: int, now_ms: int | None) -> None:
        def job(connection: apsw.Connection) -> None:
            stream = load_stream(connection, key)
            if stream is not None and stream.state == "running":
                stream.silent_since_ms = now_ms
                update_stream(connection, stream)

        await self.database.write(job)

    async def restart(self, now_ms: int) -> None:
        def job(connection: apsw.Connection) -> None:
            running = connection.execute(f"select {COLUMNS} from streams where state = 'running'")
            for row in running.fetchall():
                stream = to_stream(row)
                stream.silent_since_ms = now_ms
                due = now_ms if stream.ending is not None else due_ms(stream)
                connection.execute(
                    "update streams set silent_since_ms = ?, due_ms = ? where key = ?", (now_ms, due, stream.key)
                )

        await self.database.write(job)

    async def change(self, key: int, settled: Settled, payload: bytes, now_ms: int) -> Stream:
        def job(connection: apsw.Connection) -> Stream:
            stream = load_stream(connection, key)
            if stream is None or stream.state == "erased":
                raise Refused("unknown_session")
            if stream.state == "ended":
                raise Refused("session_ended")
            apply_settled(connection, stream, settled, now_ms)
            append_own(connection, stream, now_ms, payload)
            update_stream(connection, stream)
            return stream

        return await self.database.write(job)

    async def close(self, key: int, ending: Ending | None, notice_id: str, now_ms: int) -> Stream | None:
        def job(connection: apsw.Connection) -> Stream | None:
            stream = load_stream(connection, key)
            if stream is None or stream.state != "running":
                return None
            how = ending or due_close(stream, now_ms) or restarted(connection, stream, now_ms)
            return None if how is None else close_stream(connection, stream, how, notice_id, now_ms)

        return await self.database.write(job)

    async def close_ended(self, key: int, connected: Sequence[str], notice_id: str, now_ms: int) -> Stream | None:
        def job(connection: apsw.Connection) -> Stream | None:
            stream = load_stream(connection, key)
            if stream is None or stream.state != "running" or stream.ending is None:
                return None
            if not all(load_producer(connection, key, name).ended for name in connected):
                return None
            return close_stream(connection, stream, stream.ending, notice_id, now_ms)

        return await self.database.write(job)

    async def due(self, now_ms: int, limit: int) -> list[int]:
        query = "select key from streams where due_ms <= ? order by due_ms limit ?"
        return await self.database.read(
            lambda connection: [key for (key,) in connection.execute(query, (now_ms, limit))]
        )

    async def stream(self, project: str, session_id: str) -> Stream | None:
        found = await self.database.read(lambda connection: find_stream(connection, project, session_id))
        return None if found is None or found.state == "erased" else found

    async def streams(self, wanted: StreamFilter) -> list[Stream]:
        clauses, values = conditions(wanted)
        query = f"select {COLUMNS} from streams where {clauses} order by started_ms desc, key desc limit ?"
        return await self.database.read(
            lambda connection: [to_stream(row) for row in connection.execute(query, (*values, wanted.limit))]
        )

    async def rows(self, key: int, after: int, limit: int) -> list[Row]:
        query = (
            "select position, producer, seq, received_ms, payload from journal"
            " where stream = ? and position > ? order by position limit ?"
        )

        def job(connection: apsw.Connection) -> list[Row]:
            rows, size = [], 0
            for values in connection.execute(query, (key, after, limit)):
                rows.append(Row(*values))
                size += len(rows[-1].payload)
                if size > PAGE_BYTES:
                    break
            return rows

        return await self.database.read(job)

    async def load_snapshot(self, key: int, version: int, at_most: int) -> Snapshot | None:
        query = "select position, version, state from snapshots where stream = ? and version = ? and position <= ?"
        row = await self.database.read(lambda connection: connection.execute(query, (key, version, at_most)).fetchone())
        return None if row is None else Snapshot(*row)

    async def save_snapshot(self, key: int, snapshot: Snapshot) -> None:
        query = (
            "insert or replace into snapshots select ?, ?, ?, ?"
            " where exists (select 1 from streams where key = ? and state != 'erased')"
        )
        await self.database.write(lambda connection: connection.execute(query, (key, *snapshot, key)).fetchall())

    async def erase(self, key: int, now_ms: int) -> None:
        def job(connection: apsw.Connection) -> None:
            stream = load_stream(connection, key)
            if stream is None:
                return
            exports = "select key from exports where stream = ?"
            connection.execute(f"delete from attempts where export in ({exports})", (key,))
            for table in ("journal", "snapshots", "secrets", "producers", "exports", "endpoints"):
                connection.execute(f"delete from {table} where stream = ?", (key,))
            stream.state, stream.config, stream.ended_ms, stream.reason = "erased", {}, now_ms, None
            stream.silent_since_ms = stream.ending_ms = stream.ending_ts = stream.ending_reason = None
            update_stream(connection, stream)

        await self.database.write(job)


def refuse_erased(stream: Stream) -> None:
    if stream.state == "erased":
        raise Refused("session_erased")


def new_stream(connection: apsw.Connection, project: str, session_id: str, settled: Settled, now_ms: int) -> Stream:
    stream = Stream(
        key=0,
        project=project,
        kind=SESSION,
        id=session_id,
        state="running",
        position=0,
        started_ms=now_ms,
        ended_ms=None,
        reason=None,
        config=merged({}, settled.public),
        silent_since_ms=now_ms,
        ending_ms=None,
        ending_ts=None,
        ending_reason=None,
    )
    insert_stream(connection, stream)
    save_secrets(connection, stream, settled, now_ms)
    return stream


def restarted(connection: apsw.Connection, stream: Stream, now_ms: int) -> Ending | None:
    """The end of a session that `restart` made due at once."""
    (due,) = one(connection, "select due_ms from streams where key = ?", (stream.key,))
    return stream.ending if due is not None and due <= now_ms else None


def close_stream(connection: apsw.Connection, stream: Stream, how: Ending, notice_id: str, now_ms: int) -> Stream:
    """Journal the close, and make an export for each endpoint that hears of this session."""
    append_own(connection, stream, now_ms, {"type": "session.closed", "ts": how.ts, "reason": how.reason})
    stream.state, stream.ended_ms, stream.reason, stream.provisional = "ended", now_ms, how.reason, how.provisional
    stream.silent_since_ms = stream.ending_ms = stream.ending_ts = stream.ending_reason = None
    update_stream(connection, stream)
    settings = config.read(stream.config)
    closing = msgspec.json.encode(
        Closing(stream.id, settings.name, settings.channel, settings.labels, stream.started_ms, now_ms)
    )
    connection.execute(
        "insert into exports (stream, endpoint, notice_id, event_type, position, closing, state, attempts, due_ms,"
        " lease, leased_until_ms) select ?, key, ?, ?, ?, ?, 'pending', 0, ?, 0, 0 from endpoints"
        " where disabled_ms is null and (stream = ? or stream is null)",
        (stream.key, notice_id, HISTORY_EVENT, stream.position, closing, now_ms, stream.key),
    )
    return stream


def conditions(wanted: StreamFilter) -> tuple[str, list[Any]]:
    """The where clause of a list of sessions, and its values."""
    clauses, values = ["project = ?", "kind = ?", "state != 'erased'"], [wanted.project, SESSION]
    given: list[tuple[str, Sequence[Any]]] = [
        ("state = ?", [wanted.state]),
        ("json_extract(config, '$.user_id') = ?", [wanted.user_id]),
        ("exists (select 1 from json_each(config, '$.labels') where key = ? and value = ?)", wanted.label or [None]),
        ("started_ms > ?", [wanted.started_after]),
        ("started_ms < ?", [wanted.started_before]),
        ("(started_ms, key) < (?, ?)", wanted.after or [None]),
    ]
    for clause, more in given:
        if more[0] is not None:
            clauses.append(clause)
            values.extend(more)
    return " and ".join(clauses), values
