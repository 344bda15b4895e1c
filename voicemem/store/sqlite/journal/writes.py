"""`voicemem.store.port.Journal` on SQLite: the changes of streams and journals; reads are in `reads`."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import apsw

from voicemem.config.secrets import SessionPatch
from voicemem.store.admission import Batch
from voicemem.store.records import AppendResult, OpenResult, RestoredSession, Snapshot
from voicemem.store.sqlite.journal.append import StreamView, append
from voicemem.store.sqlite.journal.new_streams import (
    create_stream,
    create_user_stream,
    refuse_taken_name,
    restore_stream,
)
from voicemem.store.sqlite.journal.reads import SqliteJournalReads
from voicemem.store.stream_changes import (
    append_expected,
    change_config,
    close_if_complete,
    close_if_due,
    compare,
    connect,
    disconnect,
    refuse_erased,
)
from voicemem.store.streams import USER_KIND, SessionEnding, Stream

T = TypeVar("T")

SELECT_SECRETS = "select name, value from secrets where stream = ?"
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

    lanes = 1

    def lane_of(self, key: int) -> int:
        return 0

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
            return stream, compare(stream, dict(connection.execute(SELECT_SECRETS, (stream.key,))), session_patch)

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
            return connect(StreamView(rows), stream, created, producer, node, from_seq, now_ms)

        return await self.database.write(job)

    async def append(self, batches: Sequence[Batch], now_ms: int) -> list[AppendResult]:
        return await self.database.write(lambda _: [append(self.database.rows, batch, now_ms) for batch in batches])

    async def try_append(self, batches: Sequence[Batch], now_ms: int) -> Sequence[AppendResult | None]:
        return await self.append(batches, now_ms)

    async def leave(
        self, key: int, producer: str, epoch: int, expected_until_ms: int | None, now_ms: int
    ) -> Stream | None:
        return await self.change(lambda rows: disconnect(rows, key, producer, epoch, expected_until_ms, now_ms))

    async def change_config(self, key: int, session_patch: SessionPatch, payload: bytes, now_ms: int) -> Stream:
        return await self.change(lambda rows: change_config(rows, key, session_patch, payload, now_ms))

    async def append_server_event(self, key: int, payload: bytes, expected: int, now_ms: int) -> Stream | None:
        return await self.change(lambda rows: append_expected(rows, key, payload, expected, now_ms))

    async def close_session(
        self, key: int, ending: SessionEnding | None, notice_id: str, now_ms: int, if_silent: bool = False
    ) -> Stream | None:
        return await self.change(lambda rows: close_if_due(rows, key, ending, notice_id, now_ms, if_silent))

    async def close_ended(self, key: int, notice_id: str, now_ms: int) -> Stream | None:
        return await self.change(lambda rows: close_if_complete(rows, key, notice_id, now_ms))

    async def change(self, job: Callable[[StreamView], T]) -> T:
        """Change streams in the next transaction."""
        return await self.database.write(lambda _: job(StreamView(self.database.rows)))

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
