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
