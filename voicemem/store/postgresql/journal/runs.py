"""The rows of the journal on PostgreSQL: how runs are inserted, and found by their seqs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from voicemem.store.postgresql.database.connection import Row, Session
from voicemem.store.runs import (
    MAX_SEQ,
    PAGE_BYTES,
    WAYPOINT_STRIDE,
    ArchivedSeqs,
    JournalRun,
    RunRow,
    StoredRun,
    archived_around,
    checksum,
    decompress_runs,
    verify_checksum,
)

RUN_ARRAYS = """
    unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
    $8::boolean[], $9::bytea[]) as r (stream, position, producer, seq, received_ms, count, checksum, waypoint, payload)
"""
INSERT_RUNS = f"""
    insert into journal (stream, position, producer, seq, received_ms, count, checksum, waypoint, payload)
    select r.* from {RUN_ARRAYS}
"""
IS_STREAMS = "j.stream = $1"
IS_WAYPOINT = f"{IS_STREAMS} and j.producer = $2 and j.waypoint"
FIRST_POSITION = f"""coalesce(
    (select j.position from journal j where {IS_WAYPOINT} and j.seq <= $3 order by j.seq desc limit 1),
    (select min(j.position) from journal j where {IS_STREAMS})
)"""
"""The position of the waypoint at or before a seq; if that was archived, of the first row left in the journal."""
ROWS_FROM_WAYPOINT = f"""
    from (select {FIRST_POSITION} as first) w join journal j on {IS_STREAMS} and j.position >= w.first
    and j.position < w.first + {WAYPOINT_STRIDE} where j.producer = $2 and j.seq is not null
"""
"""The producer's rows within the reach of this waypoint."""
SELECT_RUN_AT_OR_BEFORE = f"""
    select j.seq, j.count, j.payload, j.position, j.checksum {ROWS_FROM_WAYPOINT} and j.seq <= $3
    order by j.position desc limit 1
"""
SELECT_NEXT_SEQ_IN_REACH = f"select j.seq {ROWS_FROM_WAYPOINT} and j.seq > $3 order by j.position limit 1"
SELECT_NEXT_WAYPOINT = f"select j.seq from journal j where {IS_WAYPOINT} and j.seq > $3 order by j.seq limit 1"
SELECT_LAST_SEQ = f"select j.seq + j.count - 1 {ROWS_FROM_WAYPOINT} order by j.position desc limit 1"
RUN_COLUMNS = "j.position, j.producer, j.seq, j.received_ms, j.payload, j.count, j.checksum"
IS_READABLE = "exists (select 1 from streams where key = $1 and state <> 'erased')"
"""Whether a stream is there; the content of an erased one is deleted later."""
SELECT_ARCHIVES_AFTER = f"""
    select runs, last from archives where stream = $1 and last > $2 and {IS_READABLE}
    order by position limit 1
"""
SELECT_RUNS_FROM = f"""
    select {RUN_COLUMNS} from (
        select {RUN_COLUMNS},
        sum(octet_length(j.payload)) over (order by j.position) - octet_length(j.payload) as before
        from (
            select * from journal j where {IS_STREAMS} and j.position >= coalesce((
                select j.position from journal j where {IS_STREAMS} and j.position <= $2 + 1
                order by j.position desc limit 1
            ), 0) and {IS_READABLE} order by j.position limit $3
        ) j
    ) j where j.before < $4 order by j.position
"""
"""The run that holds position $2 + 1, which may begin before it, and later ones, until they are $4 bytes or more."""
SELECT_ARCHIVED_SEQS = "select position, seqs from archives where stream = $1 order by position"
SELECT_ARCHIVE = "select runs from archives where stream = $1 and position = $2"
PAGE_RUNS = 500
"""What is read at once: a journal can be much larger than memory allows."""


class RunColumns:
    """The runs of one statement, as the arrays of `RUN_ARRAYS`."""

    def __init__(self) -> None:
        self.values: list[list[Any]] = [[] for _ in range(9)]

    def add(self, run: JournalRun, waypoint: bool) -> None:
        payload, producer = run.encoded, None if run.producer is None else run.producer
        checked = checksum(run.stream, run.position, payload)
        row = (
            run.stream,
            run.position,
            producer,
            run.seq,
            run.received_ms,
            len(run.payloads),
            checked,
            waypoint,
            payload,
        )
        for column, value in zip(self.values, row, strict=True):
            column.append(value)


def find_run(session: Session, stream: int, producer: str, seq: int) -> StoredRun | None:
    """The run that holds a seq, or else the last one before it. Raises `DamagedEntry`."""
    row = session.row(SELECT_RUN_AT_OR_BEFORE, (stream, producer, seq))
    if row is None:
        return None
    *values, position, checked = row
    run = StoredRun(*values)
    verify_checksum(stream, position, run.payload, checked)
    return run


def next_stored_seq(session: Session, stream: int, producer: str, seq: int) -> int | None:
    """The lowest seq above one with which a run starts; None when no run does."""
    values = stream, producer, seq
    queries = SELECT_NEXT_SEQ_IN_REACH, SELECT_NEXT_WAYPOINT
    return min((row[0] for query in queries for row in session.rows(query, values)), default=None)


def find_last_seq(session: Session, stream: int, producer: str) -> int:
    """The last seq that the journal has of a producer; 0 when it has none."""
    row = session.row(SELECT_LAST_SEQ, (stream, producer, MAX_SEQ))
    return 0 if row is None else int(row[0])


def to_run(key: int, row: Row) -> RunRow:
    """The run of a row of `RUN_COLUMNS`. Raises `DamagedEntry`."""
    position, producer, seq, received_ms, payload, count, checked = row
    verify_checksum(key, position, payload, checked)
    return RunRow(position, None if producer is None else producer, seq, received_ms, payload, count)


def runs_after(session: Session, key: int, after: int) -> Iterator[RunRow]:
    """The runs above position `after` of a stream that is not erased, in order, from the archives and then the journal.

    What is read was mostly written just now, so the journal is asked first. Each query sees its own moment, and
    compaction may move rows in between: so what the journal lacks is looked for in the archives after that.
    """
    while True:
        rows = session.rows(SELECT_RUNS_FROM, (key, after, PAGE_RUNS, PAGE_BYTES))
        runs = [run for run in (to_run(key, row) for row in rows) if run.last > after]
        if runs and runs[0].position <= after + 1:
            yield from runs
            if len(rows) < PAGE_RUNS and sum(len(run.payload) for run in runs) < PAGE_BYTES:
                return  # the query had room for more
            after = runs[-1].last
            continue
        archive = session.row(SELECT_ARCHIVES_AFTER, (key, after))
        if archive is None:
            return
        packed, last = archive
        yield from (run for run in decompress_runs(packed) if run.last > after)
        after = last


def find_archived(session: Session, key: int, producer: str, seq: int) -> ArchivedSeqs:
    """See `voicemem.store.runs.archived_around`."""

    def load(position: int) -> bytes:
        (packed,) = session.one(SELECT_ARCHIVE, (key, position))
        return bytes(packed)

    return archived_around(session.rows(SELECT_ARCHIVED_SEQS, (key,)), load, producer, seq)
