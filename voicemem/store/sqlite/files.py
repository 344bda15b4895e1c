"""The files of a store: private to their owner, and held by one server."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, suppress

import apsw

from voicemem.errors import CannotStart


def check_place(path: str) -> None:
    """Raise `CannotStart` where no file of a store can be."""
    if os.path.isdir(path):
        raise CannotStart(f"The store {path} is a folder; write sqlite:PATH with the path of a file.")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise CannotStart(f"The folder of the store is not there: {folder}.")


def make_private(path: str) -> None:
    """Make a new file readable for its owner alone, since it holds secrets; its log and index take that over."""
    if os.path.exists(path):  # to close it here would let go of the locks that this process has on it
        return
    with suppress(OSError):  # what cannot be made is told by SQLite
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def lock_file(path: str) -> int:
    """Hold `PATH.lock` for this process: one server per file. A killed process lets go of it by itself."""
    try:
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CannotStart(f"The folder of {path} cannot be written: {error.strerror}.") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise CannotStart(f"Another server holds {path}; one server per file.") from None
    return descriptor


REDO = "-redo"
"""Behind the name of the database: a database of its own, with the copy or with nothing."""
CHUNK_BYTES = 64 * 1024
"""SQLite's system interface writes less than 128 KiB at once."""
SCHEMA = """
pragma journal_mode = delete;
pragma synchronous = extra;
create table if not exists log (number integer primary key, content blob not null) strict;
"""


def secure_log(path: str) -> None:
    """Bring a database's log onto the disk, as it can be read. Raises `apsw.Error`."""
    log, redo = f"{path}-wal", f"{path}{REDO}"
    if not os.path.exists(redo) and not (os.path.exists(log) and os.path.getsize(log)):
        return
    make_private(redo)
    with closing(apsw.Connection(redo)) as copy:
        copy.execute(SCHEMA).fetchall()
        if not copy.execute("select exists (select 1 from log)").get:
            with copy:
                for content in contents(log):
                    copy.execute("insert into log (content) values (?)", (content,))
        if copy.execute("select exists (select 1 from log)").get:
            write(log, copy)
            copy.execute("delete from log")
    os.unlink(redo)


def opened(log: str) -> apsw.VFSFile:
    """The file by way of SQLite's own system interface, like all others of the store."""
    return apsw.VFSFile("", log, [apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, 0])


def contents(log: str) -> Iterator[bytes]:
    if not os.path.exists(log):
        return
    file = opened(log)
    try:
        size = file.xFileSize()
        for start in range(0, size, CHUNK_BYTES):
            yield file.xRead(min(CHUNK_BYTES, size - start), start)
    finally:
        file.xClose()


def write(log: str, copy: apsw.Connection) -> None:
    file, end = opened(log), 0
    try:
        for (content,) in copy.execute("select content from log order by number"):
            file.xWrite(content, end)
            end += len(content)
        file.xTruncate(end)
        file.xSync(apsw.SQLITE_SYNC_NORMAL)
    finally:
        file.xClose()
