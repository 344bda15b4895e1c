"""Compaction: the runs of an ended journal move into compressed archives, and are read from there (docs/storage.md).

A journal is append-only, so its first part can be copied into an archive first, and its rows deleted afterwards, a few
at a time. Whatever is in both is the same, so a crash at any moment needs no repair.
"""

import asyncio

import msgspec

from voicemem.errors import DamagedEntry
from voicemem.store.database import Connection, Port
from voicemem.store.retention import CLAIMABLE, claim
from voicemem.store.runs import RUN_COLUMNS, RunRow, compress_runs, to_run
from voicemem.store.upkeep import Portion

ARCHIVE_RUNS = 500
ARCHIVE_BYTES = 1024 * 1024
"""Payload bytes in one archive: a page of a long journal can be read without unpacking all of it."""
SELECT_RUNS_AFTER = f"""
    select {RUN_COLUMNS} from journal j where j.stream = :stream and j.position > :after
    order by j.position limit {ARCHIVE_RUNS}
"""
SELECT_LAST_ARCHIVED = "select coalesce(max(last), 0) from archives where stream = :stream"
INSERT_ARCHIVE = """
    insert into archives (stream, position, last, seqs, runs) values (:stream, :position, :last, :seqs, :runs)
"""
COMPACTABLE = CLAIMABLE.format(is_due="compact_ms <= :now_ms", column="compact_ms")
LOCK_COMPACT_MS = "select compact_ms from retention where stream = :stream for no key update"
SELECT_ARCHIVED_ROWS = """
    select position, octet_length(payload) from journal where stream = :stream and position <= :last
    order by position limit :rows
"""
DELETE_ROWS = "delete from journal where stream = :stream and position in :positions"
MARK_COMPACTED = "update retention set compact_ms = null, node = null, leased_until_ms = 0 where stream = :stream"
DELETE_FINISHED_PLAN = """
    delete from retention where stream = :stream and compact_ms is null and expires_ms is null and erased_ms is null
"""


class Compaction(Port):
    async def claim_compactable(self, node: str, now_ms: int, lease_ms: int, limit: int) -> list[int]:
        """Claim ended sessions that can no longer be reopened, and whose journals are not compacted."""
        return await claim(self.database, COMPACTABLE, node, now_ms, lease_ms, limit)

    async def compact(self, key: int) -> bool:
        """Do a portion of compacting a journal; False when nothing is left to do. Reads and duplicates stay as before.

        A damaged journal is left as it is.
        """
        try:
            begun, runs = await self.database.read(lambda connection: next_runs(connection, key))
        except DamagedEntry:  # tried again and again, it would keep all others from being compacted
            await self.database.write(lambda connection: mark_compacted(connection, key))
            return False
        if runs:
            packed = await asyncio.to_thread(compress_runs, runs)
            return await self.database.write(lambda connection: add_archive(connection, key, begun, runs, packed))
        return await self.database.write(lambda connection: delete_archived(connection, key))


def last_archived(connection: Connection, key: int) -> int:
    return int(connection.one(SELECT_LAST_ARCHIVED, stream=key)[0])


def next_runs(connection: Connection, key: int) -> tuple[int, list[RunRow]]:
    """The position up to which a journal is archived, and the runs of its next archive."""
    begun = after = last_archived(connection, key)
    size = 0
    runs: list[RunRow] = []
    while size < ARCHIVE_BYTES and (rows := connection.rows(SELECT_RUNS_AFTER, stream=key, after=after)):
        for row in rows:
            runs.append(to_run(key, row))
            size += len(runs[-1].payload)
            if size >= ARCHIVE_BYTES:
                break
        after = runs[-1].last
    return begun, runs


def add_archive(connection: Connection, key: int, begun: int, runs: list[RunRow], packed: bytes) -> bool:
    """Add an archive; False when another worker did in between, or the session was erased or reopened."""
    planned = connection.row(LOCK_COMPACT_MS, stream=key)
    if planned is None or planned[0] is None or last_archived(connection, key) != begun:
        return False
    seqs: dict[str, tuple[int, int]] = {}  # the first and the last of each producer
    for run in runs:
        if run.producer is not None and run.seq is not None:
            first, _ = seqs.get(run.producer, (run.seq, 0))
            seqs[run.producer] = first, run.seq + run.events - 1
    place = {"position": runs[0].position, "last": runs[-1].last}
    connection.execute(INSERT_ARCHIVE, stream=key, **place, seqs=msgspec.json.encode(seqs), runs=packed)
    connection.streams.count_stored(key, len(packed))
    return True


def delete_archived(connection: Connection, key: int) -> bool:
    """Delete a portion of the rows that are archived; when none is left, note that and return False."""
    portion = Portion()
    connection.row(LOCK_COMPACT_MS, stream=key)
    last = last_archived(connection, key)
    rows = connection.rows(SELECT_ARCHIVED_ROWS, stream=key, last=last, rows=portion.rows)
    if positions := portion.select(rows):
        connection.execute(DELETE_ROWS, stream=key, positions=positions)
        connection.streams.count_stored(key, -portion.selected_bytes)
        return True
    mark_compacted(connection, key)
    return False


def mark_compacted(connection: Connection, key: int) -> None:
    connection.execute(MARK_COMPACTED, stream=key)
    connection.execute(DELETE_FINISHED_PLAN, stream=key)
