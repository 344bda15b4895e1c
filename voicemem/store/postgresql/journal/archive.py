"""Compaction: the runs of an ended journal move into compressed archives, and are read from there (docs/storage.md).

A journal is append-only, so its first part can be copied into an archive first, and its rows deleted afterwards, a few
at a time. Whatever is in both is the same, and readers use the archive, so a crash at any moment needs no repair.
"""

from __future__ import annotations

import asyncio

import msgspec

from voicemem.errors import DamagedEntry
from voicemem.store.postgresql.database.connection import Session
from voicemem.store.postgresql.database.pool import Database
from voicemem.store.postgresql.journal.rows import Rows
from voicemem.store.postgresql.journal.runs import IS_STREAMS, RUN_COLUMNS, to_run
from voicemem.store.postgresql.retention import IS_FREE, claim
from voicemem.store.runs import ARCHIVE_BYTES, RunRow, compress_runs, seqs_of
from voicemem.store.upkeep import Portion

ARCHIVE_RUNS = 500
SELECT_RUNS_AFTER = f"""
    select {RUN_COLUMNS} from journal j where {IS_STREAMS} and j.position > $2 order by j.position limit {ARCHIVE_RUNS}
"""
SELECT_LAST_ARCHIVED = "select coalesce(max(last), 0) from archives where stream = $1"
INSERT_ARCHIVE = "insert into archives values ($1, $2, $3, $4, $5)"
SELECT_COMPACTABLE = f"""
    select stream from retention where compact_ms <= $1 and {IS_FREE} order by compact_ms limit $3
"""
LOCK_COMPACT_MS = "select compact_ms from retention where stream = $1 for no key update"
SELECT_ARCHIVED_ROWS = f"""
    select j.position, octet_length(j.payload) from journal j where {IS_STREAMS} and j.position <= $2
    order by j.position limit $3
"""
DELETE_ROWS = "delete from journal where stream = $1 and position = any($2::bigint[])"
MARK_COMPACTED = """
    update retention set compact_ms = null, node = null, leased_until_ms = 0 where stream = $1
"""
DELETE_FINISHED_PLAN = """
    delete from retention where stream = $1
    and compact_ms is null and expires_ms is null and erased_ms is null
"""


class PostgresqlArchive:
    """Compaction; the methods are documented in `voicemem.store.port.Retention`."""

    database: Database

    async def claim_compactable(self, node: str, now_ms: int, lease_ms: int, limit: int) -> list[int]:
        return await claim(self.database, SELECT_COMPACTABLE, node, now_ms, lease_ms, limit)

    async def compact(self, key: int) -> bool:
        try:
            begun, runs = await self.database.read(lambda session: next_runs(session, key))
        except DamagedEntry:  # tried again and again, it would keep all others from being compacted
            await self.database.write(lambda rows: mark_compacted(rows.session, key))
            return False
        if runs:
            packed = await asyncio.to_thread(compress_runs, runs)
            return await self.database.write(lambda rows: add_archive(rows, key, begun, runs, packed))
        return await self.database.write(lambda rows: delete_archived(rows, key))


def next_runs(session: Session, key: int) -> tuple[int, list[RunRow]]:
    """The position up to which a journal is archived, and the runs of its next archive."""
    (begun,) = session.one(SELECT_LAST_ARCHIVED, (key,))
    after, size = begun, 0
    runs: list[RunRow] = []
    while size < ARCHIVE_BYTES and (rows := session.rows(SELECT_RUNS_AFTER, (key, after))):
        for row in rows:
            runs.append(to_run(key, row))
            size += len(runs[-1].payload)
            if size >= ARCHIVE_BYTES:
                break
        after = runs[-1].last
    return begun, runs


def add_archive(rows: Rows, key: int, begun: int, runs: list[RunRow], packed: bytes) -> bool:
    """Add an archive; False when another worker did meanwhile, or the session was erased or reopened."""
    planned = rows.session.row(LOCK_COMPACT_MS, (key,))
    if planned is None or planned[0] is None or rows.session.one(SELECT_LAST_ARCHIVED, (key,)) != (begun,):
        return False
    values = (key, runs[0].position, runs[-1].last, msgspec.json.encode(seqs_of(runs)), packed)
    rows.session.execute(INSERT_ARCHIVE, values)
    rows.stored[key] += len(packed)
    return True


def delete_archived(rows: Rows, key: int) -> bool:
    """Delete a portion of the rows that are archived; when none is left, note that and return False."""
    session, portion = rows.session, Portion()
    session.row(LOCK_COMPACT_MS, (key,))
    (last,) = session.one(SELECT_LAST_ARCHIVED, (key,))
    if positions := portion.select(session.rows(SELECT_ARCHIVED_ROWS, (key, last, portion.rows))):
        session.execute(DELETE_ROWS, (key, positions))
        rows.stored[key] -= portion.selected_bytes
        return True
    mark_compacted(session, key)
    return False


def mark_compacted(session: Session, key: int) -> None:
    """Note that nothing is left to compact."""
    session.execute(MARK_COMPACTED, (key,))
    session.execute(DELETE_FINISHED_PLAN, (key,))
