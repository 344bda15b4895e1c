"""The reading half of `voicemem.store.port.Journal` on PostgreSQL: streams, entries of journals, snapshots."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from voicemem.store.postgresql.database.connection import Row, Session
from voicemem.store.postgresql.database.pool import Database
from voicemem.store.postgresql.journal.rows import STREAM_COLUMNS, label_digest, load_stream, to_stream
from voicemem.store.postgresql.journal.runs import IS_READABLE, find_last_seq, runs_after
from voicemem.store.records import MAX_COUNTED, JournalRow, SessionFilter, Snapshot
from voicemem.store.runs import page_of
from voicemem.store.streams import SESSION_KIND, USER_KIND, Stream

SELECT_STREAM_BY_NAME = f"""
    select {STREAM_COLUMNS} from stream_ids i join streams s on s.key = i.stream
    where i.project = $1 and i.kind = $2 and i.id = $3
"""
SELECT_HAS_SEQS = """
    select 1 from producers where stream = $1 and name = $2 and next_seq > 1
"""
SELECT_DUE_SESSIONS = "select key from streams where due_ms <= $1 order by due_ms limit $2"
SELECT_READABLE_SECRETS = f"""
    select name, value from secrets where stream = $1 and {IS_READABLE}
"""
SELECT_STREAMS_BY_KEYS = f"""
    select {STREAM_COLUMNS} from unnest($3::bigint[]) as wanted (key)
    join streams s on s.key = wanted.key
    where s.project = $1 and s.kind = $2 order by s.key
"""
SELECT_NEWEST_KEYS = "select key from streams where project = $1 and kind = $2 order by key desc limit $3"
SELECT_KEYS_AFTER = "select key from streams where project = $1 and kind = $2 and key > $4 order by key limit $3"
LIST_CONFIG_BYTES = f"""
    select * from (
        select {STREAM_COLUMNS}, sum(octet_length(s.config)) over (order by s.started_ms desc, s.key desc)
        - octet_length(s.config) as before from streams s where {{conditions}}
        order by s.started_ms desc, s.key desc limit ${{limit}}
    ) page where before < ${{bytes}}
"""
LIST_STREAMS = f"""
    select {STREAM_COLUMNS} from streams s where {{conditions}} order by s.started_ms desc, s.key desc limit ${{limit}}
"""
COUNT_STREAMS = "select count(*) from (select 1 from streams s where {conditions} limit ${limit}) c"
SELECT_SNAPSHOT = f"""
    select position, version, state from snapshots where stream = $1 and version = $2
    and position <= $3 and {IS_READABLE}
"""
FILTERS = {
    "state": "s.state = ${}",
    "user_id": "s.user_id = ${}",
    "label": "exists (select 1 from labels l where l.stream = s.key and l.digest = ${})",
    "channel": "s.channel = ${}",
    "started_after": "s.started_ms > ${}",
    "started_before": "s.started_ms < ${}",
    "interrupted": "(coalesce(s.interruptions, 0) > 0) = ${}",
    "slow_ms": "s.slowest_ms >= ${}",
    "webhook": "exists (select 1 from deliveries x where x.stream = s.key and x.state = ${})",
    "keys": "s.key = any(${}::bigint[])",
    "after": "(s.started_ms, s.key) < (${}, ${})",
}
"""The condition of each field of a `SessionFilter` that is set; a field with two marks is a pair."""


IS_LISTED = "s.project = $1 and s.kind = $2 and s.state <> 'erased'"
WORDS = ("state", "webhook")
"""The fields whose values are the service's own words."""


class PostgresqlJournalReads:
    """Reads of streams and journals; the methods are documented in `voicemem.store.port.Journal`."""

    database: Database

    async def has_seqs(self, key: int, producer: str) -> bool:
        return await self.database.read(
            lambda session: (
                find_last_seq(session, key, producer) > 0 or session.row(SELECT_HAS_SEQS, (key, producer)) is not None
            )
        )

    async def find_due(self, now_ms: int, limit: int) -> list[int]:
        return await self.select_keys(SELECT_DUE_SESSIONS, (now_ms, limit))

    async def find_session(self, project: str, session_id: str) -> Stream | None:
        return await self.find_by_name(project, SESSION_KIND, session_id)

    async def find_user(self, project: str, user_id: str) -> Stream | None:
        return await self.find_by_name(project, USER_KIND, user_id)

    async def find_by_name(self, project: str, kind: str, name: str) -> Stream | None:
        values = (project, kind, name)
        stream = await self.database.read(lambda session: load_stream(session, SELECT_STREAM_BY_NAME, values))
        return None if stream is None or stream.state == "erased" else stream

    async def was_erased(self, project: str, session_id: str) -> bool:
        values = (project, SESSION_KIND, session_id)
        stream = await self.database.read(lambda session: load_stream(session, SELECT_STREAM_BY_NAME, values))
        return stream is not None and stream.state == "erased"

    async def load_secrets(self, key: int) -> dict[str, str]:
        rows = await self.database.read(lambda session: session.rows(SELECT_READABLE_SECRETS, (key,)))
        return {name: value for name, value in rows}

    async def list_sessions(self, wanted: SessionFilter) -> list[Stream]:
        return (await self.list_page(wanted, sys.maxsize))[0]

    async def list_page(self, wanted: SessionFilter, max_bytes: int) -> tuple[list[Stream], bool]:
        clauses, values = conditions(wanted)
        limit, bound = len(values) + 1, len(values) + 2
        query = LIST_CONFIG_BYTES.format(conditions=clauses, limit=limit, bytes=bound)
        more = f"select count(*) from (select 1 from streams s where {clauses} limit ${limit}) c"

        def job(session: Session) -> tuple[list[Stream], bool]:
            rows = session.rows(query, (*values, wanted.limit, max_bytes))
            (count,) = session.one(more, (*values, len(rows) + 1))
            return [to_stream(row[:-1]) for row in rows], count > len(rows)

        return await self.database.read(job)

    async def count_sessions(self, wanted: SessionFilter, most: int = MAX_COUNTED) -> int:
        clauses, values = conditions(msgspec.structs.replace(wanted, after=None))
        query = COUNT_STREAMS.format(conditions=clauses, limit=len(values) + 1)
        (count,) = await self.database.read(lambda session: session.one(query, (*values, most)))
        return int(count)

    async def find_sessions(self, project: str, keys: Sequence[int]) -> list[Stream]:
        values = (project, SESSION_KIND, list(keys))
        rows = await self.database.read(lambda session: session.rows(SELECT_STREAMS_BY_KEYS, values))
        return [to_stream(row) for row in rows]

    async def list_newest_keys(self, project: str, limit: int) -> list[int]:
        return await self.select_keys(SELECT_NEWEST_KEYS, (project, SESSION_KIND, limit))

    async def list_keys_after(self, project: str, key: int, limit: int) -> list[int]:
        return await self.select_keys(SELECT_KEYS_AFTER, (project, SESSION_KIND, limit, key))

    async def select_keys(self, query: str, values: Row) -> list[int]:
        return await self.database.read(lambda session: [key for (key,) in session.rows(query, values)])

    async def read_rows(self, key: int, after: int, limit: int) -> list[JournalRow]:
        def job(session: Session) -> list[JournalRow]:
            return page_of(runs_after(session, key, after), after, limit)

        return await self.database.read(job)

    async def load_snapshot(self, key: int, version: int, at_most: int) -> Snapshot | None:
        row = await self.database.read(lambda session: session.row(SELECT_SNAPSHOT, (key, version, at_most)))
        try:
            return None if row is None else Snapshot(row[0], row[1], zlib.decompress(row[2]))
        except zlib.error:
            return None  # damaged: the journal is folded again instead


def conditions(wanted: SessionFilter) -> tuple[str, list[Any]]:
    """The where clause of a list of sessions, and its values."""
    values: list[Any] = [wanted.project, SESSION_KIND]
    return " and ".join([IS_LISTED, *clauses_of(wanted, FILTERS, values)]), values


def clauses_of(wanted: SessionFilter, fields: Iterable[str], values: list[Any]) -> list[str]:
    """The conditions of those of these fields that are set; their values are added to those that are given."""
    clauses = []
    for field in fields:
        value: Any = getattr(wanted, field)
        if value is None:
            continue
        if field == "label":
            value = label_digest(*value)
        elif field in WORDS:
            value = value
        elif field == "keys":
            value = [*value]
        given = value if isinstance(value, tuple) else (value,)
        clauses.append(FILTERS[field].format(*range(len(values) + 1, len(values) + 1 + len(given))))
        values.extend(given)
    return clauses
