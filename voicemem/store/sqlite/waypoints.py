"""Where the seqs of a producer stand in a journal, found by an index of some of its rows: the waypoints.

A row with a seq is a waypoint, or has one of its producer less than `STRIDE` positions before it. An index of every row
would double the pages that an append writes.
"""

from __future__ import annotations

from typing import NamedTuple

import apsw

from voicemem.store.sqlite.runs import Run, check

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
