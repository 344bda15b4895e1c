"""The files of a store: readable by their owner only, held by one server, and safe after a crash of the machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, suppress

import apsw

from voicemem.errors import CannotStart

LOCK_SUFFIX = ".lock"


def check_store_path(path: str) -> None:
    """Raise `CannotStart` for a path at which no file can be made."""
    if os.path.isdir(path):
        raise CannotStart(f"The store {path} is a folder; write sqlite:PATH with the path of a file.")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise CannotStart(f"The folder of the store does not exist: {folder}.")


def make_private(path: str) -> None:
    """Create the file readable by its owner only, since it holds secrets; SQLite gives its log the same mode."""
    if os.path.exists(path):  # closing it here would release the POSIX locks that this process has on it
        return
    with suppress(OSError):  # SQLite reports a file that cannot be created
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def lock_file(path: str) -> int:
    """Lock `PATH.lock` for this process: one server per file. Raises `CannotStart` when another one has it.

    The kernel releases the lock of a process that was killed. Returns the descriptor, whose close releases it.
    """
    descriptor = open_lock_file(path, LOCK_SUFFIX)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise CannotStart(f"Another server is already using {path}; one server per file.") from None
    return descriptor


def open_lock_file(path: str, suffix: str) -> int:
    """The descriptor of a file beside the store that is only there to be locked. Raises `CannotStart`."""
    try:
        return os.open(path + suffix, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CannotStart(f"The folder of {path} cannot be written: {error.strerror}.") from None


BUSY_TIMEOUT_MS = 5_000
"""How long a connection waits for the locks of another."""
REDO_SUFFIX = "-redo"
"""Suffix of the database that holds a copy of the log while the log is written again; otherwise it is absent."""
LOG_CHUNK_BYTES = 64 * 1024
"""SQLite's system interface writes less than 128 KiB at once."""
REDO_SCHEMA = """
pragma journal_mode = delete;
pragma synchronous = extra;
create table if not exists log (number integer primary key, content blob not null) strict;
"""


HAS_COPY = "select exists (select 1 from log)"
INSERT_CHUNK = "insert into log (content) values (?)"
SELECT_CHUNKS = "select content from log order by number"
DELETE_COPY = "delete from log"


def rewrite_log(path: str) -> None:
    """Write a database's log to disk again, exactly as it now reads. Raises `apsw.Error`.

    After a failed sync Linux counts the pages as clean: the log can be read, is not on disk, and no later sync writes
    it. A power cut while such a log moves into the database would leave half of it there, and no log. So the log is
    copied into a database of its own and written again from the copy; a start that is cut short finds the copy.
    No other process may write the database meanwhile (`opening.py`).
    """
    log, redo = f"{path}-wal", f"{path}{REDO_SUFFIX}"
    if not os.path.exists(redo) and not (os.path.exists(log) and os.path.getsize(log)):
        return
    make_private(redo)
    with closing(apsw.Connection(redo)) as copy:
        copy.execute(REDO_SCHEMA).fetchall()
        if not copy.execute(HAS_COPY).get:
            with copy:
                for content in read_log(log):
                    copy.execute(INSERT_CHUNK, (content,))
        if copy.execute(HAS_COPY).get:
            write_log(log, copy)
            copy.execute(DELETE_COPY)
    os.unlink(redo)


def open_log(log: str) -> apsw.VFSFile:
    """Open the log through SQLite's own system interface, as all files of the store are."""
    return apsw.VFSFile("", log, [apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, 0])


def read_log(log: str) -> Iterator[bytes]:
    """The log in chunks; nothing when there is no log."""
    if not os.path.exists(log):
        return
    file = open_log(log)
    try:
        size = file.xFileSize()
        for start in range(0, size, LOG_CHUNK_BYTES):
            yield file.xRead(min(LOG_CHUNK_BYTES, size - start), start)
    finally:
        file.xClose()


def write_log(log: str, copy: apsw.Connection) -> None:
    """Write the copy over the log, and sync it."""
    file, end = open_log(log), 0
    try:
        for (content,) in copy.execute(SELECT_CHUNKS):
            file.xWrite(content, end)
            end += len(content)
        file.xTruncate(end)
        file.xSync(apsw.SQLITE_SYNC_NORMAL)
    finally:
        file.xClose()
