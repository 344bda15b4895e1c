"""The rows of the journal on SQLite: how runs are inserted, and found by their seqs."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from voicemem.store.runs import MAX_SEQ, WAYPOINT_STRIDE, JournalRun, StoredRun, checksum, verify_checksum

MAX_ROWS = 1_000
"""Rows in one statement: SQLite takes at most 32,766 values."""

INSERT_RUNS = (
    "insert or rollback into journal"
    " (stream, position, producer, seq, received_ms, count, payload, checksum, waypoint) values "
)
"""`or rollback` spares SQLite a copy of every page that the statement touches; a row that cannot be inserted ends the
transaction anyway."""
RUN_VALUES = "(?,?,?,?,?,?,?,?,?)"
IS_WAYPOINT = "j.stream = ?1 and j.producer = ?2 and j.seq is not null and j.waypoint is not 0"
FIRST_POSITION = (
    f"ifnull((select j.position from journal j where {IS_WAYPOINT} and j.seq <= ?3 order by j.seq desc limit 1),"
    " (select min(j.position) from journal j where j.stream = ?1))"
)
"""The position of the waypoint at or before a seq; if that was archived, of the first row left in the journal."""
ROWS_FROM_WAYPOINT = (
    f"from journal r, (select {FIRST_POSITION} as first) where r.stream = ?1 and r.position >= first"
    f" and r.position < first + {WAYPOINT_STRIDE} and r.producer = ?2 and r.seq is not null"
)
"""The producer's rows within the reach of this waypoint."""
SELECT_RUN_AT_OR_BEFORE = f"""
    select r.seq, r.count, r.payload, r.position, r.checksum {ROWS_FROM_WAYPOINT} and r.seq <= ?3
    order by r.position desc limit 1
"""
SELECT_NEXT_SEQ_IN_REACH = f"select r.seq {ROWS_FROM_WAYPOINT} and r.seq > ?3 order by r.position limit 1"
SELECT_NEXT_WAYPOINT = f"select j.seq from journal j where {IS_WAYPOINT} and j.seq > ?3 order by j.seq limit 1"
SELECT_LAST_SEQ = f"select r.seq + r.count - 1 {ROWS_FROM_WAYPOINT} order by r.position desc limit 1"


def insert_runs(connection: apsw.Connection, runs: Sequence[tuple[JournalRun, bool]]) -> None:
    """Insert runs, each with whether it is a waypoint.

    Many go into one statement: between two statements Python may switch to another thread, and the whole transaction
    would wait for it.
    """
    for first in range(0, len(runs), MAX_ROWS):
        some = runs[first : first + MAX_ROWS]
        marks = ",".join([RUN_VALUES] * len(some))
        connection.execute(
            INSERT_RUNS + marks, [value for run, waypoint in some for value in columns_of(run, waypoint)]
        )


def columns_of(run: JournalRun, waypoint: bool) -> tuple[str | bytes | int | None, ...]:
    """The values of a row, in the order of `INSERT_RUNS`; the payloads of several events become one JSON array."""
    stream, position, producer, seq, received_ms, payloads = run
    payload = run.encoded
    checked = checksum(stream, position, payload)
    return stream, position, producer, seq, received_ms, len(payloads), payload, checked, waypoint


def find_run(connection: apsw.Connection, stream: int, producer: str, seq: int) -> StoredRun | None:
    """The run that holds a seq, or else the last one before it. Raises `DamagedEntry`."""
    row = connection.execute(SELECT_RUN_AT_OR_BEFORE, (stream, producer, seq)).fetchone()
    if row is None:
        return None
    *values, position, checked = row
    run = StoredRun(*values)
    verify_checksum(stream, position, run.payload, checked)
    return run


def next_stored_seq(connection: apsw.Connection, stream: int, producer: str, seq: int) -> int | None:
    """The lowest seq above one with which a run starts; None when no run does."""
    values = stream, producer, seq
    queries = SELECT_NEXT_SEQ_IN_REACH, SELECT_NEXT_WAYPOINT
    return min((row[0] for query in queries for row in connection.execute(query, values)), default=None)


def find_last_seq(connection: apsw.Connection, stream: int, producer: str) -> int:
    """The last seq that the journal has of a producer; 0 when it has none."""
    row = connection.execute(SELECT_LAST_SEQ, (stream, producer, MAX_SEQ)).fetchone()
    return 0 if row is None else int(row[0])
