"""The journal's port on SQLite: sessions, producers, entries, snapshots."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

import apsw
import msgspec

from voicemem.config.secrets import SessionPatch
from voicemem.config.session import apply_patch
from voicemem.errors import Refused, StoreUnavailable
from voicemem.protocol.codec import split_array
from voicemem.protocol.strict_json import MALFORMED, SORTED
from voicemem.store.admission import Batch
from voicemem.store.records import Appended, Opened, Restored, Row, Snapshot, StreamFilter
from voicemem.store.sqlite.append import append, apply_settled, reopen
from voicemem.store.sqlite.archive import RunRow, runs_after
from voicemem.store.sqlite.create import new_stream, new_user, restored_stream
from voicemem.store.sqlite.database import Database
from voicemem.store.sqlite.enqueue import enqueue_close
from voicemem.store.sqlite.retention import is_erased, plan
from voicemem.store.sqlite.rows import COLUMNS, OWN_COLUMNS, Rows, load_stream, one, to_stream
from voicemem.store.sqlite.runs import last_seq
from voicemem.store.streams import SESSION, USER, Ending, Stream, due_close, due_ms, may_reopen

PAGE_BYTES = 4 * 1024 * 1024
"""Payloads read at once: a journal can be much larger than memory allows."""


class SqliteJournal:
    """Streams and their entries; the methods are documented in `voicemem.store.port.Journal`."""

    database: Database

    async def create(
        self, project: str, session_id: str, session_patch: SessionPatch, now_ms: int
    ) -> tuple[Stream, Literal["created", "same", "different"]]:
        def job(connection: apsw.Connection) -> tuple[Stream, Literal["created", "same", "different"]]:
            stream = self.database.rows.session(project, session_id)
            if stream is None:
                return new_stream(self.database.rows, project, session_id, session_patch, now_ms), "created"
            refuse_erased(stream)
            secrets = dict(connection.execute("select name, value from secrets where stream = ?", (stream.key,)))
            given = [
                apply_patch({}, session_patch.public),
                {name: s for name, s in session_patch.secrets.items() if s is not None},
            ]
            same = SORTED.encode([stream.config, secrets]) == SORTED.encode(given)  # in Python 1 == true
            return stream, "same" if same else "different"

        return await self.database.write(job)

    async def restore(
        self, project: str, session_id: str, session_patch: SessionPatch, restored: Restored, now_ms: int
    ) -> Stream | None:
        def job(connection: apsw.Connection) -> Stream | None:
            rows = self.database.rows
            known = rows.session(project, session_id)
            if known is not None:
                refuse_erased(known)
                return None
            return restored_stream(rows, project, session_id, session_patch, restored, now_ms)

        return await self.database.write(job)

    async def open(
        self,
        project: str,
        session_id: str,
        producer: str,
        session_patch: SessionPatch,
        from_seq: int | None,
        now_ms: int,
    ) -> Opened:
        def job(connection: apsw.Connection) -> Opened:
            rows = self.database.rows
            stream = rows.session(project, session_id)
            created = stream is None
            if stream is None:
                stream = new_stream(rows, project, session_id, session_patch, now_ms)
            refuse_erased(stream)
            reopened = may_reopen(stream, now_ms)
            if reopened:
                reopen(rows, stream, now_ms)
            lease = rows.producer(stream.key, producer)
            lease.epoch += 1
            if from_seq is not None and from_seq > lease.next_seq and stream.state == "running":
                gap = {"type": "session.gap", "producer": producer, "from_seq": lease.next_seq, "to_seq": from_seq - 1}
                rows.append_own(stream, now_ms, gap)
                lease.next_seq = from_seq
            if stream.state == "running":
                stream.silent_since_ms = None
            rows.save_producer(stream.key, lease)
            rows.save_stream(stream)
            return Opened(stream, lease.epoch, lease.next_seq, created, reopened)

        return await self.database.write(job)

    async def append(self, batches: Sequence[Batch], now_ms: int) -> list[Appended]:
        return await self.database.write(lambda _: [append(self.database.rows, batch, now_ms) for batch in batches])

    async def is_numbered(self, key: int, producer: str) -> bool:
        query = "select 1 from producers where stream = ? and name = ? and next_seq > 1"
        return await self.database.read(
            lambda connection: (
                last_seq(connection, key, producer) > 0
                or connection.execute(query, (key, producer)).fetchone() is not None
            )
        )

    async def silence(self, key: int, now_ms: int | None) -> None:
        def job(connection: apsw.Connection) -> None:
            stream = self.database.rows.stream(key)
            if stream is not None and stream.state == "running":
                stream.silent_since_ms = now_ms
                self.database.rows.save_stream(stream)

        await self.database.write(job)

    async def restart(self, now_ms: int) -> None:
        def job(connection: apsw.Connection) -> None:
            query = f"select {OWN_COLUMNS} from streams where state = 'running' and kind = ?"
            changes = []
            for row in connection.execute(query, (SESSION,)):
                with suppress(StoreUnavailable):  # a damaged row is the trouble of its session alone
                    stream = to_stream(row)
                    stream.silent_since_ms = now_ms
                    if stream.ending is not None and not all_ended(connection, stream.key):
                        stream.ending_ms = now_ms
                    over = stream.ending is not None and stream.ending_ms != now_ms
                    due = now_ms if over else due_ms(stream)
                    changes.append((now_ms, stream.ending_ms, due, stream.key))
            query = "update streams set silent_since_ms = ?, ending_ms = ?, due_ms = ? where key = ?"
            connection.executemany(query, changes)
            self.database.rows.forget()

        await self.database.write(job)

    async def change(self, key: int, session_patch: SessionPatch, payload: bytes, now_ms: int) -> Stream:
        def job(connection: apsw.Connection) -> Stream:
            stream = self.database.rows.stream(key)
            if stream is None or stream.state == "erased":
                raise Refused("unknown_session")
            if stream.state == "ended":
                raise Refused("session_ended")
            rows = self.database.rows
            apply_settled(rows, stream, session_patch, now_ms)
            rows.append_own(stream, now_ms, payload)
            rows.save_stream(stream)
            return stream

        return await self.database.write(job)

    async def append_own(self, key: int, payload: bytes, expected: int, now_ms: int) -> Stream | None:
        def job(connection: apsw.Connection) -> Stream | None:
            stream = self.database.rows.stream(key)
            if stream is None or stream.state == "erased":
                raise Refused("unknown_session")
            if stream.position != expected:
                return None
            self.database.rows.append_own(stream, now_ms, payload)
            self.database.rows.save_stream(stream)
            return stream

        return await self.database.write(job)

    async def close(self, key: int, ending: Ending | None, notice_id: str, now_ms: int) -> Stream | None:
        def job(connection: apsw.Connection) -> Stream | None:
            stream = self.database.rows.stream(key)
            if stream is None or stream.state != "running":
                return None
            how = ending or due_close(stream, now_ms) or restarted(connection, stream, now_ms)
            return None if how is None else close_stream(self.database.rows, stream, how, notice_id, now_ms)

        return await self.database.write(job)

    async def close_ended(
        self, key: int, connected: Sequence[str], seen: Collection[str] | None, notice_id: str, now_ms: int
    ) -> Stream | None:
        def job(connection: apsw.Connection) -> Stream | None:
            stream = self.database.rows.stream(key)
            if stream is None or stream.state != "running" or stream.ending is None:
                return None
            unseen = [] if seen is None else [name for name in opened(connection, key) if name not in seen]
            if not all(self.database.rows.producer(key, name).ended for name in (*connected, *unseen)):
                return None
            return close_stream(self.database.rows, stream, stream.ending, notice_id, now_ms)

        return await self.database.write(job)

    async def due(self, now_ms: int, limit: int) -> list[int]:
        query = "select key from streams where due_ms <= ? order by due_ms limit ?"
        return await self.database.read(
            lambda connection: [key for (key,) in connection.execute(query, (now_ms, limit))]
        )

    async def stream(self, project: str, session_id: str) -> Stream | None:
        return await self.of_name(project, SESSION, session_id)

    async def user(self, project: str, user_id: str) -> Stream | None:
        return await self.of_name(project, USER, user_id)

    async def add_user(self, project: str, user_id: str, now_ms: int) -> Stream:
        def job(connection: apsw.Connection) -> Stream:
            rows = self.database.rows
            return rows.of_name(project, USER, user_id) or new_user(rows, project, user_id, now_ms)

        return await self.database.write(job)

    async def of_name(self, project: str, kind: str, name: str) -> Stream | None:
        found = self.database.rows.named.get((project, kind, name))
        if found is None:
            where, values = "project = ? and kind = ? and id = ?", (project, kind, name)
            found = await self.database.read(lambda connection: load_stream(connection, where, values))
        return None if found is None or found.state == "erased" else found

    async def secrets(self, key: int) -> dict[str, str]:
        query = (
            "select name, value from secrets where stream = ?1"
            " and exists (select 1 from streams where key = ?1 and state <> 'erased')"
        )
        return await self.database.glance(lambda connection: dict(connection.execute(query, (key,))))

    async def streams(self, wanted: StreamFilter) -> list[Stream]:
        clauses, values = conditions(wanted)
        query = f"select {COLUMNS} from streams where {clauses} order by started_ms desc, key desc limit ?"
        return await self.database.read(
            lambda connection: [to_stream(row) for row in connection.execute(query, (*values, wanted.limit))]
        )

    async def count_streams(self, wanted: StreamFilter) -> int:
        clauses, values = conditions(msgspec.structs.replace(wanted, after=None))
        query = f"select count(*) from streams where {clauses}"
        return int(await self.database.read(lambda connection: connection.execute(query, values).get))

    async def is_running(self, project: str, name: str) -> bool:
        query = (
            "select 1 from streams indexed by streams_by_name where project = ? and name = ? and state = 'running'"
            " and kind = ?"
        )
        return bool(await self.database.read(lambda c: c.execute(query, (project, name, SESSION)).fetchone()))

    async def streams_of(self, project: str, keys: Sequence[int]) -> list[Stream]:
        wanted = "select value from json_each(?)"
        query = f"select {COLUMNS} from streams where project = ? and kind = ? and key in ({wanted}) order by key"
        values = (project, SESSION, msgspec.json.encode(list(keys)).decode())
        return await self.database.read(
            lambda connection: [to_stream(row) for row in connection.execute(query, values)]
        )

    async def rows(self, key: int, after: int, limit: int) -> list[Row]:
        def job(connection: apsw.Connection) -> list[Row]:
            rows: list[Row] = []
            size = 0
            for run in [] if is_erased(connection, key) else runs_after(connection, key, after):
                rows.extend(row for row in rows_of(run) if row.position > after)
                size += len(run.payload)
                if size > PAGE_BYTES or len(rows) >= limit:
                    break
            return rows[:limit]

        return await self.database.read(job)

    async def load_snapshot(self, key: int, version: int, at_most: int) -> Snapshot | None:
        query = (
            "select position, version, state from snapshots where stream = ?1 and version = ?2 and position <= ?3"
            " and exists (select 1 from streams where key = ?1 and state != 'erased')"
        )
        row = await self.database.read(lambda connection: connection.execute(query, (key, version, at_most)).fetchone())
        try:
            return None if row is None else Snapshot(row[0], row[1], zlib.decompress(row[2]))
        except zlib.error:
            return None  # a damaged one is none: the journal is folded again

    async def save_snapshot(self, key: int, snapshot: Snapshot) -> None:
        values = (key, snapshot.position, snapshot.version, zlib.compress(snapshot.state, 1), key)
        query = (
            "insert or replace into snapshots select ?, ?, ?, ?"
            " where exists (select 1 from streams where key = ? and state != 'erased')"
        )
        await self.database.write(lambda connection: connection.execute(query, values).fetchall())


def rows_of(run: RunRow) -> Iterator[Row]:
    """The entries of one run. Raises `StoreUnavailable` for one that is damaged."""
    position, producer, seq, received_ms, payload, count = run
    try:
        pieces = split_array(payload) if count > 1 else [payload]
    except MALFORMED:
        raise StoreUnavailable("An event is damaged in the store.") from None
    for index, piece in enumerate(pieces):
        yield Row(position + index, producer, None if seq is None else seq + index, received_ms, piece)


def opened(connection: apsw.Connection, key: int) -> list[str]:
    """Those that were ever connected."""
    query = "select name from producers where stream = ? and epoch > 0"
    return [name for (name,) in connection.execute(query, (key,))]


def all_ended(connection: apsw.Connection, key: int) -> bool:
    query = "select 1 from producers where stream = ? and epoch > 0 and not ended limit 1"
    return connection.execute(query, (key,)).fetchone() is None


def refuse_erased(stream: Stream) -> None:
    if stream.state == "erased":
        raise Refused("session_erased")


def restarted(connection: apsw.Connection, stream: Stream, now_ms: int) -> Ending | None:
    """The end of a session that `restart` made due at once."""
    (due,) = one(connection, "select due_ms from streams where key = ?", (stream.key,))
    return stream.ending if due is not None and due <= now_ms else None


def close_stream(rows: Rows, stream: Stream, how: Ending, notice_id: str, now_ms: int) -> Stream:
    """Journal the close, and make the exports for each endpoint that hears of it."""
    rows.append_own(stream, now_ms, {"type": "session.closed", "ts": how.ts, "reason": how.reason})
    stream.state, stream.ended_ms, stream.reason, stream.provisional = "ended", now_ms, how.reason, how.provisional
    stream.silent_since_ms = stream.ending_ms = stream.ending_ts = stream.ending_reason = None
    rows.save_stream(stream)
    rows.save_producers(stream.key)
    plan(rows.connection, stream)
    enqueue_close(rows, stream, notice_id, now_ms)
    return stream


def conditions(wanted: StreamFilter) -> tuple[str, list[Any]]:
    """The where clause of a list of sessions, and its values."""
    clauses, values = ["project = ?", "kind = ?", "state != 'erased'"], [wanted.project, SESSION]
    given: list[tuple[str, Sequence[Any]]] = [
        ("state = ?", [wanted.state]),
        ("json_extract(config, '$.user_id') = ?", [wanted.user_id]),
        ("exists (select 1 from json_each(config, '$.labels') where key = ? and value = ?)", wanted.label or [None]),
        ("json_extract(config, '$.channel') = ?", [wanted.channel]),
        ("started_ms > ?", [wanted.started_after]),
        ("started_ms < ?", [wanted.started_before]),
        ("(started_ms, key) < (?, ?)", wanted.after or [None]),
    ]
    for clause, more in given:
        if more[0] is not None:
            clauses.append(clause)
            values.extend(more)
    return " and ".join(clauses), values
