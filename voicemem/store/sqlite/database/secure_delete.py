"""Clears a file of what was deleted: SQLite overwrites it with zeros, and its log is emptied here.

`secure_delete` writes zeros over deleted rows and freed pages. What the log has of them goes when it is truncated.
When SQLite moves rows of a full page to its neighbours, copies may stay in an unused part of the page until it is
needed; only `vacuum`, which blocks every writer, makes them go at once (docs/storage.md).
"""

from __future__ import annotations

from contextlib import closing

import apsw

from voicemem.errors import StoreUnavailable
from voicemem.store.sqlite.database.writer import SYNC_ERRORS


def truncate_log(path: str) -> bool:
    """Move everything from the log into the file, and truncate the log; False while a reader is using it.

    The passive checkpoint does most of the work while the writer goes on; the second one, which blocks the writer, has
    little left to do. It never waits for a reader, since the writer would wait too. Raises `StoreUnavailable`, and
    `apsw.IOError` when the disk failed to sync.
    """
    try:
        with closing(apsw.Connection(path)) as connection:
            connection.pragma("user_version")  # a connection does not notice the log before its first read
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError:
        return False
    except apsw.Error as error:
        if getattr(error, "extendedresult", None) in SYNC_ERRORS:
            raise
        raise StoreUnavailable(f"Deleted content cannot be cleared: {type(error).__name__}.") from None
    return True
