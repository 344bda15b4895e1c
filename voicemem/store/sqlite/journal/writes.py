"""`voicemem.store.port.Journal` on SQLite: the changes of streams and journals; reads are in `reads`."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Literal

import apsw

from voicemem.config.secrets import SessionPatch
from voicemem.config.session import apply_patch
from voicemem.errors import Refused, StoreUnavailable
from voicemem.protocol.strict_json import SORTED
from voicemem.store.admission import Batch
from voicemem.store.records import AppendResult, OpenResult, RestoredSession, Snapshot
from voicemem.store.sqlite.enqueue import enqueue_close
from voicemem.store.sqlite.journal.append import append, apply_session_patch, declare_gap, reopen
from voicemem.store.sqlite.journal.new_streams import create_stream, create_user_stream, restore_stream
from voicemem.store.sqlite.journal.reads import SqliteJournalReads
from voicemem.store.sqlite.journal.row_cache import STORED_COLUMNS, RowCache, fetch_one, to_stream
from voicemem.store.sqlite.retention import schedule_retention
from voicemem.store.streams import (
    SESSION_KIND,
    USER_KIND,
    SessionEnding,
    Stream,
    close_due_ms,
    ending_if_due,
    may_reopen,
)

SELECT_SECRETS = "select name, value from secrets where stream = ?"
SELECT_RUNNING_SESSIONS = f"select {STORED_COLUMNS} from streams where state = 'running' and kind = ?"
UPDATE_TIMES = "update streams set silent_since_ms = ?, ending_ms = ?, due_ms = ? where key = ?"
SELECT_DUE_MS = "select due_ms from streams where key = ?"
SELECT_CONNECTED_PRODUCERS = "select name from producers where stream = ? and epoch > 0"
"""Those that were connected at some time: each open raises the epoch."""
SELECT_PRODUCER_NOT_ENDED = "select 1 from producers where stream = ? and epoch > 0 and not ended limit 1"
INLINE_BYTES = 64 * 1024
"""A larger snapshot is compressed on a thread."""
SAVE_SNAPSHOT = """
    insert or replace into snapshots select ?1, ?2, ?3, ?4
    where exists (select 1 from streams where key = ?1 and state != 'erased')
"""


class SqliteJournal(SqliteJournalReads):
    """Streams and their entries; the methods are documented in `voicemem.store.port.Journal`."""

    async def create_session(
        self,
        project: str,
        session_id: str,
        session_patch: SessionPatch,
        now_ms: int,
        key_id: str | None = None,
    ) -> tuple[Stream, Literal["created", "same", "different"]]:
        def job(connection: apsw.Connection) -> tuple[Stream, Literal["created", "same", "different"]]:
            stream = self.database.rows.session(project, session_id)
            if stream is None:
                return create_stream(self.database.rows, project, session_id, session_patch, now_ms, key_id), "created"
            refuse_erased(stream)
            secrets = dict(connection.execute(SELECT_SECRETS, (stream.key,)))
            new_secrets = {name: value for name, value in session_patch.secrets.items() if value is not None}
            new = [apply_patch({}, session_patch.public), new_secrets]
            same = SORTED.encode([stream.config, secrets]) == SORTED.encode(new)  # as JSON: in Python 1 == True
            return stream, "same" if same else "different"

        return await self.database.write(job)

    async def restore_session(
        self,
        project: str,
        session_id: str,
        session_patch: SessionPatch,
        restored: RestoredSession,
        now_ms: int,
        key_id: str | None = None,
    ) -> Stream | None:
        def job(connection: apsw.Connection) -> Stream | None:
            rows = self.database.rows
            existing = rows.session(project, session_id)
            if existing is not None:
                refuse_erased(existing)
                return None
            return restore_stream(rows, project, session_id, session_patch, restored, now_ms, key_id)

        return await self.database.write(job)

    async def open_producer(
        self,
        project: str,
        session_id: str,
        producer: str,
        session_patch: SessionPatch,
        from_seq: int | None,
        now_ms: int,
        key_id: str | None = None,
    ) -> OpenResult:
        def job(connection: apsw.Connection) -> OpenResult:
            rows = self.database.rows
            stream = rows.session(project, session_id)
            created = stream is None
            if stream is None:
                stream = create_stream(rows, project, session_id, session_patch, now_ms, key_id)
            refuse_erased(stream)
            reopened = may_reopen(stream, now_ms)
            if reopened:
                reopen(rows, stream, now_ms)
            lease = rows.producer(stream.key, producer)
            lease.epoch += 1
            if from_seq is not None and from_seq > lease.next_seq and stream.state == "running":
                declare_gap(rows, stream, lease, from_seq, now_ms)
            if stream.state == "running":
                stream.silent_since_ms = None
            rows.save_producer(stream.key, lease)
            rows.save_stream(stream)
            return OpenResult(stream, lease.epoch, lease.next_seq, created, reopened)

        return await self.database.write(job)

    async def append(self, batches: Sequence[Batch], now_ms: int) -> list[AppendResult]:
        return await self.database.write(lambda _: [append(self.database.rows, batch, now_ms) for batch in batches])

    async def set_silent_since(self, key: int, now_ms: int | None) -> None:
        def job(connection: apsw.Connection) -> None:
            stream = self.database.rows.stream(key)
            if stream is not None and stream.state == "running":
                stream.silent_since_ms = now_ms
                self.database.rows.save_stream(stream)

        await self.database.write(job)

    async def restart_silence(self, now_ms: int) -> None:
        def job(connection: apsw.Connection) -> None:
            changes = []
            for row in connection.execute(SELECT_RUNNING_SESSIONS, (SESSION_KIND,)):
                with suppress(StoreUnavailable):  # a damaged row concerns its own session only
                    stream = to_stream(row)
                    stream.silent_since_ms = now_ms
                    if stream.ending is not None and not all_ended(connection, stream.key):
                        stream.ending_ms = now_ms
                    over = stream.ending is not None and stream.ending_ms != now_ms
                    due = now_ms if over else close_due_ms(stream)
                    changes.append((now_ms, stream.ending_ms, due, stream.key))
            connection.executemany(UPDATE_TIMES, changes)
            self.database.rows.invalidate()

        await self.database.write(job)

    async def change_config(self, key: int, session_patch: SessionPatch, payload: bytes, now_ms: int) -> Stream:
        def job(connection: apsw.Connection) -> Stream:
            stream = self.database.rows.stream(key)
            if stream is None or stream.state == "erased":
                raise Refused("unknown_session")
            if stream.state == "ended":
                raise Refused("session_ended")
            rows = self.database.rows
            apply_session_patch(rows, stream, session_patch, now_ms)
            rows.append_server_event(stream, now_ms, payload)
            rows.save_stream(stream)
            return stream

        return await self.database.write(job)

    async def append_server_event(self, key: int, payload: bytes, expected: int, now_ms: int) -> Stream | None:
        def job(connection: apsw.Connection) -> Stream | None:
            stream = self.database.rows.stream(key)
            if stream is None or stream.state == "erased":
                raise Refused("unknown_session")
            if stream.position != expected:
                return None
            self.database.rows.append_server_event(stream, now_ms, payload)
            self.database.rows.save_stream(stream)
            return stream

        return await self.database.write(job)

    async def close_session(self, key: int, ending: SessionEnding | None, notice_id: str, now_ms: int) -> Stream | None:
        def job(connection: apsw.Connection) -> Stream | None:
            stream = self.database.rows.stream(key)
            if stream is None or stream.state != "running":
                return None
            close = ending or ending_if_due(stream, now_ms) or ending_after_restart(connection, stream, now_ms)
            return None if close is None else close_stream(self.database.rows, stream, close, notice_id, now_ms)

        return await self.database.write(job)

    async def close_if_ended(
        self, key: int, connected: Sequence[str], seen: Collection[str] | None, notice_id: str, now_ms: int
    ) -> Stream | None:
        def job(connection: apsw.Connection) -> Stream | None:
            stream = self.database.rows.stream(key)
            if stream is None or stream.state != "running" or stream.ending is None:
                return None
            unseen = [] if seen is None else [name for name in connected_producers(connection, key) if name not in seen]
            if not all(self.database.rows.producer(key, name).ended for name in (*connected, *unseen)):
                return None
            return close_stream(self.database.rows, stream, stream.ending, notice_id, now_ms)

        return await self.database.write(job)

    async def ensure_user(self, project: str, user_id: str, now_ms: int) -> Stream:
        def job(connection: apsw.Connection) -> Stream:
            rows = self.database.rows
            return rows.find_by_name(project, USER_KIND, user_id) or create_user_stream(rows, project, user_id, now_ms)

        return await self.database.write(job)

    async def save_snapshot(self, key: int, snapshot: Snapshot) -> None:
        if len(snapshot.state) > INLINE_BYTES:  # zlib works without the interpreter's lock
            packed = await asyncio.to_thread(zlib.compress, snapshot.state, 1)
        else:
            packed = zlib.compress(snapshot.state, 1)
        values = (key, snapshot.position, snapshot.version, packed)
        await self.database.write(lambda connection: connection.execute(SAVE_SNAPSHOT, values).fetchall())


def connected_producers(connection: apsw.Connection, key: int) -> list[str]:
    """The producers of a session that were connected at some time."""
    return [name for (name,) in connection.execute(SELECT_CONNECTED_PRODUCERS, (key,))]


def all_ended(connection: apsw.Connection, key: int) -> bool:
    """Whether every producer that was connected at some time has sent its `session.end`."""
    return connection.execute(SELECT_PRODUCER_NOT_ENDED, (key,)).fetchone() is None


def refuse_erased(stream: Stream) -> None:
    if stream.state == "erased":
        raise Refused("session_erased")


def ending_after_restart(connection: apsw.Connection, stream: Stream, now_ms: int) -> SessionEnding | None:
    """The end of a session that `restart_silence` made due at once, which its times do not show; otherwise None."""
    (due,) = fetch_one(connection, SELECT_DUE_MS, (stream.key,))
    return stream.ending if due is not None and due <= now_ms else None


def close_stream(rows: RowCache, stream: Stream, close: SessionEnding, notice_id: str, now_ms: int) -> Stream:
    """Journal the close, and add the notices for the endpoints that subscribed to it."""
    rows.append_server_event(stream, now_ms, {"type": "session.closed", "ts": close.ts, "reason": close.reason})
    stream.state, stream.ended_ms, stream.reason, stream.provisional = "ended", now_ms, close.reason, close.provisional
    stream.silent_since_ms = stream.ending_ms = stream.ending_ts = stream.ending_reason = None
    rows.save_stream(stream)
    rows.save_producers(stream.key)
    schedule_retention(rows.connection, stream)
    enqueue_close(rows, stream, notice_id, now_ms)
    return stream
