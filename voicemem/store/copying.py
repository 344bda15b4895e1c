"""A copy of a store into another engine: portions of rows, then a comparison of every row (docs/postgresql.md).

The tables that all engines have are copied row by row, with the columns that both ends have. Keys stay the same, so
that cursors, tails and checksums of the journal are valid in the copy. Values that an engine repeats elsewhere (labels)
it derives.

Not copied are snapshots, which are made again from journals; nodes, claims, observations and replies under way, since
no process serves a store that is copied; and the content of erased sessions that is not deleted yet.
"""

import errno
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from voicemem.errors import DamagedEntry
from voicemem.store.database import DELETE_META, SAVE_META, SELECT_META, Connection, Row, columns, insert
from voicemem.store.records import JournalRow
from voicemem.store.runs import decompress_runs, page_of, runs_after, verify_checksum
from voicemem.store.stream_changes import POSITION as JOURNAL_END

PORTION_ROWS, PORTION_BYTES = 5_000, 4 * 1024 * 1024
"""The size of one transaction of a copy; the row that exceeds the bytes is its last."""
REPORT_ROWS = 5_000
COPYING, MOVED = "copying", "moved"
"""Names in `meta`: of a `CopyMark` in a target, and of a `MovedMark` in a source."""
COPIED_VALUES = ("incarnation", "cursor_secret")
"""Values of `meta` that are copied: clients continue with their positions and cursors."""
ERASED = "(select key from streams where state = 'erased')"


class CopiedTable(NamedTuple):
    """One table of a copy; it is read in the order of `key`, which is unique."""

    name: str
    key: tuple[str, ...]
    content: str = f"stream not in {ERASED}"
    """The condition for rows to be copied, which leaves out those of erased sessions."""
    columns: tuple[str, ...] = ()
    """The columns that both ends have; the key comes first."""
    flags: frozenset[str] = frozenset()
    """Columns of flags, which are numbers on SQLite."""

    def value(self, row: Row, column: str) -> Any:
        return row[self.columns.index(column)]


STREAM = ("stream",)
TABLES = (
    CopiedTable("keys", ("id",), "true"),
    CopiedTable("agora_apps", ("app_id",), "true"),
    CopiedTable("inbound_secrets", ("project", "dialect"), "true"),
    CopiedTable("caller_secrets", ("project", "version"), "true"),
    CopiedTable("streams", ("key",), "true"),
    CopiedTable("producers", ("stream", "name")),
    CopiedTable("secrets", ("stream", "name")),
    CopiedTable("endpoints", ("key",), f"(stream is null or stream not in {ERASED})"),
    CopiedTable("deliveries", ("key",)),
    CopiedTable("payloads", ("key",)),
    CopiedTable(
        "attempts", ("delivery", "number"), f"delivery in (select key from deliveries where stream not in {ERASED})"
    ),
    CopiedTable("retention", STREAM),
    CopiedTable("quarantined", STREAM),
    CopiedTable("overviews", STREAM),
    CopiedTable("memories", ("stream", "id")),
    CopiedTable("superseded", ("stream", "by_id", "old_id")),
    CopiedTable("archives", ("stream", "position")),
    CopiedTable("journal", ("stream", "position")),
)
"""The tables in the order of the copy: owners come before their content."""
MEASURE = f"""
    select count(*) filter (where kind = 'session'), count(*) filter (where state = 'running' and kind = 'session'),
    count(*) filter (where kind = 'user'), cast(coalesce(sum({JOURNAL_END}), 0) as bigint),
    (select count(*) from keys), (select count(*) from endpoints),
    (select count(*) from deliveries where due_ms is not null), (select count(*) from attempts),
    (select cast(coalesce(sum(epoch), 0) as bigint) from producers),
    (select coalesce(min(key), 0) from streams), (select coalesce(max(key), 0) from streams)
    from streams s where state <> 'erased'
"""
SELECT_ANYTHING = f"select 1 where {' or '.join(f'exists (select 1 from {one.name})' for one in TABLES)}"
SELECT_KEYS = "select key from streams where state <> 'erased' order by key"


class CopyFailed(Exception):
    """A copy cannot be made or continued; the text says why."""


NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a full disk, or of a disk quota that is used up."""


def full_disk(path: str, needed: int, at_least: bool = False, left: str = "Nothing was changed.") -> CopyFailed:
    """Return the failure to write a file of `needed` bytes; `left` says what there is now."""
    folder = os.path.dirname(os.path.abspath(path))
    size, free = map(shown_bytes, (needed, shutil.disk_usage(folder).free))
    needs = f"needs {'more than ' if at_least else ''}{size}"
    return CopyFailed(f"The disk of {folder} is full: {path} {needs}, and {free} are free. {left}")


def shown_bytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB" if count >= 2**20 else f"{-(-count // 1024)} KiB"


class Differs(CopyFailed):
    """The copy differs from the source."""


class Volume(NamedTuple):
    """The contents of a store in numbers; if any of these has changed, the source was written meanwhile."""

    sessions: int
    """Without erased ones."""
    running: int
    users: int
    events: int
    keys: int
    endpoints: int
    pending: int
    attempts: int
    epochs: int
    """The sum over all producers: each open raises it."""
    first_key: int
    last_key: int
    """The last key of all streams; 0 without any."""


class CopyMark(Struct, frozen=True, kw_only=True):
    """The progress of a copy: it has all rows up to the key `after` of `table`, and all earlier tables."""

    incarnation: bytes
    volume: Volume
    table: str = ""
    after: tuple[Any, ...] | None = None
    rows: int = 0
    events: int = 0
    size: int = 0


class MovedMark(Struct, frozen=True, kw_only=True):
    """The target of a store's copy, as it may be shown, and when it was made."""

    to: str
    moved_ms: int


class CopyEnd(ABC):
    """A store as one end of a copy. Both ends are used by one thread.

    No service runs on them meanwhile: a source is locked, and refused while a node lives; a target has a mark from its
    first row to its last, and is not served with it. The mark moves in the transactions that add the rows, so an
    interrupted copy continues after its last commit.
    """

    connection: Connection | None = None
    """The connection that writes, and reads single rows; None for an absent target that is only inspected."""

    @property
    def values(self) -> Mapping[str, bytes]:
        return {} if self.connection is None else dict(self.connection.rows(SELECT_META))

    @property
    def is_empty(self) -> bool:
        return self.connection is None or self.connection.row(SELECT_ANYTHING) is None

    @property
    def opened(self) -> Connection:
        assert self.connection is not None
        return self.connection

    def measure(self) -> Volume:
        with self.guarded():
            return Volume(*self.opened.one(MEASURE))

    def read(self, table: CopiedTable, after: Row | None = None) -> Iterator[Row]:
        """Yield the rows of a table after a key, in order, without the content of erased sessions."""
        key = columns(table.key)
        behind = "true" if after is None else f"({key}) > ({columns(table.key, ':')})"
        query = f"select {columns(table.columns)} from {table.name} where {behind} and {table.content} order by {key}"
        values = {} if after is None else dict(zip(table.key, after, strict=True))
        return self.scan(query, 4 if table.name == "archives" else 500, **values)

    def read_keys(self) -> Iterator[int]:
        return (key for (key,) in self.scan(SELECT_KEYS, 500))

    def read_entries(self, key: int, after: int, limit: int) -> list[JournalRow]:
        """See `Journal.read_rows`."""
        with self.guarded():
            return page_of(runs_after(self.reading, key, after), after, limit)

    def prepare(self, volume: Volume, mark: bytes) -> None:
        """Set the first mark, and make room for the contents of a source. It may be repeated."""
        with self.guarded():
            self.make_room(volume, mark)

    def add(self, table: CopiedTable, rows: Sequence[Row], mark: bytes) -> None:
        values = [dict(zip(table.columns, row, strict=True)) for row in rows]
        for row in values if table.flags else ():
            row.update({name: bool(row[name]) for name in table.flags})
        with self.guarded(), self.transaction():
            self.opened.many(insert(table.name, table.columns), values)
            if table.name == "streams":
                self.repeat_streams(values)
            self.save_value(COPYING, mark)

    def hand_over(self, moved: bytes) -> None:
        """Mark the store as moved: from then on the copy is served, and not the store."""
        with self.guarded():
            self.save_value(MOVED, moved)
            self.end_reading()

    def finish(self, values: Mapping[str, bytes]) -> None:
        """Set values of `meta` and remove the mark, in one transaction, so that the store may be served."""
        self.end_reading()
        with self.guarded(), self.transaction():
            for name, value in values.items():
                self.save_value(name, value)
            self.make_derived(values["cursor_secret"])
            self.opened.execute(DELETE_META, name=COPYING)

    def save_value(self, name: str, value: bytes) -> None:
        self.opened.execute(SAVE_META, name=name, value=value)

    # Where the engines differ

    @property
    @abstractmethod
    def reading(self) -> Connection:
        """The connection that reads a source, as of one moment."""

    @abstractmethod
    def schema_of(self, table: str) -> dict[str, bool]:
        """Return the columns of a table, and whether each holds flags."""

    @abstractmethod
    def scan(self, query: str, at_once: int, **values: Any) -> Iterator[Row]:
        """Yield the rows of a query, holding a number of them at a time. Raises `CopyFailed`."""

    @abstractmethod
    def end_reading(self) -> None:
        """Release the snapshot that is read."""

    @abstractmethod
    def guarded(self) -> AbstractContextManager[None]:
        """Raise `CopyFailed` for errors of the engine."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """A transaction of `connection`."""

    @abstractmethod
    def make_room(self, volume: Volume, mark: bytes) -> None:
        """Make room for the contents of a source."""

    def repeat_streams(self, streams: Sequence[dict[str, Any]]) -> None:
        """Insert the values of streams that the engine stores a second time elsewhere."""
        return

    @abstractmethod
    def make_derived(self, cursor_secret: bytes) -> None:
        """Make the rows that are derived from the copied ones: words of memories, counts."""

    @abstractmethod
    def close(self) -> None:
        """Release the store."""


def tables_of(source: CopyEnd, target: CopyEnd) -> list[CopiedTable]:
    """Return the tables with the columns that both ends have; an engine derives its other columns from these."""
    tables = []
    for table in TABLES:
        ours, theirs = source.schema_of(table.name), target.schema_of(table.name)
        shared = sorted(ours.keys() & theirs.keys() - {*table.key})
        flags = frozenset(name for name in shared if ours[name] or theirs[name])
        tables.append(table._replace(columns=(*table.key, *shared), flags=flags))
    return tables


Report = Callable[[CopyMark], None]


def why_not_served(values: Mapping[str, bytes]) -> str | None:
    """Return why a store with these values of `meta` must not be served; None if it may be."""
    if COPYING in values:
        return "The store is half of a copy; run voicemem copy again, as before, to finish it."
    if MOVED in values:
        moved = msgspec.json.decode(values[MOVED], type=MovedMark)
        when = datetime.fromtimestamp(moved.moved_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
        return (
            f"The store was moved to {moved.to} ({when}); serve that one. To serve this one again as it was then,"
            " restore a backup of it (docs/postgresql.md)."
        )
    return None


def begin_copy(source: CopyEnd, target: CopyEnd) -> CopyMark:
    """Begin a copy, or continue one. Raises `CopyFailed` for a target that is not empty, or half of another copy."""
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
    """Copy everything after a mark, and return the last mark. Raises what the engines raise."""
    if not mark.table:
        target.prepare(mark.volume, msgspec.msgpack.encode(mark))
    names = [table.name for table in TABLES]
    for table in tables_of(source, target)[names.index(mark.table) if mark.table else 0 :]:
        after = mark.after if table.name == mark.table else None
        for portion, size in portions(source.read(table, after)):
            events = sum(events_in(table, row) for row in portion)
            mark = replace(progress(mark, table, len(portion), events, size), after=portion[-1][: len(table.key)])
            target.add(table, portion, msgspec.msgpack.encode(mark))
            report(mark)
    return mark


def portions(rows: Iterator[Row]) -> Iterator[tuple[list[Row], int]]:
    """Yield rows in portions, each with the approximate number of its bytes."""
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

    Return the sessions whose journal is damaged in the source; it is just as damaged in the copy.
    """
    done = CopyMark(incarnation=source.values["incarnation"], volume=source.measure())
    damaged: set[int] = set()
    for table in tables_of(source, target):
        rows = events = size = 0
        for ours, theirs in zip_longest(source.read(table), target.read(table)):
            if ours != theirs:
                raise Differs(difference(table, ours, theirs))
            if is_damaged(table, ours):
                damaged.add(ours[0])
            rows, events, size = rows + 1, events + events_in(table, ours), size + bytes_in(ours)
            if rows % REPORT_ROWS == 0:
                report(progress(done, table, rows, events, size))
        done = progress(done, table, rows, events, size)
        report(done)
    return damaged


def progress(mark: CopyMark, table: CopiedTable, rows: int, events: int, size: int) -> CopyMark:
    return replace(mark, table=table.name, rows=mark.rows + rows, events=mark.events + events, size=mark.size + size)


def difference(table: CopiedTable, ours: Row | None, theirs: Row | None) -> str:
    """Describe the first row that differs; only keys are shown."""
    named = ", ".join(f"{name} {value!r}" for name, value in zip(table.key, ours or theirs or (), strict=False))
    how = "is missing in the copy" if theirs is None else "is only in the copy" if ours is None else "differs"
    return f"The copy is not what the source is: of {table.name}, the row with {named} {how}. Do not serve it."


def is_damaged(table: CopiedTable, row: Row) -> bool:
    try:
        if table.name == "journal":
            verify_checksum(row[0], row[1], table.value(row, "payload"), table.value(row, "checksum"))
        elif table.name == "archives":
            decompress_runs(table.value(row, "runs"))
    except DamagedEntry:
        return True
    return False


def events_in(table: CopiedTable, row: Row) -> int:
    if table.name == "journal":
        return int(table.value(row, "count"))
    return int(table.value(row, "last") - row[1] + 1) if table.name == "archives" else 0


def bytes_in(row: Row) -> int:
    return 8 * len(row) + sum(len(value) for value in row if isinstance(value, (bytes, str)))


def finish_copy(source: CopyEnd, target: CopyEnd, to: str, now_ms: int) -> None:
    """Take the source out of service, and then put the target into service: two stores never share an identity."""
    values = {name: source.values[name] for name in COPIED_VALUES}
    source.hand_over(msgspec.json.encode(MovedMark(to=to, moved_ms=now_ms)))
    target.finish(values)


def previous_target(source: CopyEnd) -> str | None:
    moved = source.values.get(MOVED)
    return None if moved is None else msgspec.json.decode(moved, type=MovedMark).to
