"""`voicemem.store.port.Journal` on SQLite: the changes of streams and journals; reads are in `reads`."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from typing import Literal

import apsw

from voicemem.config.secrets import SessionPatch
from voicemem.config.session import apply_patch
from voicemem.errors import Refused
from voicemem.protocol.strict_json import SORTED
from voicemem.store.admission import Batch
from voicemem.store.batch_append import declare_gap
from voicemem.store.records import AppendResult, OpenResult, RestoredSession, Snapshot
from voicemem.store.sqlite.enqueue import enqueue_close
from voicemem.store.sqlite.journal.append import append, apply_session_patch, reopen
from voicemem.store.sqlite.journal.new_streams import (
    create_stream,
    create_user_stream,
    refuse_taken_name,
    restore_stream,
)
from voicemem.store.sqlite.journal.reads import SqliteJournalReads
from voicemem.store.sqlite.journal.row_cache import RowCache
from voicemem.store.sqlite.retention import schedule_retention
from voicemem.store.streams import (
    USER_KIND,
    SessionEnding,
    Stream,
    ending_if_due,
    is_expected,
    may_reopen,
)

SELECT_SECRETS = "select name, value from secrets where stream = ?"
SELECT_IS_CONNECTED = "select 1 from producers where stream = ? and node is not null limit 1"
SELECT_PRODUCERS_NOT_ENDED = "select name from producers where stream = ? and not ended"
INLINE_BYTES = 64 * 1024
"""A larger snapshot is compressed on a thread."""
SAVE_SNAPSHOT = """
    insert or replace into snapshots (stream, version, position, state) select ?1, ?2, ?3, ?4
    where exists (select 1 from streams where key = ?1 and state != 'erased')
"""
DELETE_UNREAD_SNAPSHOTS = """
    delete from snapshots where stream = ? and version != ? and version not in (select snapshot_version from nodes)
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
        takes_name: bool = False,
    ) -> tuple[Stream, Literal["created", "same", "different"]]:
        def job(connection: apsw.Connection) -> tuple[Stream, Literal["created", "same", "different"]]:
            stream = self.database.rows.session(project, session_id)
            if stream is None:
                if takes_name:
                    refuse_taken_name(self.database.rows, project, session_patch)
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
        node: str = "",
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
            lease.node, lease.expected_until_ms = node, None
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

    async def leave(
        self, key: int, producer: str, epoch: int, expected_until_ms: int | None, now_ms: int
    ) -> Stream | None:
        def job(connection: apsw.Connection) -> Stream | None:
            rows = self.database.rows
            stream, lease = rows.stream(key), rows.producer(key, producer)
            if stream is None or stream.state == "erased" or lease.epoch != epoch or lease.node is None:
                return None
            lease.node, lease.expected_until_ms = None, expected_until_ms
            rows.save_producer(key, lease)
            if stream.state == "running" and not is_connected(connection, key):
                stream.silent_since_ms = now_ms
                rows.save_stream(stream)
            return stream

        return await self.database.write(job)

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

    async def close_session(
        self, key: int, ending: SessionEnding | None, notice_id: str, now_ms: int, if_silent: bool = False
    ) -> Stream | None:
        def job(connection: apsw.Connection) -> Stream | None:
            rows = self.database.rows
            stream = rows.stream(key)
            if stream is None or stream.state != "running" or (if_silent and stream.silent_since_ms is None):
                return None
            close = ending or ending_if_due(stream, now_ms) or ending_if_complete(rows, stream, now_ms)
            return None if close is None else close_stream(rows, stream, close, notice_id, now_ms)

        return await self.database.write(job)

    async def close_ended(self, key: int, notice_id: str, now_ms: int) -> Stream | None:
        def job(connection: apsw.Connection) -> Stream | None:
            rows = self.database.rows
            stream = rows.stream(key)
            if stream is None or stream.state != "running":
                return None
            close = ending_if_complete(rows, stream, now_ms)
            return None if close is None else close_stream(rows, stream, close, notice_id, now_ms)

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

        def job(connection: apsw.Connection) -> None:
            connection.execute(SAVE_SNAPSHOT, (key, snapshot.version, snapshot.position, packed))
            connection.execute(DELETE_UNREAD_SNAPSHOTS, (key, snapshot.version))

        await self.database.write(job)


def is_connected(connection: apsw.Connection, key: int) -> bool:
    """Whether any producer of a session is connected."""
    return connection.execute(SELECT_IS_CONNECTED, (key,)).fetchone() is not None


def refuse_erased(stream: Stream) -> None:
    if stream.state == "erased":
        raise Refused("session_erased")


def ending_if_complete(rows: RowCache, stream: Stream, now_ms: int) -> SessionEnding | None:
    """The committed end of a session for whose producers nothing more is expected; otherwise None."""
    if stream.ending is None:
        return None
    names = [str(name) for (name,) in rows.connection.execute(SELECT_PRODUCERS_NOT_ENDED, (stream.key,))]
    awaited = any(is_expected(rows.producer(stream.key, name), now_ms) for name in names)
    return None if awaited else stream.ending


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
