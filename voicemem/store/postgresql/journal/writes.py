"""`voicemem.store.port.Journal` on PostgreSQL: the changes of streams and journals; reads are in `reads`."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from typing import Literal

from voicemem.config.secrets import SessionPatch
from voicemem.config.session import apply_patch
from voicemem.errors import Refused
from voicemem.protocol.strict_json import SORTED
from voicemem.store.admission import Batch
from voicemem.store.batch_append import BatchAppend, declare_gap
from voicemem.store.postgresql.enqueue import enqueue_close
from voicemem.store.postgresql.journal.new_streams import (
    RELEASE_NAME,
    create_stream,
    create_user_stream,
    restore_stream,
)
from voicemem.store.postgresql.journal.reads import PostgresqlJournalReads
from voicemem.store.postgresql.journal.rows import Rows
from voicemem.store.postgresql.retention_plans import schedule_retention
from voicemem.store.records import AppendResult, OpenResult, RestoredSession, Snapshot
from voicemem.store.streams import (
    USER_KIND,
    SessionEnding,
    Stream,
    ending_if_due,
    is_expected,
    may_reopen,
)

SELECT_SECRETS = "select name, value from secrets where bucket = $1 % 64 and stream = $1"
SELECT_IS_CONNECTED = """
    select 1 from producers where bucket = $1 % 64 and stream = $1 and node is not null limit 1
"""
SELECT_PRODUCERS_NOT_ENDED = "select name from producers where bucket = $1 % 64 and stream = $1 and not ended"
SLOW_STREAMS = 16
"""Streams in one transaction of appends that are looked at: they are locked until it commits."""
INLINE_BYTES = 64 * 1024
"""A larger snapshot is compressed on a thread."""
SAVE_SNAPSHOT = """
    insert into snapshots (bucket, stream, version, position, state) select $1 % 64, $1, $2, $3, $4
    where exists (select 1 from streams where bucket = $1 % 64 and key = $1 and state != 'erased')
    on conflict (bucket, stream, version) do update set position = excluded.position, state = excluded.state
"""
DELETE_UNREAD_SNAPSHOTS = """
    delete from snapshots where bucket = $1 % 64 and stream = $1 and version != $2
    and version not in (select snapshot_version from nodes)
"""


class PostgresqlJournal(PostgresqlJournalReads):
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
        def job(rows: Rows) -> tuple[Stream, Literal["created", "same", "different"]]:
            stream = rows.session_of(project, session_id)
            if stream is None:
                stream = create_stream(rows, project, session_id, session_patch, now_ms, key_id, takes_name)
                return stream, "created"
            refuse_erased(stream)
            stored = rows.session.rows(SELECT_SECRETS, (stream.key,))
            secrets = {name.decode(): value.decode() for name, value in stored}
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
            stream = rows.session_of(project, session_id)
            created = stream is None
            if stream is None:
                stream = create_stream(rows, project, session_id, session_patch, now_ms, key_id)
            refuse_erased(stream)
            reopened = may_reopen(stream, now_ms)
            if reopened:
                rows.reopen(stream, now_ms)
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
        lanes = self.database.lanes
        shares: dict[int, list[int]] = {}
        for index, batch in enumerate(batches):
            shares.setdefault(batch.key % len(lanes), []).append(index)
        results: list[AppendResult | None] = [None] * len(batches)

        async def append_share(lane: int, indices: list[int]) -> None:
            for index, result in zip(
                indices, await lanes[lane].append([batches[index] for index in indices]), strict=True
            ):
                results[index] = result
            slow: dict[int, list[int]] = {}
            for index in indices:
                if results[index] is None:
                    slow.setdefault(batches[index].key, []).append(index)
            keys = sorted(slow)
            for first in range(0, len(keys), SLOW_STREAMS):
                some = [index for key in keys[first : first + SLOW_STREAMS] for index in slow[key]]
                looked_at = await self.append_slowly([batches[index] for index in some], now_ms)
                for index, appended in zip(some, looked_at, strict=True):
                    results[index] = appended

        outcomes = await asyncio.gather(*(append_share(*share) for share in shares.items()), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [result for result in results if result is not None]

    async def append_slowly(self, batches: Sequence[Batch], now_ms: int) -> list[AppendResult]:
        """Append batches in a transaction that locks their streams, in the order of keys, and looks at each event."""
        return await self.database.write(lambda rows: [append_one(rows, batch, now_ms) for batch in batches])

    async def leave(
        self, key: int, producer: str, epoch: int, expected_until_ms: int | None, now_ms: int
    ) -> Stream | None:
        def job(rows: Rows) -> Stream | None:
            stream = rows.stream(key)
            if stream is None or stream.state == "erased":
                return None
            lease = rows.producer(key, producer)
            if lease.epoch != epoch or lease.node is None:
                return None
            lease.node, lease.expected_until_ms = None, expected_until_ms
            rows.save_producer(key, lease)
            if stream.state == "running" and rows.session.row(SELECT_IS_CONNECTED, (key,)) is None:
                stream.silent_since_ms = now_ms
                rows.save_stream(stream)
            return stream

        return await self.database.write(job)

    async def change_config(self, key: int, session_patch: SessionPatch, payload: bytes, now_ms: int) -> Stream:
        def job(rows: Rows) -> Stream:
            stream = rows.stream(key)
            if stream is None or stream.state == "erased":
                raise Refused("unknown_session")
            if stream.state == "ended":
                raise Refused("session_ended")
            rows.apply_patch(stream, session_patch, now_ms)
            rows.append_server_event(stream, now_ms, payload)
            rows.save_stream(stream)
            return stream

        return await self.database.write(job)

    async def append_server_event(self, key: int, payload: bytes, expected: int, now_ms: int) -> Stream | None:
        def job(rows: Rows) -> Stream | None:
            stream = rows.stream(key)
            if stream is None or stream.state == "erased":
                raise Refused("unknown_session")
            if stream.position != expected:
                return None
            rows.append_server_event(stream, now_ms, payload)
            rows.save_stream(stream)
            return stream

        return await self.database.write(job)

    async def close_session(
        self, key: int, ending: SessionEnding | None, notice_id: str, now_ms: int, if_silent: bool = False
    ) -> Stream | None:
        def job(rows: Rows) -> Stream | None:
            stream = rows.stream(key)
            if stream is None or stream.state != "running" or (if_silent and stream.silent_since_ms is None):
                return None
            close = ending or ending_if_due(stream, now_ms) or ending_if_complete(rows, stream, now_ms)
            return None if close is None else close_stream(rows, stream, close, notice_id, now_ms)

        return await self.database.write(job)

    async def close_ended(self, key: int, notice_id: str, now_ms: int) -> Stream | None:
        def job(rows: Rows) -> Stream | None:
            stream = rows.stream(key)
            if stream is None or stream.state != "running":
                return None
            close = ending_if_complete(rows, stream, now_ms)
            return None if close is None else close_stream(rows, stream, close, notice_id, now_ms)

        return await self.database.write(job)

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
    return BatchAppend(rows, stream, rows.producer(batch.key, batch.producer), batch, now_ms, full=False).run()


def refuse_erased(stream: Stream) -> None:
    if stream.state == "erased":
        raise Refused("session_erased")


def ending_if_complete(rows: Rows, stream: Stream, now_ms: int) -> SessionEnding | None:
    """The committed end of a session for whose producers nothing more is expected; otherwise None."""
    if stream.ending is None:
        return None
    names = [name.decode() for (name,) in rows.session.rows(SELECT_PRODUCERS_NOT_ENDED, (stream.key,))]
    return None if any(is_expected(rows.producer(stream.key, name), now_ms) for name in names) else stream.ending


def close_stream(rows: Rows, stream: Stream, close: SessionEnding, notice_id: str, now_ms: int) -> Stream:
    """Journal the close, and add the notices for the endpoints that subscribed to it."""
    rows.append_server_event(stream, now_ms, {"type": "session.closed", "ts": close.ts, "reason": close.reason})
    stream.state, stream.ended_ms, stream.reason, stream.provisional = "ended", now_ms, close.reason, close.provisional
    stream.silent_since_ms = stream.ending_ms = stream.ending_ts = stream.ending_reason = None
    rows.save_stream(stream)
    rows.save_producers(stream.key)
    rows.session.execute(RELEASE_NAME, (stream.key,))
    schedule_retention(rows.session, stream)
    enqueue_close(rows.session, rows.shared.keys, stream, notice_id, now_ms)
    return stream
