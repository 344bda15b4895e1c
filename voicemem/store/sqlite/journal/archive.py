"""Compaction: the runs of an ended journal move into compressed archives, and are read from there (docs/storage.md).

A journal is append-only, so its first part can be copied into an archive first, and its rows deleted afterwards, a few
at a time. Whatever is in both is the same, and readers use the archive, so a crash at any moment needs no repair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import apsw
import msgspec

from voicemem.errors import DamagedEntry
from voicemem.store.runs import (
    ARCHIVE_BYTES,
    ArchivedSeqs,
    RunRow,
    archived_around,
    compress_runs,
    decompress_runs,
    seqs_of,
    verify_checksum,
)
from voicemem.store.sqlite.database.connections import Database
from voicemem.store.sqlite.journal.row_cache import fetch_one
from voicemem.store.sqlite.retention import IS_FREE, JsonPortion, claim

RUN_COLUMNS = "position, producer, seq, received_ms, payload, count, checksum"
SELECT_ARCHIVES_AFTER = "select runs, last from archives where stream = ? and last > ? order by position"
SELECT_RUNS_FROM = f"""
    select {RUN_COLUMNS} from journal where stream = ?1 and position >= ifnull((
        select position from journal where stream = ?1 and position <= ?2 + 1 order by position desc limit 1
    ), 0) order by position
"""
"""The run that holds position ?2 + 1, which may begin before it, and all later ones."""
SELECT_RUNS_AFTER = f"select {RUN_COLUMNS} from journal where stream = ? and position > ? order by position"
SELECT_ARCHIVED_SEQS = "select rowid, seqs from archives where stream = ? order by position"
SELECT_ARCHIVE = "select runs from archives where rowid = ?"
SELECT_LAST_ARCHIVED = """
    select ifnull((select last from archives where stream = ? order by position desc limit 1), 0)
"""
INSERT_ARCHIVE = "insert into archives (stream, position, last, seqs, runs) values (?, ?, ?, ?, ?)"
SELECT_TO_COMPACT = f"select stream from retention where compact_ms <= ?1 and {IS_FREE} order by compact_ms limit ?3"
SELECT_COMPACT_MS = "select compact_ms from retention where stream = ?"
SELECT_ARCHIVED_ROWS = """
    select rowid, length(payload) from journal where stream = ? and position <= ? order by position
"""
DELETE_ROWS = "delete from journal where rowid in (select value from json_each(?))"
MARK_COMPACTED = "update retention set compact_ms = null, node = null, leased_until_ms = 0 where stream = ?"
DELETE_FINISHED_PLAN = """
    delete from retention where stream = ? and compact_ms is null and expires_ms is null and erased_ms is null
"""


# Reading


def runs_after(connection: apsw.Connection, key: int, after: int) -> Iterator[RunRow]:
    """The runs that have a position above `after`, in order, from the archives and then from the journal."""
    for packed, last in connection.execute(SELECT_ARCHIVES_AFTER, (key, after)):
        yield from (run for run in decompress_runs(packed) if run.last > after)
        after = last
    for row in connection.execute(SELECT_RUNS_FROM, (key, after)):
        run = to_run(key, row)
        if run.last > after:
            yield run


def to_run(key: int, row: tuple[Any, ...]) -> RunRow:
    """The run of a row of `COLUMNS`. Raises `DamagedEntry`."""
    run = RunRow(*row[:-1])
    verify_checksum(key, run.position, run.payload, row[-1])
    return run


def find_archived(connection: apsw.Connection, key: int, producer: str, seq: int) -> ArchivedSeqs:
    """See `voicemem.store.runs.archived_around`."""

    def load(archive: int) -> bytes:
        (packed,) = fetch_one(connection, SELECT_ARCHIVE, (archive,))
        return bytes(packed)

    return archived_around(connection.execute(SELECT_ARCHIVED_SEQS, (key,)), load, producer, seq)


def archived_position(connection: apsw.Connection, key: int) -> int:
    """The last position that is in an archive; 0 when there is none."""
    (last,) = fetch_one(connection, SELECT_LAST_ARCHIVED, (key,))
    return int(last)


# Writing


class SqliteArchive:
    """Compaction; the methods are documented in `voicemem.store.port.Retention`."""

    database: Database

    async def claim_compactable(self, node: str, now_ms: int, lease_ms: int, limit: int) -> list[int]:
        return await claim(self.database, SELECT_TO_COMPACT, node, now_ms, lease_ms, limit)

    async def compact(self, key: int) -> bool:
        try:
            begun, runs = await self.database.read(lambda connection: next_runs(connection, key))
        except DamagedEntry:  # tried again and again, it would keep all others from being compacted
            await self.database.write(lambda connection: mark_compacted(connection, key))
            return False
        if runs:
            packed = await asyncio.to_thread(compress_runs, runs)
            return await self.database.write(lambda connection: add_archive(connection, key, begun, runs, packed))
        return await self.database.write(lambda connection: delete_archived(connection, key))


def next_runs(connection: apsw.Connection, key: int) -> tuple[int, list[RunRow]]:
    """The position up to which a journal is archived, and the runs of its next archive."""
    begun, size = archived_position(connection, key), 0
    runs: list[RunRow] = []
    for row in connection.execute(SELECT_RUNS_AFTER, (key, begun)):
        runs.append(to_run(key, row))
        size += len(runs[-1].payload)
        if size >= ARCHIVE_BYTES:
            break
    return begun, runs


def add_archive(connection: apsw.Connection, key: int, begun: int, runs: list[RunRow], packed: bytes) -> bool:
    """Add an archive; False when another worker did meanwhile, or the session was erased or reopened."""
    planned = connection.execute(SELECT_COMPACT_MS, (key,)).fetchone()
    if planned is None or planned[0] is None or archived_position(connection, key) != begun:
        return False
    values = (key, runs[0].position, runs[-1].last, msgspec.json.encode(seqs_of(runs)), packed)
    connection.execute(INSERT_ARCHIVE, values)
    return True


def delete_archived(connection: apsw.Connection, key: int) -> bool:
    """Delete a portion of the rows that are archived; when none is left, note that and return False."""
    rows = connection.execute(SELECT_ARCHIVED_ROWS, (key, archived_position(connection, key)))
    if rowids := JsonPortion().select_keys(rows):
        connection.execute(DELETE_ROWS, (rowids,))
        return True
    mark_compacted(connection, key)
    return False


def mark_compacted(connection: apsw.Connection, key: int) -> None:
    """Note that nothing is left to compact."""
    connection.execute(MARK_COMPACTED, (key,))
    connection.execute(DELETE_FINISHED_PLAN, (key,))
