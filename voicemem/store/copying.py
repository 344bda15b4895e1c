"""A copy of a store into another engine: portions of rows, then a comparison of every row (docs/postgresql.md)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import msgspec
from msgspec.structs import replace

from voicemem.errors import DamagedEntry
from voicemem.store.copied_tables import (
    ARCHIVES,
    CHECKSUM,
    COPIED_VALUES,
    JOURNAL,
    PAYLOAD,
    POSITION,
    RUNS,
    STREAM,
    TABLES,
    CopiedTable,
    Row,
    bytes_in,
    events_in,
)
from voicemem.store.ports.copying import (
    COPYING,
    MOVED,
    CopyEnd,
    CopyFailed,
    CopyMark,
    Differs,
    MovedMark,
    Report,
)
from voicemem.store.runs import decompress_runs, verify_checksum

PORTION_ROWS, PORTION_BYTES = 5_000, 4 * 1024 * 1024
"""What one transaction of a copy adds; the row that exceeds the bytes is its last."""
REPORT_ROWS = 5_000
"""Rows that are compared between two reports."""


def begin_copy(source: CopyEnd, target: CopyEnd) -> CopyMark:
    """Where a copy begins, or goes on. Raises `CopyFailed` for a target that is not empty, or half of another copy."""
    incarnation, volume = source.values["incarnation"], source.measure()
    if COPYING not in target.values:
        if not target.is_empty:
            raise CopyFailed("The target is not empty; a copy needs a store of its own.")
        return CopyMark(incarnation=incarnation, volume=volume)
    mark = msgspec.msgpack.decode(target.values[COPYING], type=CopyMark)
    if mark.incarnation != incarnation:
        raise CopyFailed("The target is half of a copy of another store; finish that, or begin with an empty one.")
    if mark.volume != volume:
        raise CopyFailed("The source was used since this copy began, so begin again with an empty target.")
    return mark


def copy_rows(source: CopyEnd, target: CopyEnd, mark: CopyMark, report: Report) -> CopyMark:
    """Copy everything behind a mark; where it ends. Raises what the engines raise."""
    if not mark.table:
        target.prepare(mark.volume, msgspec.msgpack.encode(mark))
    names = [table.name for table in TABLES]
    for table in TABLES[names.index(mark.table) if mark.table else 0 :]:
        after = mark.after if table.name == mark.table else None
        for portion, size in portions(source.read(table, after)):
            mark = replace(
                mark,
                table=table.name,
                after=table.place(portion[-1]),
                rows=mark.rows + len(portion),
                events=mark.events + sum(events_in(table, row) for row in portion),
                size=mark.size + size,
            )
            target.add(table, portion, msgspec.msgpack.encode(mark))
            report(mark)
    return mark


def portions(rows: Iterator[Row]) -> Iterator[tuple[list[Row], int]]:
    """Rows in portions, with about how many bytes they hold."""
    portion: list[Row] = []
    size = 0
    for row in rows:
        portion.append(row)
        size += bytes_in(row)
        if size >= PORTION_BYTES or len(portion) == PORTION_ROWS:
            yield portion, size
            portion, size = [], 0
    if portion:
        yield portion, size


def compare_rows(source: CopyEnd, target: CopyEnd, report: Report) -> set[int]:
    """Compare every row of both ends. Raises `Differs`.

    Returns the sessions whose journal is damaged in the source; in the copy it is as damaged.
    """
    done = CopyMark(incarnation=source.values["incarnation"], volume=source.measure())
    damaged: set[int] = set()
    for table in TABLES:
        rows = events = size = 0
        for ours, theirs in zip_longest(source.read(table), target.read(table)):
            if ours != theirs:
                raise Differs(difference(table, ours, theirs))
            if is_damaged(table, ours):
                damaged.add(ours[STREAM])
            rows, events, size = rows + 1, events + events_in(table, ours), size + bytes_in(ours)
            if rows % REPORT_ROWS == 0:
                report(progress(done, table, rows, events, size))
        done = progress(done, table, rows, events, size)
        report(done)
    return damaged


def progress(mark: CopyMark, table: CopiedTable, rows: int, events: int, size: int) -> CopyMark:
    """A mark with as much more behind it."""
    return replace(mark, table=table.name, rows=mark.rows + rows, events=mark.events + events, size=mark.size + size)


def difference(table: CopiedTable, ours: Row | None, theirs: Row | None) -> str:
    """What is said of the first row that differs; it shows keys only."""
    key = table.place(ours or theirs or ())
    named = ", ".join(f"{name} {value!r}" for name, value in zip(table.key, key, strict=True))
    how = "is missing in the copy" if theirs is None else "is only in the copy" if ours is None else "differs"
    return f"The copy is not what the source is: of {table.name}, the row with {named} {how}. Do not serve it."


def is_damaged(table: CopiedTable, row: Row) -> bool:
    """Whether a row of a journal is not what was once written."""
    try:
        if table is JOURNAL:
            verify_checksum(row[STREAM], row[POSITION], row[PAYLOAD], row[CHECKSUM])
        elif table is ARCHIVES:
            decompress_runs(row[RUNS])
    except DamagedEntry:
        return True
    return False


def finish_copy(source: CopyEnd, target: CopyEnd, to: str, now_ms: int) -> None:
    """Take the source out of service, and then put the target into it: at no moment are there two of one identity."""
    values = {name: source.values[name] for name in COPIED_VALUES}
    source.hand_over(msgspec.json.encode(MovedMark(to=to, moved_ms=now_ms)))
    target.finish(values)


def previous_target(source: CopyEnd) -> str | None:
    """Where the source was copied to before; None for one that was not."""
    found = source.values.get(MOVED)
    return None if found is None else msgspec.json.decode(found, type=MovedMark).to
