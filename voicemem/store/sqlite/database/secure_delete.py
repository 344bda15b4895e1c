"""Scrubs the last traces of deleted content from the file: the log, and the unused middle of pages.

`secure_delete` writes zeros over deleted cells and freed pages. But when SQLite moves cells from a full page to its
neighbours, copies stay between the page's cell pointers and its first cell, a range that SQLite never reads, until the
page needs the room. Only `vacuum` would remove them, and it blocks every writer. So that range, and nothing else, is
zeroed in the file itself, under the write lock and while the log is empty: only then is the file all there is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import apsw

from voicemem.errors import StoreUnavailable
from voicemem.store.sqlite.database.transactions import transaction
from voicemem.store.sqlite.database.writer import SYNC_ERRORS

SCAN_BYTES = 1024 * 1024
"""Read at a time while looking for stale pages."""
PAUSE_S = 0.002
"""Pause after `READ_BYTES`, and after `LOCKED_PAGES`, so that the writer gets its turn."""
LOCKED_PAGES = 64
"""Cleaned under one lock, which takes a millisecond or two."""
TREE_PAGES = {0x02: 12, 0x05: 12, 0x0A: 8, 0x0D: 8}
"""The first byte of a page of a table or an index, and the size of its header (sqlite.org/fileformat2, section 1.6)."""
FILE_HEADER = 100
"""Bytes before the page header on the first page."""
MAX_PAGES = 2**25
"""Pages of other kinds begin with a page number, whose first byte is 0 or 1 in a file of fewer pages: then it cannot be
mistaken for that of a tree page."""

INVALIDATE_CACHES = "insert or replace into meta values ('scrubbed', randomblob(8))"
"""Any commit makes the other connections drop the pages that they have cached."""


def scrub_file(path: str, stopped: Callable[[], bool]) -> bool:
    """Clear everything deleted from the file and its log; False when that must be tried again, or once `stopped`.

    It never waits for a reader, since the writer would wait too. Raises `StoreUnavailable`, and `apsw.IOError` when
    the disk failed to sync.
    """
    try:
        with closing(apsw.Connection(path)) as connection, open_file(path) as file:
            size = int(connection.pragma("page_size"))
            if not truncate_log(connection):
                return False
            stale = list(stale_pages(file, size, stopped)) if file.xFileSize() < MAX_PAGES * size else []
            for first in range(0, len(stale), LOCKED_PAGES):
                if stopped() or not scrub_pages(connection, path, file, size, stale[first : first + LOCKED_PAGES]):
                    return False
                time.sleep(PAUSE_S)
            if stale:
                file.xSync(apsw.SQLITE_SYNC_FULL)
            return not stopped()
    except apsw.BusyError:
        return False
    except apsw.Error as error:
        if getattr(error, "extendedresult", None) in SYNC_ERRORS:
            raise
        raise StoreUnavailable(f"Deleted content cannot be cleared: {type(error).__name__}.") from None


@contextmanager
def open_file(path: str) -> Iterator[apsw.VFSFile]:
    """Open the database file through SQLite.

    With a plain `open`, its close would release all POSIX locks that this process has on the file.
    """
    flags = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE
    file = apsw.VFSFile("", os.path.abspath(path), [flags, 0])
    try:
        yield file
    finally:
        file.xClose()


def truncate_log(connection: apsw.Connection) -> bool:
    """Move everything from the log into the file, and truncate the log; False while a reader is using it.

    The passive checkpoint does most of the work while the writer goes on; the second one, which blocks the writer,
    has little left to do.
    """
    connection.pragma("user_version")  # a connection does not notice the log before its first read
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError:
        return False
    return True


def stale_pages(file: apsw.VFSFile, size: int, stopped: Callable[[], bool]) -> Iterator[int]:
    """The numbers (from 0) of pages with anything but zeros in their unused middle; read without a lock."""
    for offset in range(0, file.xFileSize(), SCAN_BYTES):
        if stopped():
            return
        content = file.xRead(min(SCAN_BYTES, file.xFileSize() - offset), offset)
        for start in range(0, len(content) - size + 1, size):
            number = (offset + start) // size
            page = content[start : start + size]
            if page[unused_range(page, number)].strip(b"\0"):
                yield number
        time.sleep(PAUSE_S)


def unused_range(page: bytes, number: int) -> slice:
    """The range between a page's cell pointers and its first cell; empty for a page of another kind.

    Bounds that make no sense give an empty range too: a page that is being written meanwhile is not touched.
    """
    header = FILE_HEADER if number == 0 else 0
    length = TREE_PAGES.get(page[header])
    if length is None:
        return slice(0)
    cells = int.from_bytes(page[header + 3 : header + 5], "big")
    first = int.from_bytes(page[header + 5 : header + 7], "big") or 65536
    begin = header + length + 2 * cells
    return slice(begin, first) if begin <= first <= len(page) else slice(0)


def scrub_pages(connection: apsw.Connection, path: str, file: apsw.VFSFile, size: int, pages: list[int]) -> bool:
    """Zero the unused range of some pages; False when the log cannot be emptied now.

    With the write lock and an empty log no other connection has a newer copy of a page, so a write to the file cannot
    be overwritten by an old page, nor overwrite a new one.
    """
    if not truncate_log(connection):
        return False
    with transaction(connection):
        if os.path.getsize(f"{path}-wal"):
            return False  # a commit came in between
        for number in pages:
            page = file.xRead(size, number * size)
            span = unused_range(page, number)
            if page[span].strip(b"\0"):
                file.xWrite(bytes(span.stop - span.start), number * size + span.start)
        connection.execute(INVALIDATE_CACHES)
    return True
