"""`voicemem.store.port.Journal` on PostgreSQL: the changes of streams and journals; reads are in `reads`."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from typing import Literal

from voicemem.config.secrets import SessionPatch
from voicemem.errors import Refused
from voicemem.store.admission import Batch
from voicemem.store.batch_append import BatchAppend
from voicemem.store.postgresql.database.connection import LANES
from voicemem.store.postgresql.journal.new_streams import (
    create_stream,
    create_user_stream,
    restore_stream,
)
from voicemem.store.postgresql.journal.reads import PostgresqlJournalReads
from voicemem.store.postgresql.journal.rows import Rows
from voicemem.store.records import AppendResult, OpenResult, RestoredSession, Snapshot
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

SELECT_SECRETS = "select name, value from secrets where stream = $1"
INLINE_BYTES = 64 * 1024
"""A larger snapshot is compressed on a thread."""
SAVE_SNAPSHOT = """
    insert into snapshots (stream, version, position, state) select $1, $2, $3, $4
    where exists (select 1 from streams where key = $1 and state != 'erased')
    on conflict (stream, version) do update set position = excluded.position, state = excluded.state
"""
DELETE_UNREAD_SNAPSHOTS = """
    delete from snapshots where stream = $1 and version != $2
    and version not in (select snapshot_version from nodes)
"""


class PostgresqlJournal(PostgresqlJournalReads):
    """Streams and their entries; the methods are documented in `voicemem.store.port.Journal`."""

    lanes = LANES

    def lane_of(self, key: int) -> int:
        return key % LANES

    async def create_session(
        self,
        project: str,
        session_id: str,
        session_patch: SessionPatch,
        now_ms: int,
        key_id: str | None = None,
        takes_name: bool = False,
    ) -> tuple[Stream, Literal["created", "same", "different"]]:
        def job(rows: Rows) -> tuple[Stream, Literal["created", "same", "different"]]:
            stream = rows.session_of(project, session_id)
            if stream is None:
                stream = create_stream(rows, project, session_id, session_patch, now_ms, key_id, takes_name)
                return stream, "created"
            stored = rows.session.rows(SELECT_SECRETS, (stream.key,))
            return stream, compare(stream, {name: value for name, value in stored}, session_patch)

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
        def job(rows: Rows) -> Stream | None:
            existing = rows.session_of(project, session_id)
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
        def job(rows: Rows) -> OpenResult:
            rows.hold_node(node)
            stream = rows.session_of(project, session_id)
            created = stream is None
            if stream is None:
                stream = create_stream(rows, project, session_id, session_patch, now_ms, key_id)
            return connect(rows, stream, created, producer, node, from_seq, now_ms)

        return await self.database.write(job)

    async def append(self, batches: Sequence[Batch], now_ms: int) -> list[AppendResult]:
        found: dict[int, AppendResult] = {}
        for lane in range(self.lanes):
            share = [index for index, batch in enumerate(batches) if self.lane_of(batch.key) == lane]
            if any(self.database.lanes[lane].may_take(batches[index]) for index in share):
                tried = await self.try_append([batches[index] for index in share], now_ms)
                found |= {index: one for index, one in zip(share, tried, strict=True) if one is not None}
        left = sorted(range(len(batches)) - found.keys(), key=lambda index: batches[index].key)
        if left:
            found |= zip(left, await self.append_slowly([batches[index] for index in left], now_ms), strict=True)
        return [found[index] for index in range(len(batches))]

    async def try_append(self, batches: Sequence[Batch], now_ms: int) -> Sequence[AppendResult | None]:
        return await self.database.lanes[self.lane_of(batches[0].key)].append(batches)

    async def append_slowly(self, batches: Sequence[Batch], now_ms: int) -> list[AppendResult]:
        """Append batches, by key, in a transaction that locks their streams, and looks at each event."""
        return await self.database.write(lambda rows: [append_one(rows, batch, now_ms) for batch in batches])

    async def leave(
        self, key: int, producer: str, epoch: int, expected_until_ms: int | None, now_ms: int
    ) -> Stream | None:
        return await self.database.write(lambda rows: disconnect(rows, key, producer, epoch, expected_until_ms, now_ms))

    async def change_config(self, key: int, session_patch: SessionPatch, payload: bytes, now_ms: int) -> Stream:
        return await self.database.write(lambda rows: change_config(rows, key, session_patch, payload, now_ms))

    async def append_server_event(self, key: int, payload: bytes, expected: int, now_ms: int) -> Stream | None:
        return await self.database.write(lambda rows: append_expected(rows, key, payload, expected, now_ms))

    async def close_session(
        self, key: int, ending: SessionEnding | None, notice_id: str, now_ms: int, if_silent: bool = False
    ) -> Stream | None:
        return await self.database.write(lambda rows: close_if_due(rows, key, ending, notice_id, now_ms, if_silent))

    async def close_ended(self, key: int, notice_id: str, now_ms: int) -> Stream | None:
        return await self.database.write(lambda rows: close_if_complete(rows, key, notice_id, now_ms))

    async def ensure_user(self, project: str, user_id: str, now_ms: int) -> Stream:
        def job(rows: Rows) -> Stream:
            return rows.find_by_name(project, USER_KIND, user_id) or create_user_stream(rows, project, user_id, now_ms)

        return await self.database.write(job)

    async def save_snapshot(self, key: int, snapshot: Snapshot) -> None:
        if len(snapshot.state) > INLINE_BYTES:  # zlib works without the interpreter's lock
            packed = await asyncio.to_thread(zlib.compress, snapshot.state, 1)
        else:
            packed = zlib.compress(snapshot.state, 1)

        def job(rows: Rows) -> None:
            rows.session.execute(SAVE_SNAPSHOT, (key, snapshot.version, snapshot.position, packed))
            rows.session.execute(DELETE_UNREAD_SNAPSHOTS, (key, snapshot.version))

        await self.database.write(job)


def append_one(rows: Rows, batch: Batch, now_ms: int) -> AppendResult:
    """Append a batch event by event. Raises `Refused` (`unknown_session`)."""
    stream = rows.stream(batch.key)
    if stream is None:
        raise Refused("unknown_session")
    producer, full = rows.producer(batch.key, batch.producer), rows.is_full(stream.project)
    return BatchAppend(rows, stream, producer, batch, now_ms, full).run()
