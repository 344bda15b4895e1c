"""Copies of the file: backups, also while a server has it open, and restores (docs/storage.md, "Back up")."""

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import apsw

from voicemem.errors import CannotStart
from voicemem.store.copying import MOVED, NO_ROOM, CopyFailed, full_disk
from voicemem.store.sqlite import files
from voicemem.store.sqlite.driver import READER_PRAGMAS
from voicemem.store.sqlite.transcript_file import INDEX_FILES

Progress = Callable[[int, int], None]
"""Called with the number of copied pages, and the number of all pages."""
STEP_PAGES = 1_024
SHM_BYTES = 32 * 1024
"""Bytes of the file that SQLite needs beside a database that it reads."""
LOGS = ("-wal", "-shm", "-journal")
SIDE_FILES = (files.REDO_SUFFIX, f"{files.REDO_SUFFIX}-journal", *LOGS, *INDEX_FILES)
SYNC_OFF = "pragma synchronous = off"


def back_up(database: str, file: str, force: bool, progress: Progress) -> None:
    """Copy a database, as it is at one moment, into a new file. Raises `CopyFailed`.

    The database may be in use. The file appears under its name once it is complete and on disk; only its owner may
    read it.
    """
    refuse_existing(file, force)
    with replacing(file, database) as partial:
        with open_backup_source(database) as source:
            copy_database(source, partial, progress)
        verify_backup(partial)


def restore_backup(file: str, database: str, force: bool, progress: Progress) -> None:
    """Make a database from a backup, under a new incarnation.

    Raises `CopyFailed`, and `CannotStart` while a server holds the database. No process opens it meanwhile: a log of
    the old database must not come beside the new one. A restore that fails leaves no file behind.
    """
    refuse_existing(database, force)
    refuse_other_file(database)
    locks = [database + suffix for suffix in (files.LOCK_SUFFIX, files.OPENING_SUFFIX)]
    created = [path for path in locks if not os.path.exists(path)]
    opening, lock = files.OpeningLock(database), None
    try:
        opening.hold(alone=True)
        lock = files.lock_file(database)
        with replacing(database, file) as partial:
            with open_backup_source(file) as source:
                copy_database(source, partial, progress)
            verify_backup(partial)
            renew_incarnation(partial)
            sync(partial)
            remove_side_files(database)
    except BaseException:
        if lock is not None:  # and so is the opening held: no one else has these files locked
            for path in created:
                os.unlink(path)
        raise
    finally:
        if lock is not None:
            os.close(lock)
        opening.release()


def refuse_existing(file: str, force: bool) -> None:
    if not force and os.path.lexists(file):
        raise CopyFailed(f"{file} exists already; --force replaces it.")


@contextmanager
def replacing(file: str, source: str) -> Iterator[str]:
    """A temporary file in the same folder: renamed to `file` when the block succeeds, and removed when it fails.

    Its size will be that of `source`.
    """
    folder = os.path.dirname(os.path.abspath(file))
    try:
        descriptor, partial = tempfile.mkstemp(".partial", f"{os.path.basename(file)}.", folder)  # with mode 0600
        os.close(descriptor)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise full_disk(file, files.size_with_log(source)) from None
        raise CopyFailed(f"{folder} cannot be written: {error.strerror}.") from None
    try:
        yield partial
        sync(partial)
        os.replace(partial, file)
        sync(folder)
    except BaseException as error:
        for suffix in ("", *LOGS):
            with suppress(FileNotFoundError):
                os.unlink(partial + suffix)
        if isinstance(error, apsw.FullError) or (isinstance(error, OSError) and error.errno in NO_ROOM):
            raise full_disk(file, files.size_with_log(source)) from None
        if isinstance(error, OSError):
            raise CopyFailed(f"{file} cannot be written: {error.strerror}.") from None
        if isinstance(error, apsw.Error):
            raise CopyFailed(f"{file} cannot be written: {error}.") from None
        raise


def sync(path: str) -> None:
    """Sync a file; or a folder, since only then is a new name in it on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def open_backup_source(file: str) -> Iterator[apsw.Connection]:
    """Open an existing database for reading, as it was at one moment. Raises `CopyFailed`."""
    refuse_other_file(file)
    try:
        with closing(files.open_source(file)) as connection:
            connection.execute(READER_PRAGMAS).fetchall()
            connection.execute("begin")
            yield connection
            connection.execute("commit")
    except CannotStart as error:
        raise CopyFailed(error.detail) from None
    except apsw.CantOpenError:
        raise not_opened(file) from None
    except apsw.FullError:  # the other file's disk
        raise
    except apsw.Error as error:
        if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE:
            raise full_disk(f"{file}-shm", SHM_BYTES) from None
        raise CopyFailed(f"{file} cannot be copied: {error}.") from None


def not_opened(file: str) -> CopyFailed:
    return CopyFailed(f"There is no database {file}, or it cannot be opened.")


def refuse_other_file(file: str) -> None:
    """Raise `CopyFailed` for a file that this program did not make; it is not changed."""
    try:
        files.refuse_unmarked(file)
    except CannotStart as error:
        raise CopyFailed(error.detail) from None
    except apsw.Error:
        raise not_opened(file) from None


def copy_database(source: apsw.Connection, target: str, progress: Progress) -> None:
    """Copy all pages. The read transaction of `source` keeps them consistent, whatever is written meanwhile."""
    with closing(apsw.Connection(target)) as connection:
        connection.execute(SYNC_OFF)  # the file is synced once, when it is complete
        with connection.backup("main", source, "main") as copying:
            while not copying.done:
                copying.step(STEP_PAGES)
                progress(copying.page_count - copying.remaining, copying.page_count)
        connection.execute("pragma journal_mode = delete")  # leaves no log: everything is in the one file


def verify_backup(file: str) -> None:
    """Raise `CopyFailed` if a copy is damaged, as the copy of a damaged source is."""
    with closing(apsw.Connection(file, flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        try:
            verdict = connection.pragma("integrity_check", 1)
        except apsw.Error as error:
            verdict = str(error)
    if verdict != "ok":
        raise CopyFailed(f"The database is damaged, so no copy was made: {verdict}.")


def renew_incarnation(file: str) -> None:
    """Give a restored copy a new incarnation, which tells clients to send again the events that it lacks.

    A copy of a store that was moved may be served, since it is another store now.
    """
    with closing(apsw.Connection(file)) as connection:
        files.run_no_code(connection)
        connection.execute(SYNC_OFF)
        connection.execute(files.UPDATE_INCARNATION, {"value": secrets.token_bytes(files.IDENTITY_BYTES)})
        connection.execute("delete from meta where name = ?", (MOVED,))


def remove_side_files(database: str) -> None:
    """Remove the side files of a database that is replaced: its log must never be applied to the new one."""
    if not os.path.exists(database):
        return
    try:
        with closing(apsw.Connection(database, flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
            connection.pragma("journal_mode", "delete")  # from now on the old file is complete by itself
    except apsw.BusyError:
        raise CannotStart(f"Another process has {database} open.") from None
    except apsw.FullError:  # its log is still needed
        raise
    except apsw.Error:
        pass  # it is damaged, which may be the reason for the restore
    for suffix in SIDE_FILES:
        with suppress(FileNotFoundError):
            os.unlink(database + suffix)
    sync(os.path.dirname(os.path.abspath(database)))
