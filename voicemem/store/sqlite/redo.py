"""Makes sure of the log that a start finds, before anything is built on it.

After a sync that failed, Linux counts the pages as clean: the log can be read, is not on the disk, and no later sync
writes it. A power cut while such a log is put into the database would leave half of it there, and no log. So the log is
copied, and written anew from the copy; a start that is cut short in the midst of that finds the copy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import apsw

from voicemem.store.sqlite.files import make_private

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
