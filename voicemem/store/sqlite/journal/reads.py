"""The reading half of `voicemem.store.port.Journal` on SQLite: streams, entries of journals, snapshots."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import apsw
import msgspec

from voicemem.store.records import CLIENT_ID_LABEL, MAX_COUNTED, JournalRow, SessionFilter, Snapshot
from voicemem.store.runs import page_of
from voicemem.store.sqlite.database.connections import Database
from voicemem.store.sqlite.journal.archive import runs_after
from voicemem.store.sqlite.journal.row_cache import (
    CONFIG_INDEX,
    SELECT_STREAM_BY_NAME,
    STREAM_COLUMNS,
    load_stream,
    to_stream,
)
from voicemem.store.sqlite.journal.runs import find_last_seq
from voicemem.store.sqlite.retention import is_erased
from voicemem.store.streams import SESSION_KIND, USER_KIND, Stream

"""Payload bytes read at once: a journal can be much larger than memory allows."""

SELECT_HAS_SEQS = "select 1 from producers where stream = ? and name = ? and next_seq > 1"
SELECT_DUE_SESSIONS = "select key from streams where due_ms <= ? order by due_ms limit ?"
SELECT_READABLE_SECRETS = """
    select name, value from secrets where stream = ?1
    and exists (select 1 from streams where key = ?1 and state <> 'erased')
"""
SELECT_STREAMS_BY_KEYS = f"""
    select {STREAM_COLUMNS} from streams where project = ? and kind = ? and key in (select value from json_each(?))
    order by key
"""
SELECT_NEWEST_KEYS = """
    select key from streams indexed by streams_by_key where project = ? and kind = ? order by key desc limit ?
"""
SELECT_KEYS_AFTER = """
    select key from streams indexed by streams_by_key where project = ? and kind = ? and key > ? order by key limit ?
"""
IN_PROJECT = "project = ? and kind = ?"
IS_LISTED = f"{IN_PROJECT} and state != 'erased'"
"""The condition of the index by start. Where a state is asked for, the index by state leads to fewer sessions."""
SESSION_FILTERS = {
    "state": "state = ?",
    "user_id": "streams.user_id = ?",
    "label": "exists (select 1 from json_each(config, '$.labels') where key = ? and value = ?)",
    "channel": "json_extract(config, '$.channel') = ?",
    "started_after": "started_ms > ?",
    "started_before": "started_ms < ?",
    "interrupted": "(ifnull(interruptions, 0) > 0) = ?",
    "slow_ms": "slowest_ms >= ?",
    "webhook": "exists (select 1 from deliveries x where x.stream = streams.key and x.state = ?)",
    "keys": "streams.key in (select value from json_each(?))",
    "after": "(started_ms, key) < (?, ?)",
}
"""The condition of each field of a `StreamFilter` that is set; a field with two marks is a pair."""
HAS_CLIENT_ID = f"""case when json_valid(cast(config as text))
    then json_extract(cast(config as text), '$.labels."{CLIENT_ID_LABEL}"') end = ?"""
"""The same for the label that has an index."""
LIST_STREAMS = f"select {STREAM_COLUMNS} from streams where {{conditions}} order by started_ms desc, key desc limit ?"
COUNT_STREAMS = "select count(*) from (select 1 from streams where {conditions} limit ?)"
SELECT_SNAPSHOT = """
    select position, version, state from snapshots where stream = ?1 and version = ?2 and position <= ?3
    and exists (select 1 from streams where key = ?1 and state != 'erased')
"""


class SqliteJournalReads:
    """Reads of streams and journals; the methods are documented in `voicemem.store.port.Journal`."""

    database: Database

    async def has_seqs(self, key: int, producer: str) -> bool:
        return await self.database.read(
            lambda connection: (
                find_last_seq(connection, key, producer) > 0
                or connection.execute(SELECT_HAS_SEQS, (key, producer)).fetchone() is not None
            )
        )

    async def find_due(self, now_ms: int, limit: int) -> list[int]:
        return await self.database.read(
            lambda connection: [key for (key,) in connection.execute(SELECT_DUE_SESSIONS, (now_ms, limit))]
        )

    async def find_session(self, project: str, session_id: str) -> Stream | None:
        return await self.find_by_name(project, SESSION_KIND, session_id)

    async def find_user(self, project: str, user_id: str) -> Stream | None:
        return await self.find_by_name(project, USER_KIND, user_id)

    async def find_by_name(self, project: str, kind: str, name: str) -> Stream | None:
        """The committed stream of a name, from the writer's cache where it is there: then no thread is switched."""
        stream = self.database.rows.committed.find_by_name(project, kind, name)
        if stream is None:
            values = (project, kind, name)
            stream = await self.database.read(lambda connection: load_stream(connection, SELECT_STREAM_BY_NAME, values))
        return None if stream is None or stream.state == "erased" else stream

    async def was_erased(self, project: str, session_id: str) -> bool:
        values = (project, SESSION_KIND, session_id)
        stream = await self.database.read(lambda connection: load_stream(connection, SELECT_STREAM_BY_NAME, values))
        return stream is not None and stream.state == "erased"

    async def load_secrets(self, key: int) -> dict[str, str]:
        return await self.database.read_inline(
            lambda connection: dict(connection.execute(SELECT_READABLE_SECRETS, (key,)))
        )

    async def list_sessions(self, wanted: SessionFilter) -> list[Stream]:
        return (await self.list_page(wanted, sys.maxsize))[0]

    async def list_page(self, wanted: SessionFilter, max_bytes: int) -> tuple[list[Stream], bool]:
        clauses, values = conditions(wanted)
        query = LIST_STREAMS.format(conditions=clauses)

        def job(connection: apsw.Connection) -> tuple[list[Stream], bool]:
            page: list[Stream] = []
            size = 0
            for row in connection.execute(query, (*values, wanted.limit + 1)):
                if len(page) == wanted.limit or size >= max_bytes:
                    return page, True
                page.append(to_stream(row))
                size += len(row[CONFIG_INDEX])
            return page, False

        return await (self.database.scan(job) if is_scan(wanted) else self.database.read(job))

    async def count_sessions(self, wanted: SessionFilter, most: int = MAX_COUNTED) -> int:
        clauses, values = conditions(msgspec.structs.replace(wanted, after=None))
        query = COUNT_STREAMS.format(conditions=clauses)
        return int(await self.database.scan(lambda connection: connection.execute(query, (*values, most)).get))

    async def find_sessions(self, project: str, keys: Sequence[int]) -> list[Stream]:
        values = (project, SESSION_KIND, msgspec.json.encode(list(keys)).decode())
        return await self.database.read(
            lambda connection: [to_stream(row) for row in connection.execute(SELECT_STREAMS_BY_KEYS, values)]
        )

    async def list_newest_keys(self, project: str, limit: int) -> list[int]:
        return await self.select_keys(SELECT_NEWEST_KEYS, (project, SESSION_KIND, limit))

    async def list_keys_after(self, project: str, key: int, limit: int) -> list[int]:
        return await self.select_keys(SELECT_KEYS_AFTER, (project, SESSION_KIND, key, limit))

    async def select_keys(self, query: str, values: tuple[Any, ...]) -> list[int]:
        return await self.database.read(lambda connection: [key for (key,) in connection.execute(query, values)])

    async def read_rows(self, key: int, after: int, limit: int) -> list[JournalRow]:
        def job(connection: apsw.Connection) -> list[JournalRow]:
            return [] if is_erased(connection, key) else page_of(runs_after(connection, key, after), after, limit)

        return await self.database.read(job)

    async def load_snapshot(self, key: int, version: int, at_most: int) -> Snapshot | None:
        values = (key, version, at_most)

        def job(connection: apsw.Connection) -> Snapshot | None:
            row = connection.execute(SELECT_SNAPSHOT, values).fetchone()
            try:
                return None if row is None else Snapshot(row[0], row[1], zlib.decompress(row[2]))
            except zlib.error:
                return None  # damaged: the journal is folded again instead

        return await self.database.read(job)


def is_scan(wanted: SessionFilter) -> bool:
    """Whether a list is found by looking through rows, which may be all of a project's, instead of by an index."""
    checked = (wanted.channel, wanted.interrupted, wanted.slow_ms, wanted.webhook, wanted.keys)
    has_label = wanted.label is not None and wanted.label[0] != CLIENT_ID_LABEL
    return has_label or any(condition is not None for condition in checked)


def conditions(wanted: SessionFilter) -> tuple[str, list[Any]]:
    """The where clause of a list of sessions, and its values."""
    clauses, values = clauses_of(wanted, SESSION_FILTERS)
    listed = IN_PROJECT if wanted.state in ("running", "ended") else IS_LISTED
    return " and ".join([listed, *clauses]), [wanted.project, SESSION_KIND, *values]


def clauses_of(wanted: SessionFilter, fields: Iterable[str]) -> tuple[list[str], list[Any]]:
    """The conditions of those of these fields that are set, and their values."""
    clauses: list[str] = []
    values: list[Any] = []
    for field in fields:
        clause, value = SESSION_FILTERS[field], getattr(wanted, field)
        if field == "label" and value is not None and value[0] == CLIENT_ID_LABEL:
            clause, value = HAS_CLIENT_ID, value[1]
        elif field == "keys" and value is not None:
            value = msgspec.json.encode(value).decode()
        if value is not None:
            clauses.append(clause)
            values.extend(value if isinstance(value, tuple) else (value,))
    return clauses, values
