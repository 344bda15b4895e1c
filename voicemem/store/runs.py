"""The rows of a journal, as every engine stores them: runs of events with a checksum, archives of runs, waypoints.

A run with seqs is a waypoint, or has a waypoint of its producer less than `WAYPOINT_STRIDE` positions before it. Only
waypoints are indexed by seq: an index of every row would double the pages that an append writes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from voicemem.errors import DamagedEntry
from voicemem.protocol.codec import split_array
from voicemem.protocol.strict_json import MALFORMED
from voicemem.store.records import JournalRow
from voicemem.store.streams import Stream

WAYPOINT_STRIDE = 256
MAX_SEQ = 2**63 - 1
ARCHIVE_BYTES = 1024 * 1024
"""Payload bytes in one archive: a page of a long journal can be read without unpacking all of it."""
PAGE_BYTES = 4 * 1024 * 1024
"""Payload bytes in a page of entries: one that exceeds them is its last."""
ZLIB_LEVEL = 6
"""Of zlib; level 9 saves 2 % more for five times the work."""


class JournalRun(NamedTuple):
    """Events of one producer (None: the server's own) that came together, at consecutive positions and seqs."""

    stream: int
    position: int
    producer: str | None
    seq: int | None
    received_ms: int
    payloads: Sequence[bytes]

    @property
    def encoded(self) -> bytes:
        """The payload of its row; those of several events become one JSON array."""
        payloads = self.payloads
        return payloads[0] if len(payloads) == 1 else b"[" + b",".join(payloads) + b"]"

    @property
    def size(self) -> int:
        """The bytes of that."""
        count = len(self.payloads)
        return sum(map(len, self.payloads)) + (count + 1 if count > 1 else 0)


def checksum(stream: int, position: int, payload: bytes) -> int:
    """The CRC of a payload in its place, so that a row that was moved elsewhere counts as damaged too."""
    return zlib.crc32(payload, (stream ^ position) & 0xFFFFFFFF)


def verify_checksum(stream: int, position: int, payload: bytes, stored: int | None) -> None:
    """Raise `DamagedEntry` for a run that is not what was written."""
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
        """The position of its last event."""
        return self.position + self.events - 1


def rows_of(run: RunRow) -> Iterator[JournalRow]:
    """The entries of one run. Raises `DamagedEntry`."""
    position, producer, seq, received_ms, payload, count = run
    try:
        payloads = split_array(payload) if count > 1 else [payload]
    except MALFORMED:
        raise DamagedEntry from None
    for index, event in enumerate(payloads):
        yield JournalRow(position + index, producer, None if seq is None else seq + index, received_ms, event)


def page_of(runs: Iterable[RunRow], after: int, limit: int) -> list[JournalRow]:
    """Entries after a position: at most `limit`, and about `PAGE_BYTES`. Raises `DamagedEntry`."""
    rows: list[JournalRow] = []
    size = 0
    for run in runs:
        rows.extend(row for row in rows_of(run) if row.position > after)
        size += len(run.payload)
        if size > PAGE_BYTES or len(rows) >= limit:
            break
    return rows[:limit]


class StoredRun(NamedTuple):
    """A run of a producer as it is stored: its first seq, its number of events, and their payload."""

    seq: int
    events: int
    payload: bytes

    @property
    def payloads(self) -> list[bytes]:
        return [self.payload] if self.events == 1 else split_array(self.payload)


def server_run(stream: Stream, now_ms: int, event: dict[str, Any] | bytes) -> JournalRun:
    """The run of an event of the server's own, at the next position of a stream, which it takes."""
    stream.position += 1
    payload = event if isinstance(event, bytes) else msgspec.json.encode(event)
    return JournalRun(stream.key, stream.position, None, None, now_ms, [payload])


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


def payloads_of(run: RunRow) -> Iterator[tuple[int, bytes]]:
    """The seq and payload of each event of a run; nothing for a run without seqs."""
    if run.seq is not None:
        yield from enumerate(split_array(run.payload) if run.events > 1 else [run.payload], run.seq)


def compress_runs(runs: list[RunRow]) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(runs), ZLIB_LEVEL)


@lru_cache(maxsize=2)  # an archive holds many of the pages by which a journal is read
def decompress_runs(packed: bytes) -> list[RunRow]:
    try:
        return RUNS_DECODER.decode(zlib.decompress(packed))
    except (zlib.error, msgspec.DecodeError):
        raise DamagedEntry("An archive of the journal is damaged in the store.") from None


def seqs_of(runs: list[RunRow]) -> dict[str, tuple[int, int]]:
    """The first and the last seq of each producer."""
    ranges: dict[str, tuple[int, int]] = {}
    for run in runs:
        if run.producer is not None and run.seq is not None:
            first, _ = ranges.get(run.producer, (run.seq, 0))
            ranges[run.producer] = first, run.seq + run.events - 1
    return ranges


class ArchivedSeqs(NamedTuple):
    """What the archives know about seqs of one producer: of the range `seqs`, those in `payloads` are stored."""

    payloads: dict[int, bytes]
    seqs: range


def archived_around(
    archives: Iterable[tuple[int, bytes]], load: Callable[[int], bytes], producer: str, seq: int
) -> ArchivedSeqs:
    """The payloads of the archive that covers a seq; without one, the range of seqs around it that no archive has.

    `archives` are those of one stream, in order: what `load` finds the runs of one by, and `seqs_of` it as JSON.
    """
    start, stop = 1, 2**63
    for archive, encoded in archives:
        first, last = SEQS_DECODER.decode(encoded).get(producer, (1, 0))
        if first <= seq <= last:
            runs = [run for run in decompress_runs(load(archive)) if run.producer == producer]
            return ArchivedSeqs(dict(numbered for run in runs for numbered in payloads_of(run)), range(first, last + 1))
        if first <= last < seq:
            start = last + 1
        elif seq < first <= last:
            stop = min(stop, first)
    return ArchivedSeqs({}, range(start, stop))


class Originals(NamedTuple):
    """What is stored around a seq of a producer."""

    payloads: dict[int, bytes]
    """By seq."""
    unpacked: range | None
    """Seqs of which `payloads` has all that are stored; None where that is not known."""
    gap: range
    """Seqs around it of which none is stored."""


def originals_around(archived: ArchivedSeqs, run: StoredRun | None, seq: int, next_seq: Callable[[], int]) -> Originals:
    """The payloads around a seq: those of the run that holds it or comes before it, and the gap when none holds it.

    `archived` has none of its payloads. `next_seq` finds the seq behind the gap.
    """
    after = 1 if run is None else run.seq + run.events
    stored = [] if run is None else run.payloads
    gap = range(max(after, archived.seqs.start), min(next_seq(), archived.seqs.stop)) if seq >= after else range(0)
    return Originals(dict(enumerate(stored, after - len(stored))), None, gap)


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
