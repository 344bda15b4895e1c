"""The last traces of deleted content in the file: the log, and the unused middle of pages.

`secure_delete` writes zeros over deleted cells and freed pages. But when SQLite moves cells from a full page to its
neighbours, copies of them stay between the page's cell pointers and its first cell, a range that is never read, until
the page needs the room. Nothing in SQL reaches them short of `vacuum`, which holds up every writer. So they are zeroed
in the file: under the write lock and with an empty log, when the file is the whole truth, and nothing but that range.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import apsw

from voicemem.errors import StoreUnavailable
from voicemem.store.sqlite.database import SYNC_FAILED

READ_BYTES = 1024 * 1024
REST_S = 0.002
"""After so many bytes, or pages, so that others get their turn."""
LOCKED_PAGES = 64
"""Cleaned under one lock, for a millisecond or two."""
TREE_PAGES = {0x02: 12, 0x05: 12, 0x0A: 8, 0x0D: 8}
"""First byte of a page of a table or an index, and the size of its header (sqlite.org/fileformat2, section 1.6)."""
FILE_HEADER = 100
"""Before the header of the first page."""
MOST_PAGES = 2**25
"""Every other page begins with a page number, whose first byte is 0 or 1 in a file of fewer pages."""


def clear(path: str, stopped: Callable[[], bool]) -> bool:
    """Leave nothing of what was deleted in the file or its log; False when that cannot be now, or it is `stopped`.

    It never waits for readers, since the writer would wait with it. Raises `StoreUnavailable`, and
    `apsw.IOError` when the disk could not sync.
    """
    try:
        with closing(apsw.Connection(path)) as connection, open_file(path) as file:
            size = int(connection.pragma("page_size"))
            if not cut_log(connection):
                return False
            stale = list(stale_pages(file, size, stopped)) if file.xFileSize() < MOST_PAGES * size else []
            for first in range(0, len(stale), LOCKED_PAGES):
                if stopped() or not clean(connection, path, file, size, stale[first : first + LOCKED_PAGES]):
                    return False
                time.sleep(REST_S)
            if stale:
                file.xSync(apsw.SQLITE_SYNC_FULL)
            return not stopped()
    except apsw.BusyError:
        return False
    except apsw.Error as error:
        if getattr(error, "extendedresult", None) in SYNC_FAILED:
            raise
        raise StoreUnavailable(f"Deleted content cannot be cleared: {type(error).__name__}.") from None


@contextmanager
def open_file(path: str) -> Iterator[apsw.VFSFile]:
    """The file by way of SQLite: were it opened and closed by itself, this process would lose its locks on it."""
    flags = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE
    file = apsw.VFSFile("", os.path.abspath(path), [flags, 0])
    try:
        yield file
    finally:
        file.xClose()


def cut_log(connection: apsw.Connection) -> bool:
    """Bring everything from the log into the file and cut the log to nothing; False while somebody reads in it.

    What the first checkpoint brings over, beside the writer, the second one need not.
    """
    connection.pragma("user_version")  # until it has read, a connection does not know that there is a log
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError:
        return False
    return True


def stale_pages(file: apsw.VFSFile, size: int, stopped: Callable[[], bool]) -> Iterator[int]:
    """The pages (from 0) that seem to have something in their unused middle."""
    for offset in range(0, file.xFileSize(), READ_BYTES):
        if stopped():
            return
        content = file.xRead(min(READ_BYTES, file.xFileSize() - offset), offset)
        for start in range(0, len(content) - size + 1, size):
            number = (offset + start) // size
            page = content[start : start + size]
            if page[unused(page, number)].strip(b"\0"):
                yield number
        time.sleep(REST_S)


def unused(page: bytes, number: int) -> slice:
    """The range between a page's cell pointers and its first cell; empty for a page of another kind."""
    header = FILE_HEADER if number == 0 else 0
    length = TREE_PAGES.get(page[header])
    if length is None:
        return slice(0)
    cells = int.from_bytes(page[header + 3 : header + 5], "big")
    first = int.from_bytes(page[header + 5 : header + 7], "big") or 65536
    begin = header + length + 2 * cells
    return slice(begin, first) if begin <= first <= len(page) else slice(0)


def clean(connection: apsw.Connection, path: str, file: apsw.VFSFile, size: int, pages: list[int]) -> bool:
    """Zero what is unused in some pages; False when the log cannot be empty now.

    The commit makes the other connections of this process forget the pages that they keep in memory.
    """
    if not cut_log(connection):
        return False
    connection.execute("begin immediate")
    try:
        if os.path.getsize(f"{path}-wal"):
            return False  # somebody wrote in between
        for number in pages:
            page = file.xRead(size, number * size)
            where = unused(page, number)
            if page[where].strip(b"\0"):
                file.xWrite(bytes(where.stop - where.start), number * size + where.start)
        connection.execute("insert or replace into meta values ('scrubbed', randomblob(8))")
        connection.execute("commit")
        return True
    finally:
        if connection.in_transaction:
            connection.execute("rollback")
