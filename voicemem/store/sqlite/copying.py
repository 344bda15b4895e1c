"""A file as an end of a copy."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import apsw

from voicemem.errors import CannotStart
from voicemem.store.copying import COPYING, CopyEnd, CopyFailed, Volume, full_disk
from voicemem.store.database import Row
from voicemem.store.sqlite import files
from voicemem.store.sqlite.connection import SqliteConnection
from voicemem.store.sqlite.driver import open_connection
from voicemem.store.sqlite.words import SqliteMemoryWords
from voicemem.store.upkeep import on_failure

BEGIN, BEGIN_ALONE = "begin", "pragma synchronous = full; begin immediate"
SELECT_COLUMNS = "select name, false from pragma_table_info(:table)"
CONTINUES = "The source was not changed; run the same command again to continue."
IN_USE = "Stop it for the copy, or try the copy with a backup of the file first."


class SqliteCopy(CopyEnd):
    """A file that no server has; a missing target is created, unless with `only_look`."""

    connection: SqliteConnection | None

    def __init__(self, path: str, is_target: bool, only_look: bool) -> None:
        self.path = path
        self.lock: int | None = None
        if is_target and only_look and not (os.path.exists(path) and os.path.getsize(path)):
            files.check_store_path(path)
            return
        if not is_target and not os.path.exists(path):
            raise CannotStart(f"There is no database {path}.")
        opening = files.OpeningLock(path)
        try:
            with on_failure(self.close):
                files.refuse_unmarked(path)
                opening.hold(alone=True)
                try:
                    self.lock = files.lock_file(path)
                except CannotStart as error:
                    raise CannotStart(f"{error.detail} {IN_USE}") from None
                raw = open_target(path) if is_target and not only_look else open_source_alone(path, only_look)
                self.connection = SqliteConnection(raw)
        except apsw.FullError:
            raise full_disk(path, files.size_with_log(path), at_least=True) from None
        except apsw.Error as error:
            raise CannotStart(f"The database {path} cannot be opened: {error}.") from None
        finally:
            opening.release()

    @property
    def reading(self) -> SqliteConnection:
        assert self.connection is not None
        return self.connection

    def schema_of(self, table: str) -> dict[str, bool]:
        return dict(self.reading.rows(SELECT_COLUMNS, table=table))

    def scan(self, query: str, at_once: int, **values: Any) -> Iterator[Row]:
        try:
            yield from self.reading.send(query, values)
        except apsw.Error as error:
            raise CopyFailed(f"{self.path} cannot be read: {error}.") from None

    def end_reading(self) -> None:
        if self.reading.raw.in_transaction:
            self.reading.raw.execute("commit")

    @contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except apsw.FullError:
            raise full_disk(self.path, files.size_with_log(self.path), at_least=True, left=CONTINUES) from None
        except apsw.Error as error:
            raise CopyFailed(
                f"{self.path} cannot be written: {error}. Run the same command again to continue."
            ) from None

    def transaction(self) -> AbstractContextManager[Any]:
        return self.reading.raw

    def make_room(self, volume: Volume, mark: bytes) -> None:
        self.save_value(COPYING, mark)  # there is room for any key

    def make_derived(self, cursor_secret: bytes) -> None:
        SqliteMemoryWords(cursor_secret).make_words(self.reading)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.raw.close()
        if self.lock is not None:
            os.close(self.lock)
        self.connection = self.lock = None


def open_source_alone(path: str, only_look: bool) -> apsw.Connection:
    """Open a file for reading. Raises `CannotStart` for one of another program or version, and `apsw.Error`.

    Without `only_look`, no one else writes it until it is closed: commands that add keys need no lock.
    """
    connection, newest = files.open_source(path), files.newest_version()
    with on_failure(connection.close):
        if (version := connection.pragma("user_version")) < newest:
            raise CannotStart(
                f"{path} has schema version {version}, older than this program's version {newest}; start and stop this"
                " version's server on it first."
            )
        connection.execute(BEGIN if only_look else BEGIN_ALONE).fetchall()
    return connection


def open_target(path: str) -> apsw.Connection:
    """Open a file, or make it. Raises `CannotStart`, `apsw.Error`."""
    files.check_store_path(path)
    files.make_private(path)
    files.rewrite_log(path)
    connection = open_connection(path)
    with on_failure(connection.close):
        files.migrate(connection)
    return connection
