"""Queries of the journal's rows (`voicemem.store.runs`): by the seqs of a producer, and by position."""

from __future__ import annotations

from collections.abc import Iterator

from voicemem.store.database import Connection, Row
from voicemem.store.runs import (
    MAX_SEQ,
    PAGE_BYTES,
    WAYPOINT_STRIDE,
    ArchivedSeqs,
    RunRow,
    StoredRun,
    archived_around,
    decompress_runs,
    verify_checksum,
)

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
    select j.seq, j.count, j.payload, j.position, j.checksum {ROWS_FROM_WAYPOINT} and j.seq <= :seq
    order by j.position desc limit 1
"""
SELECT_NEXT_SEQ_IN_REACH = f"select j.seq {ROWS_FROM_WAYPOINT} and j.seq > :seq order by j.position limit 1"
SELECT_NEXT_WAYPOINT = f"select j.seq from journal j where {IS_WAYPOINT} and j.seq > :seq order by j.seq limit 1"
SELECT_LAST_SEQ = f"select j.seq + j.count - 1 {ROWS_FROM_WAYPOINT} order by j.position desc limit 1"
RUN_COLUMNS = "j.position, j.producer, j.seq, j.received_ms, j.payload, j.count, j.checksum"
IS_READABLE = "exists (select 1 from streams where key = :stream and state <> 'erased')"
"""Whether a stream is there; the content of an erased one is deleted later."""
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
"""Some of these, so few that they have no more than these bytes, and how many there are of at most `runs`."""
SELECT_ARCHIVED_SEQS = "select position, seqs from archives where stream = :stream order by position"
SELECT_ARCHIVE = "select runs from archives where stream = :stream and position = :position"
FIRST_RUNS, PAGE_RUNS = 50, 500
"""Read at once, at first and at most: few callers want more, and a journal can be much larger than memory allows."""


def find_run(connection: Connection, stream: int, producer: str, seq: int) -> StoredRun | None:
    """The run that holds a seq, or else the last one before it. Raises `DamagedEntry`."""
    row = connection.row(SELECT_RUN_AT_OR_BEFORE, stream=stream, producer=producer, seq=seq)
    if row is None:
        return None
    *values, position, checked = row
    run = StoredRun(*values)
    verify_checksum(stream, position, run.payload, checked)
    return run


def next_stored_seq(connection: Connection, stream: int, producer: str, seq: int) -> int | None:
    """The lowest seq above one with which a run starts; None when no run does."""
    queries = SELECT_NEXT_SEQ_IN_REACH, SELECT_NEXT_WAYPOINT
    found = (connection.row(query, stream=stream, producer=producer, seq=seq) for query in queries)
    return min((row[0] for row in found if row is not None), default=None)


def find_last_seq(connection: Connection, stream: int, producer: str) -> int:
    """The last seq that the journal has of a producer; 0 when it has none."""
    row = connection.row(SELECT_LAST_SEQ, stream=stream, producer=producer, seq=MAX_SEQ)
    return 0 if row is None else int(row[0])


def find_archived(connection: Connection, stream: int, producer: str, seq: int) -> ArchivedSeqs:
    """See `voicemem.store.runs.archived_around`."""

    def load(position: int) -> bytes:
        return bytes(connection.one(SELECT_ARCHIVE, stream=stream, position=position)[0])

    return archived_around(connection.rows(SELECT_ARCHIVED_SEQS, stream=stream), load, producer, seq)


def to_run(stream: int, row: Row) -> RunRow:
    """The run of a row of `RUN_COLUMNS`. Raises `DamagedEntry`."""
    run = RunRow(*row[:-1])
    verify_checksum(stream, run.position, run.payload, row[-1])
    return run


def runs_after(connection: Connection, stream: int, after: int) -> Iterator[RunRow]:
    """The runs above position `after` of a stream that is not erased, in order, from the archives and then the journal.

    What is read was mostly written just now, so the journal is asked first. Each query may see its own moment, and
    compaction may move rows in between: so what the journal lacks is looked for in the archives after that.
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
