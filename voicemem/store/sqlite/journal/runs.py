"""The rows of the journal: each is a run with a checksum; waypoints find the run that holds a seq.

A run with seqs is a waypoint, or has a waypoint of its producer less than `STRIDE` positions before it. Only waypoints
are indexed by seq: an index of every row would double the pages that an append writes.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import apsw

from voicemem.errors import DamagedEntry

MAX_ROWS = 1_000
"""Rows in one statement: SQLite takes at most 32,766 values."""
WAYPOINT_STRIDE = 256
MAX_SEQ = 2**63 - 1
"""The highest integer of SQLite."""

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


class JournalRun(NamedTuple):
    """Events of one producer (None: the server's own) that came together, at consecutive positions and seqs."""

    stream: int
    position: int
    producer: str | None
    seq: int | None
    received_ms: int
    payloads: Sequence[bytes]


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
    payload = payloads[0] if len(payloads) == 1 else b"[" + b",".join(payloads) + b"]"
    checked = checksum(stream, position, payload)
    return stream, position, producer, seq, received_ms, len(payloads), payload, checked, waypoint


def checksum(stream: int, position: int, payload: bytes) -> int:
    """The CRC of a payload in its place, so that a row that was moved elsewhere counts as damaged too."""
    return zlib.crc32(payload, (stream ^ position) & 0xFFFFFFFF)


def verify_checksum(stream: int, position: int, payload: bytes, stored: int | None) -> None:
    """Raise `DamagedEntry` for a run that is not what was written."""
    if stored is not None and stored != checksum(stream, position, payload):
        raise DamagedEntry


class StoredRun(NamedTuple):
    """A run of a producer as it is stored: its first seq, its number of events, and their payload."""

    seq: int
    events: int
    payload: bytes


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


class Waypoints:
    """The newest waypoint of each producer, as far as this writer knows them."""

    def __init__(self) -> None:
        self.newest: dict[tuple[int, str], int] = {}
        """Positions, by stream and producer."""

    def mark(self, run: JournalRun) -> bool:
        """Whether a run that is about to be inserted is a waypoint.

        After a start nothing is known, so a producer's first run is one: a waypoint too many costs a page, and one too
        few would hide a seq.
        """
        if run.producer is None or run.seq is None:
            return False
        newest = self.newest.get((run.stream, run.producer))
        if newest is not None and run.position - newest < WAYPOINT_STRIDE:
            return False
        self.newest[run.stream, run.producer] = run.position
        return True
