"""A file as an end of a copy; the methods are documented in `voicemem.store.ports.copying`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import apsw

from voicemem.errors import CannotStart
from voicemem.store.copied_tables import (
    ATTEMPTS,
    ENDPOINTS,
    STREAMS,
    TABLES,
    CopiedTable,
    Row,
    config_of,
)
from voicemem.store.ports.copying import COPYING, MOVED, CopyFailed, Volume
from voicemem.store.sqlite.connection import SqliteConnection
from voicemem.store.sqlite.driver import open_connection
from voicemem.store.sqlite.files import (
    BUSY_TIMEOUT_MS,
    Opening,
    check_store_path,
    lock_file,
    make_private,
    migrate,
    newest_version,
    refuse_unmarked,
    rewrite_log,
    version_of,
)
from voicemem.store.sqlite.memory_words import SqliteMemoryWords
from voicemem.store.sqlite.rows import fetch_one
from voicemem.store.sqlite.session_queries import POSITION as JOURNAL_END

EXPRESSIONS = {"journal.waypoint": "seq is not null and waypoint is not 0"}
"""How a column is read that is not simply what it is called."""
ERASED = "(select key from streams where state = 'erased')"
CONTENT = {
    STREAMS.name: "true",
    "keys": "true",
    "agora_apps": "true",
    "hook_secrets": "true",
    ENDPOINTS.name: f"(stream is null or stream not in {ERASED})",
    ATTEMPTS.name: f"delivery in (select key from deliveries where stream not in {ERASED})",
}
"""Which rows of a table are copied; of those that are not here, the ones of sessions that are not erased."""
BEGIN, COMMIT = "begin", "commit"
BEGIN_ALONE = "pragma synchronous = full; begin immediate"
SELECT_META = "select name, value from meta"
SAVE_META = "insert or replace into meta values (?, ?)"
DELETE_META = "delete from meta where name = ?"
MEASURE = f"""
    select count(*) filter (where kind = 'session'), count(*) filter (where state = 'running' and kind = 'session'),
    count(*) filter (where kind = 'user'), ifnull(sum({JOURNAL_END}), 0), (select count(*) from keys),
    (select count(*) from endpoints), (select count(*) from deliveries where due_ms is not null),
    (select count(*) from attempts), (select ifnull(sum(epoch), 0) from producers),
    (select ifnull(min(key), 0) from streams), (select ifnull(max(key), 0) from streams)
    from streams where state != 'erased'
"""
SELECT_IS_EMPTY = f"""
    select not ({" or ".join(f"exists (select 1 from {one.name})" for one in TABLES)})
"""
IN_USE = "Stop it for the copy, or try the copy with a backup of the file first."


class SqliteCopy:
    """A file that no server has; a target is made where there is none, unless it is only looked at."""

    def __init__(self, path: str, is_target: bool, only_look: bool) -> None:
        """Lock and open the file. Raises `CannotStart`."""
        self.path = path
        is_new = is_target and not (os.path.exists(path) and os.path.getsize(path))
        self.lock: int | None = None
        self.connection: apsw.Connection | None = None
        if is_new and only_look:
            check_store_path(path)
            return
        if not is_target and not os.path.exists(path):
            raise CannotStart(f"There is no database {path}.")
        opening = Opening(path)
        try:
            refuse_unmarked(path)
            opening.hold_alone()
            self.lock = lock_end(path)
            self.connection = open_target(path) if is_target and not only_look else open_source(path, only_look)
        except apsw.Error as error:
            self.close()
            raise CannotStart(f"The database {path} cannot be opened: {error}.") from None
        except CannotStart:
            self.close()
            raise
        finally:
            opening.release()

    @property
    def opened(self) -> apsw.Connection:
        assert self.connection is not None
        return self.connection

    @property
    def values(self) -> Mapping[str, bytes]:
        return {} if self.connection is None else dict(self.connection.execute(SELECT_META))

    @property
    def is_empty(self) -> bool:
        return self.connection is None or bool(fetch_one(self.connection, SELECT_IS_EMPTY)[0])

    def measure(self) -> Volume:
        return Volume(*fetch_one(self.opened, MEASURE))

    def read(self, table: CopiedTable, after: Row | None = None, stream: int | None = None) -> Iterator[Row]:
        behind, values = "true", after or ()
        if stream is not None:
            behind, values = "stream = ?", (stream,)
        elif after is not None:
            marks = ", ".join("?" for _ in table.key)
            behind = f"({', '.join(table.key)}) > ({marks})"
        content = CONTENT.get(table.name, f"stream not in {ERASED}")
        columns = ", ".join(expression(table, name) for name in table.columns)
        query = f"select {columns} from {table.name} where {behind} and {content} order by {', '.join(table.key)}"
        try:
            yield from self.opened.execute(query, values)
        except apsw.Error as error:
            raise CopyFailed(f"{self.path} cannot be read: {error}.") from None

    def hand_over(self, moved: bytes) -> None:
        try:
            self.opened.execute(SAVE_META, (MOVED, moved))
            self.opened.execute(COMMIT)
        except apsw.Error as error:
            raise CopyFailed(f"{self.path} cannot be written: {error}.") from None

    def prepare(self, volume: Volume, mark: bytes) -> None:
        self.opened.execute(SAVE_META, (COPYING, mark))  # there is room for any key

    def add(self, table: CopiedTable, rows: Sequence[Row], mark: bytes) -> None:
        derived = DERIVED if table is STREAMS else ()
        columns = [*table.columns, *derived]
        marks = ["?"] * len(columns)
        insert = f"insert into {table.name} ({', '.join(columns)}) values ({', '.join(marks)})"
        values = [(*row, *derive(row)) for row in rows] if derived else rows
        try:
            with self.opened:
                self.opened.executemany(insert, values)
                self.opened.execute(SAVE_META, (COPYING, mark))
        except apsw.Error as error:
            raise CopyFailed(f"{self.path} cannot be written: {error}. Run the same command again to go on.") from None

    def finish(self, values: Mapping[str, bytes]) -> None:
        with self.opened:
            for name, value in values.items():
                self.opened.execute(SAVE_META, (name, value))
            SqliteMemoryWords(values["cursor_secret"]).make_words(SqliteConnection(self.opened))
            self.opened.execute(DELETE_META, (COPYING,))

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        if self.lock is not None:
            os.close(self.lock)
        self.connection = self.lock = None


DERIVED = ("name", "user_id", "channel")
"""Columns of streams that repeat the configuration."""


def derive(row: Row) -> Row:
    config = config_of(row)
    return config.get("name"), config.get("user_id"), config.get("channel")


def expression(table: CopiedTable, column: str) -> str:
    """How a column is read."""
    return EXPRESSIONS.get(f"{table.name}.{column}", column)


def lock_end(path: str) -> int:
    try:
        return lock_file(path)
    except CannotStart as error:
        raise CannotStart(f"{error.detail} {IN_USE}") from None


def open_source(path: str, only_look: bool) -> apsw.Connection:
    """Open a file for reading. Raises `CannotStart` for one of another program or version, and `apsw.Error`.

    Unless it is only looked at, nobody else writes it until it is closed: commands that add keys need no lock.
    """
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)  # SQLite opens a read-only file anyway
    try:
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        refuse_other_version(connection, path)
        connection.execute(BEGIN if only_look else BEGIN_ALONE).fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def refuse_other_version(connection: apsw.Connection, path: str) -> None:
    version, newest = version_of(connection), newest_version()
    if version < 1:
        raise CannotStart(f"{path} is not a voicemem database.")
    if version > newest:
        raise CannotStart(f"The database has schema version {version}, newer than this program's version {newest}.")
    if version < newest:
        raise CannotStart(
            f"{path} has schema version {version}, older than this program's version {newest}; start and stop this"
            " version's server on it first."
        )


def open_target(path: str) -> apsw.Connection:
    """Open a file, or make it. Raises `CannotStart`, `apsw.Error`."""
    check_store_path(path)
    make_private(path)
    rewrite_log(path)
    connection = open_connection(path)
    try:
        migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection
