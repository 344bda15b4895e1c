"""Copies of the file: a backup beside a running server, and a restore of one (design, section 9)."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import resources

import apsw

from voicemem.errors import CannotStart
from voicemem.store.sqlite.files import REDO, lock_file

Progress = Callable[[int, int], None]
"""Told how many pages were copied, and of how many."""
STEP_PAGES = 1_024
SIDE_FILES = (REDO, f"{REDO}-journal", "-wal", "-shm", "-journal")


class CopyFailed(Exception):
    """A backup or a restore that was not made; the text says why. What was there before is as it was."""


def back_up(database: str, file: str, force: bool, progress: Progress) -> None:
    """Copy a database, as it is at one moment, into a file of its own. Raises `CopyFailed`.

    The database may be in use. The file takes its name when it is complete and on disk; only its owner may read it.
    """
    refuse_existing(file, force)
    with taking_name(file) as partial:
        with opened(database) as source:
            copy(source, partial, progress)
        check(partial)


def restore(file: str, database: str, force: bool, progress: Progress) -> None:
    """Make a database of a backup, under a new incarnation. Raises `CopyFailed`, or `CannotStart` beside a server."""
    refuse_existing(database, force)
    lock = lock_file(database)
    try:
        with taking_name(database) as partial:
            with opened(file) as source:
                copy(source, partial, progress)
            check(partial)
            renew(partial)
            retire(database)
    finally:
        os.close(lock)


def refuse_existing(file: str, force: bool) -> None:
    if not force and os.path.lexists(file):
        raise CopyFailed(f"{file} exists already; --force replaces it.")


@contextmanager
def taking_name(file: str) -> Iterator[str]:
    """A file beside the wanted one, which takes its name when the block ends well, and else goes."""
    folder = os.path.dirname(os.path.abspath(file))
    try:
        descriptor, partial = tempfile.mkstemp(".partial", f"{os.path.basename(file)}.", folder)  # of mode 0600
    except OSError as error:
        raise CopyFailed(f"{folder} cannot be written: {error.strerror}.") from None
    try:
        yield partial
        os.fsync(descriptor)
        os.replace(partial, file)
        sync_folder(folder)
    except BaseException as error:
        with suppress(FileNotFoundError):
            os.unlink(partial)
        if isinstance(error, OSError):
            raise CopyFailed(f"{file} cannot be written: {error.strerror}.") from None
        raise
    finally:
        os.close(descriptor)


def sync_folder(folder: str) -> None:
    """A new name is on disk when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def opened(file: str) -> Iterator[apsw.Connection]:
    """A database that is there, to be read, at one moment for as long as the block lasts. Raises `CopyFailed`."""
    try:
        connection = apsw.Connection(file, flags=apsw.SQLITE_OPEN_READWRITE)  # a read-only file is opened for reading
    except apsw.CantOpenError:
        raise CopyFailed(f"There is no database {file}, or it cannot be opened.") from None
    try:
        connection.set_busy_timeout(5_000)
        connection.execute("pragma query_only = on")
        connection.execute("pragma wal_autocheckpoint = 0")
        connection.execute("begin")
        refuse_unknown(connection, file)
        yield connection
        connection.execute("commit")
    except apsw.Error as error:
        raise CopyFailed(f"{file} cannot be copied: {error}.") from None
    finally:
        connection.close()


def refuse_unknown(connection: apsw.Connection, file: str) -> None:
    """Raise `CopyFailed` for what is no database of this program, or one of a newer version."""
    version = connection.pragma("user_version")
    tables = {name for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")}
    if version < 1 or not {"meta", "streams", "journal"} <= tables:
        raise CopyFailed(f"{file} is no database of voicemem.")
    if version > newest_schema():
        raise CopyFailed(f"{file} has schema {version}, newer than this program's {newest_schema()}.")


def newest_schema() -> int:
    """The version that this program brings every database to."""
    folder = resources.files("voicemem.store.sqlite") / "migrations"
    return max(int(file.name[:4]) for file in folder.iterdir() if file.name.endswith(".sql"))


def copy(source: apsw.Connection, target: str, progress: Progress) -> None:
    """Copy all pages. The transaction that `source` is in keeps them of one moment, whatever is written meanwhile."""
    connection = apsw.Connection(target)
    try:
        connection.execute("pragma synchronous = off")  # the file is synced when it is complete
        with connection.backup("main", source, "main") as copying:
            while not copying.done:
                copying.step(STEP_PAGES)
                progress(copying.page_count - copying.remaining, copying.page_count)
        connection.execute("pragma journal_mode = delete")  # one file, with nothing beside it
    finally:
        connection.close()


def check(file: str) -> None:
    """Raise `CopyFailed` when a copy is damaged, as it is when what it was copied from is."""
    connection = apsw.Connection(file, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        found = connection.pragma("integrity_check", 1)
    except apsw.Error as error:
        found = str(error)
    finally:
        connection.close()
    if found != "ok":
        raise CopyFailed(f"The database is damaged, so no copy was made: {found}.")


def renew(file: str) -> None:
    """Give a copy an incarnation of its own: what was acknowledged after the backup was made is not in it."""
    connection = apsw.Connection(file)
    try:
        connection.execute("pragma synchronous = off")
        connection.execute("update meta set value = ? where name = 'incarnation'", (secrets.token_bytes(16),))
    finally:
        connection.close()


def retire(database: str) -> None:
    """Take away what stands beside a database that is replaced: its log must never meet the new one."""
    if not os.path.exists(database):
        return
    try:
        connection = apsw.Connection(database, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.pragma("journal_mode", "delete")  # whatever happens next, the old file is whole by itself
        finally:
            connection.close()
    except apsw.BusyError:
        raise CannotStart(f"Another process has {database} open.") from None
    except apsw.Error:
        pass  # it is damaged, which may be why it is replaced
    for suffix in SIDE_FILES:
        with suppress(FileNotFoundError):
            os.unlink(database + suffix)
    sync_folder(os.path.dirname(os.path.abspath(database)))
