"""The rows of a journal, as every engine stores them: runs of events with a checksum, archives of runs, waypoints.

A run with seqs is a waypoint, or has a waypoint of its producer less than `WAYPOINT_STRIDE` positions before it. Only
waypoints are indexed by seq: an index of every row would double the pages that an append writes.
"""

import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import msgspec

from voicemem.errors import DamagedEntry
from voicemem.protocol.codec import MALFORMED, RAW_ARRAY_DECODER
from voicemem.store.append_rules import JournalRun, checksum
from voicemem.store.database import Connection, Row
from voicemem.store.records import JournalRow

WAYPOINT_STRIDE = 256
MAX_SEQ = 2**63 - 1
PAGE_BYTES = 4 * 1024 * 1024
"""Payload bytes in a page of entries: one that exceeds them is its last."""
ZLIB_LEVEL = 6
"""The level of zlib; 9 saves 2 % more for five times the work."""
JOURNAL_COLUMNS = "stream, position, producer, seq, received_ms, count, checksum, waypoint, payload"
RUN_COLUMNS = "j.position, j.producer, j.seq, j.received_ms, j.payload, j.count, j.checksum"
IS_WAYPOINT = "j.stream = :stream and j.producer = :producer and j.seq is not null and j.waypoint"
FIRST_POSITION = f"""coalesce(
    (select j.position from journal j where {IS_WAYPOINT} and j.seq <= :seq order by j.seq desc limit 1),
    (select min(j.position) from journal j where j.stream = :stream)
)"""
"""The position of the waypoint at or before a seq; if that was archived, of the first row left in the journal."""
ROWS_FROM_WAYPOINT = f"""
    from (select {FIRST_POSITION} as first) w join journal j on j.stream = :stream and j.position >= w.first
    and j.position < w.first + {WAYPOINT_STRIDE} where j.producer = :producer and j.seq is not null
"""
"""The producer's rows within the reach of this waypoint."""
SELECT_RUN_AT_OR_BEFORE = f"""
    select {RUN_COLUMNS} {ROWS_FROM_WAYPOINT} and j.seq <= :seq
    order by j.position desc limit 1
"""
SELECT_NEXT_SEQ_IN_REACH = f"select j.seq {ROWS_FROM_WAYPOINT} and j.seq > :seq order by j.position limit 1"
SELECT_NEXT_WAYPOINT = f"select j.seq from journal j where {IS_WAYPOINT} and j.seq > :seq order by j.seq limit 1"
SELECT_LAST_SEQ = f"select j.seq + j.count - 1 {ROWS_FROM_WAYPOINT} order by j.position desc limit 1"
IS_READABLE = "exists (select 1 from streams where key = :stream and state <> 'erased')"
"""True if a stream exists and is not erased; the content of an erased one is deleted later."""
SELECT_ARCHIVES_AFTER = f"""
    select runs, last from archives where stream = :stream and last > :after and {IS_READABLE}
    order by position limit 1
"""
RUNS_FROM = f"""
    from journal j where j.stream = :stream and j.position >= coalesce((
        select position from journal where stream = :stream and position <= :after + 1 order by position desc limit 1
    ), 0) and {IS_READABLE} order by j.position
"""
"""The run that holds position `after` + 1, which may begin before it, and all later ones."""
SELECT_RUNS_FROM = f"""
    select {RUN_COLUMNS}, (select count(*) from (select 1 {RUNS_FROM} limit :runs) c) {RUNS_FROM} limit (
        select greatest(1, least(:runs, :bytes / greatest(1, coalesce(max(size), 0))))
        from (select octet_length(j.payload) as size {RUNS_FROM} limit :runs) s
    )
"""
"""The first of these, as many as fit into `bytes`, and how many of at most `runs` there are."""
SELECT_ARCHIVED_SEQS = "select position, seqs from archives where stream = :stream order by position"
SELECT_ARCHIVE = "select runs from archives where stream = :stream and position = :position"
FIRST_RUNS, PAGE_RUNS = 50, 500
"""Runs read at once, at first and at most: few readers want more, and a journal can be larger than memory."""


def verify_checksum(stream: int, position: int, payload: bytes, stored: int | None) -> None:
    """Raise `DamagedEntry` for a run that differs from what was written."""
    if stored is not None and stored != checksum(stream, position, payload):
        raise DamagedEntry


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
        return self.position + self.events - 1

    @property
    def payloads(self) -> list[bytes]:
        """The payload of each event. Raises `DamagedEntry`."""
        try:
            return [*map(bytes, RAW_ARRAY_DECODER.decode(self.payload))] if self.events > 1 else [self.payload]
        except MALFORMED:
            raise DamagedEntry from None


def to_run(stream: int, row: Row) -> RunRow:
    """Return the run of a row of `RUN_COLUMNS`. Raises `DamagedEntry`."""
    run = RunRow(*row[:-1])
    verify_checksum(stream, run.position, run.payload, row[-1])
    return run


def group_runs(key: int, rows: Iterable[JournalRow]) -> Iterator[JournalRun]:
    """Join entries into the runs that are stored: consecutive ones of a producer that came together."""
    payloads: list[bytes] = []
    last: JournalRow | None = None
    for row in rows:
        joins = last is not None and (row.producer, row.received_ms) == (last.producer, last.received_ms)
        if last is not None and joins and row.seq == (None if last.seq is None else last.seq + 1):
            payloads.append(row.payload)
        else:
            payloads = [row.payload]
            yield JournalRun(key, row.position, row.producer, row.seq, row.received_ms, payloads)
        last = row


SEQS_DECODER = msgspec.json.Decoder(dict[str, tuple[int, int]])
RUNS_DECODER = msgspec.msgpack.Decoder(list[RunRow])


def compress_runs(runs: list[RunRow]) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(runs), ZLIB_LEVEL)


@lru_cache(maxsize=2)  # an archive holds many of the pages by which a journal is read
def decompress_runs(packed: bytes) -> list[RunRow]:
    try:
        return RUNS_DECODER.decode(zlib.decompress(packed))
    except (zlib.error, msgspec.DecodeError):
        raise DamagedEntry("An archive of the journal is damaged in the store.") from None


# By the seqs of a producer


def find_run(connection: Connection, stream: int, producer: str, seq: int) -> RunRow | None:
    """Return the run that holds a seq, or else the last one before it. Raises `DamagedEntry`."""
    row = connection.row(SELECT_RUN_AT_OR_BEFORE, stream=stream, producer=producer, seq=seq)
    return None if row is None else to_run(stream, row)


def next_stored_seq(connection: Connection, stream: int, producer: str, seq: int) -> int | None:
    """Return the lowest seq above one with which a run starts; None when no run does."""
    queries = SELECT_NEXT_SEQ_IN_REACH, SELECT_NEXT_WAYPOINT
    rows = (connection.row(query, stream=stream, producer=producer, seq=seq) for query in queries)
    return min((row[0] for row in rows if row is not None), default=None)


def find_last_seq(connection: Connection, stream: int, producer: str) -> int:
    row = connection.row(SELECT_LAST_SEQ, stream=stream, producer=producer, seq=MAX_SEQ)
    return 0 if row is None else int(row[0])


def load_originals(
    connection: Connection, stream: int, producer: str, seq: int, next_seq: int
) -> tuple[dict[int, bytes], range]:
    """Return the payloads around a seq, by seq, and the range of seqs in which no others are stored.

    They are those of the archive that covers it, or of the run that holds or precedes it. A seq between two runs lies
    in a gap that the producer declared, and the range is the whole gap. `next_seq` ends the last gap.
    """
    start, stop = 1, next_seq
    for archive, encoded in connection.rows(SELECT_ARCHIVED_SEQS, stream=stream):
        first, last = SEQS_DECODER.decode(encoded).get(producer, (1, 0))
        if first <= seq <= last:
            (packed,) = connection.one(SELECT_ARCHIVE, stream=stream, position=archive)
            runs = [run for run in decompress_runs(bytes(packed)) if run.producer == producer and run.seq is not None]
            return dict(one for run in runs for one in enumerate(run.payloads, run.seq or 0)), range(first, last + 1)
        if first <= last < seq:
            start = last + 1
        elif seq < first <= last:
            stop = min(stop, first)
    run = find_run(connection, stream, producer, seq)
    payloads: dict[int, bytes] = {}
    if run is not None and run.seq is not None:
        payloads = dict(enumerate(run.payloads, run.seq))
        start = max(start, run.seq + run.events)
    if seq in payloads:
        return payloads, range(0)
    return payloads, range(start, min(next_stored_seq(connection, stream, producer, seq) or stop, stop))


# By position


def runs_after(connection: Connection, stream: int, after: int) -> Iterator[RunRow]:
    """Yield the runs above position `after` of a stream that is not erased, in order, from archives and journal.

    Most reads are of runs that were just written, so the journal is queried first. Each query may see its own moment,
    and compaction may move rows in between: so runs that the journal lacks are then looked up in the archives.
    """
    most = FIRST_RUNS
    while True:
        values = {"stream": stream, "after": after}
        rows = connection.rows(SELECT_RUNS_FROM, **values, runs=most, bytes=PAGE_BYTES)
        runs = [run for run in (to_run(stream, row[:-1]) for row in rows) if run.last > after]
        if runs and runs[0].position <= after + 1:
            yield from runs
            if len(rows) == rows[0][-1] < most:
                return  # the query had room for more
            after, most = runs[-1].last, min(2 * most, PAGE_RUNS)
            continue
        archive = connection.row(SELECT_ARCHIVES_AFTER, **values)
        if archive is None:
            return
        packed, last = archive
        yield from (run for run in decompress_runs(packed) if run.last > after)
        after = last


def page_of(runs: Iterable[RunRow], after: int, limit: int) -> list[JournalRow]:
    """Return entries after a position: at most `limit`, and about `PAGE_BYTES`. Raises `DamagedEntry`."""
    rows: list[JournalRow] = []
    size = 0
    for run in runs:
        for index, payload in enumerate(run.payloads):
            if run.position + index > after:
                seq = None if run.seq is None else run.seq + index
                rows.append(JournalRow(run.position + index, run.producer, seq, run.received_ms, payload))
        size += len(run.payload)
        if size > PAGE_BYTES or len(rows) >= limit:
            break
    return rows[:limit]
