"""The rows of the journal: each is a run, with a checksum of its own."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import apsw

from voicemem.errors import StoreUnavailable

MOST_ROWS = 1_000
"""Rows in one statement: SQLite takes 32,766 values."""


class Run(NamedTuple):
    """Events of one producer (None: the server's own) that came together, at consecutive positions and seqs."""

    stream: int
    position: int
    producer: str | None
    seq: int | None
    received_ms: int
    payloads: Sequence[bytes]


def insert(connection: apsw.Connection, runs: Sequence[tuple[Run, bool]]) -> None:
    """Insert runs, each with whether it is a waypoint.

    One statement for many: between rows another thread could take the interpreter away. `or rollback` spares a copy of
    every page that it touches: the transaction is over anyway when a row cannot be inserted.
    """
    for first in range(0, len(runs), MOST_ROWS):
        some = runs[first : first + MOST_ROWS]
        marks = ",".join(["(?,?,?,?,?,?,?,?,?)"] * len(some))
        connection.execute(
            "insert or rollback into journal"
            " (stream, position, producer, seq, received_ms, count, payload, checksum, waypoint) values " + marks,
            [value for run, waypoint in some for value in columns_of(run, waypoint)],
        )


def columns_of(run: Run, waypoint: bool) -> tuple[str | bytes | int | None, ...]:
    stream, position, producer, seq, received_ms, payloads = run
    payload = payloads[0] if len(payloads) == 1 else b"[" + b",".join(payloads) + b"]"
    checked = checksum(stream, position, payload)
    return stream, position, producer, seq, received_ms, len(payloads), payload, checked, waypoint


def checksum(stream: int, position: int, payload: bytes) -> int:
    """Of a run, in its place."""
    return zlib.crc32(payload, (stream ^ position) & 0xFFFFFFFF)


def check(stream: int, position: int, payload: bytes, stored: int | None) -> None:
    """Raise `StoreUnavailable` for a run that is not what was written."""
    if stored is not None and stored != checksum(stream, position, payload):
        raise StoreUnavailable("An entry of the journal is damaged in the store.")


STRIDE = 256
MOST = 2**63 - 1
"""The highest integer of SQLite."""
WAYPOINT = "j.stream = ?1 and j.producer = ?2 and j.seq is not null and j.waypoint is not 0"
FROM = (
    f"ifnull((select j.position from journal j where {WAYPOINT} and j.seq <= ?3 order by j.seq desc limit 1),"
    " (select min(j.position) from journal j where j.stream = ?1))"
)
"""The waypoint at or before a seq; where it was archived, the first row of what is left of the journal."""
BEHIND = (
    f"from journal r, (select {FROM} as first) where r.stream = ?1 and r.position >= first"
    f" and r.position < first + {STRIDE} and r.producer = ?2 and r.seq is not null"
)
"""The rows that this waypoint leads to."""


class Found(NamedTuple):
    """A run of a producer as it is stored: its first seq, how many events, and their payload."""

    seq: int
    events: int
    payload: bytes


def run_at(connection: apsw.Connection, stream: int, producer: str, seq: int) -> Found | None:
    """The run that holds a seq, or the last one before it. Raises `StoreUnavailable` for a damaged one."""
    columns = "r.seq, r.count, r.payload, r.position, r.checksum"
    query = f"select {columns} {BEHIND} and r.seq <= ?3 order by r.position desc limit 1"
    row = connection.execute(query, (stream, producer, seq)).fetchone()
    if row is None:
        return None
    *found, position, checked = row
    run = Found(*found)
    check(stream, position, run.payload, checked)
    return run


def seq_after(connection: apsw.Connection, stream: int, producer: str, seq: int) -> int | None:
    """The next seq above one that starts a run."""
    near = f"select r.seq {BEHIND} and r.seq > ?3 order by r.position limit 1"
    far = f"select j.seq from journal j where {WAYPOINT} and j.seq > ?3 order by j.seq limit 1"
    values = stream, producer, seq
    found = [row[0] for query in (near, far) for row in connection.execute(query, values)]
    return min(found, default=None)


def last_seq(connection: apsw.Connection, stream: int, producer: str) -> int:
    """The last seq that the journal has of a producer; 0 when it has none."""
    query = f"select r.seq + r.count - 1 {BEHIND} order by r.position desc limit 1"
    row = connection.execute(query, (stream, producer, MOST)).fetchone()
    return 0 if row is None else int(row[0])


class Waypoints:
    """The newest waypoints that the writer knows of."""

    def __init__(self) -> None:
        self.newest: dict[tuple[int, str], int] = {}
        """Positions, by stream and producer."""

    def mark(self, run: Run) -> bool:
        """Whether a run that is to be inserted is a waypoint; where nothing is known it is one."""
        if run.producer is None or run.seq is None:
            return False
        newest = self.newest.get((run.stream, run.producer))
        if newest is not None and run.position - newest < STRIDE:
            return False
        self.newest[run.stream, run.producer] = run.position
        return True
