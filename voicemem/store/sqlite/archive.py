"""Compaction: the runs of an ended journal move into compressed blobs, and are read from there (design, section 9).

A journal is append-only, so its first part can be copied into an archive at leisure and its rows deleted afterwards, a
few at a time: what is in both is the same, and readers take the archive's. A crash anywhere leaves nothing to mend.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import apsw
import msgspec

from voicemem.errors import StoreUnavailable
from voicemem.protocol.codec import split_array
from voicemem.store.sqlite.database import Database
from voicemem.store.sqlite.retention import Portion
from voicemem.store.sqlite.rows import one
from voicemem.store.sqlite.runs import check

ARCHIVE_BYTES = 1024 * 1024
"""Payloads in one archive: a page of a long journal is read without unpacking all of it."""
LEVEL = 6
"""Of zlib; 9 saves two hundredths more for five times the work."""


class RunRow(NamedTuple):
    """A row of the journal, without its stream."""

    position: int
    producer: str | None
    seq: int | None
    received_ms: int
    payload: bytes
    events: int

    @property
    def last(self) -> int:
        """The position of its last event."""
        return self.position + self.events - 1


COLUMNS = "position, producer, seq, received_ms, payload, count, checksum"
RUNS = msgspec.msgpack.Decoder(list[RunRow])
SEQS = msgspec.json.Decoder(dict[str, tuple[int, int]])


# Reading


def runs_after(connection: apsw.Connection, key: int, after: int) -> Iterator[RunRow]:
    """The runs that have a position above `after`, in order, from the archives and then from the journal."""
    query = "select runs, last from archives where stream = ? and last > ? order by position"
    for packed, last in connection.execute(query, (key, after)):
        yield from (run for run in unpack(packed) if run.last > after)
        after = last
    query = (
        f"select {COLUMNS} from journal where stream = ?1 and position >= ifnull((select position from journal"
        " where stream = ?1 and position <= ?2 + 1 order by position desc limit 1), 0) order by position"
    )
    for row in connection.execute(query, (key, after)):
        run = to_run(key, row)
        if run.last > after:
            yield run


def to_run(key: int, row: tuple[Any, ...]) -> RunRow:
    """A row of the journal. Raises `StoreUnavailable` for a damaged one."""
    run = RunRow(*row[:-1])
    check(key, run.position, run.payload, row[-1])
    return run


class Known(NamedTuple):
    """What archives say about seqs of one producer: the payloads of those in `seqs` that are stored."""

    payloads: dict[int, bytes]
    seqs: range


def known_around(connection: apsw.Connection, key: int, producer: str, seq: int) -> Known:
    """What the archives say about a seq and those beside it; without payloads when no archive reaches over it."""
    start, stop = 1, 2**63
    query = "select rowid, seqs from archives where stream = ? order by position"
    for archive, encoded in connection.execute(query, (key,)):
        first, last = SEQS.decode(encoded).get(producer, (1, 0))
        if first <= seq <= last:
            (packed,) = one(connection, "select runs from archives where rowid = ?", (archive,))
            runs = [run for run in unpack(packed) if run.producer == producer]
            return Known(dict(numbered for run in runs for numbered in payloads_of(run)), range(first, last + 1))
        if first <= last < seq:
            start = last + 1
        elif seq < first <= last:
            stop = min(stop, first)
    return Known({}, range(start, stop))


def payloads_of(run: RunRow) -> Iterator[tuple[int, bytes]]:
    """The events of a run by seq; none for one without."""
    if run.seq is not None:
        yield from enumerate(split_array(run.payload) if run.events > 1 else [run.payload], run.seq)


def archived_to(connection: apsw.Connection, key: int) -> int:
    """The last position that is in an archive; 0 for none."""
    query = "select ifnull((select last from archives where stream = ? order by position desc limit 1), 0)"
    (last,) = one(connection, query, (key,))
    return int(last)


def pack(runs: list[RunRow]) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(runs), LEVEL)


@lru_cache(maxsize=2)  # a journal is read page by page, and an archive has many of them
def unpack(packed: bytes) -> list[RunRow]:
    try:
        return RUNS.decode(zlib.decompress(packed))
    except (zlib.error, msgspec.DecodeError):
        raise StoreUnavailable("An archive of the journal is damaged in the store.") from None


def seqs_of(runs: list[RunRow]) -> dict[str, tuple[int, int]]:
    """The first and the last seq of each producer."""
    found: dict[str, tuple[int, int]] = {}
    for run in runs:
        if run.producer is not None and run.seq is not None:
            first, _ = found.get(run.producer, (run.seq, 0))
            found[run.producer] = first, run.seq + run.events - 1
    return found


# Writing


class SqliteArchive:
    """Compaction; the methods are documented in `voicemem.store.port.Retention`."""

    database: Database

    async def to_compact(self, now_ms: int, limit: int) -> list[int]:
        query = "select stream from retention where compact_ms <= ? order by compact_ms limit ?"
        return await self.database.read(
            lambda connection: [key for (key,) in connection.execute(query, (now_ms, limit))]
        )

    async def compact(self, key: int) -> bool:
        begun, runs = await self.database.read(lambda connection: next_runs(connection, key))
        if runs:
            packed = await asyncio.to_thread(pack, runs)
            return await self.database.write(lambda connection: add_archive(connection, key, begun, runs, packed))
        return await self.database.write(lambda connection: delete_archived(connection, key))


def next_runs(connection: apsw.Connection, key: int) -> tuple[int, list[RunRow]]:
    """The position up to which a journal is archived, and the runs of its next archive."""
    begun, size = archived_to(connection, key), 0
    runs: list[RunRow] = []
    query = f"select {COLUMNS} from journal where stream = ? and position > ? order by position"
    for row in connection.execute(query, (key, begun)):
        runs.append(to_run(key, row))
        size += len(runs[-1].payload)
        if size >= ARCHIVE_BYTES:
            break
    return begun, runs


def add_archive(connection: apsw.Connection, key: int, begun: int, runs: list[RunRow], packed: bytes) -> bool:
    """Add an archive, unless somebody else did, or the session was erased or runs again."""
    planned = connection.execute("select compact_ms from retention where stream = ?", (key,)).fetchone()
    if planned is None or planned[0] is None or archived_to(connection, key) != begun:
        return False
    connection.execute(
        "insert into archives (stream, position, last, seqs, runs) values (?, ?, ?, ?, ?)",
        (key, runs[0].position, runs[-1].last, msgspec.json.encode(seqs_of(runs)), packed),
    )
    return True


def delete_archived(connection: apsw.Connection, key: int) -> bool:
    """Delete the first rows of a journal that is archived; False, and the work noted as done, when none is left."""
    rows = connection.execute(
        "select rowid, length(payload) from journal where stream = ? and position <= ? order by position",
        (key, archived_to(connection, key)),
    )
    if rowids := Portion().take(rows):
        connection.execute("delete from journal where rowid in (select value from json_each(?))", (rowids,))
        return True
    connection.execute("update retention set compact_ms = null where stream = ?", (key,))
    connection.execute(
        "delete from retention where stream = ? and compact_ms is null and expires_ms is null and erased_ms is null",
        (key,),
    )
    return False
