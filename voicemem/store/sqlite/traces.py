"""Clears the logs of a file and of its index of what was deleted (`files` says what SQLite does by itself)."""

from __future__ import annotations

import asyncio
import time

import apsw

from voicemem.errors import StoreUnavailable
from voicemem.store.database import Connection
from voicemem.store.retention import Traces
from voicemem.store.sqlite.driver import IN_MEMORY, SqliteDatabase
from voicemem.store.sqlite.files import truncate_log
from voicemem.store.sqlite.transcript_file import IndexFile
from voicemem.store.sqlite.words import NOTE_REMOVED
from voicemem.store.sqlite.writer import RUINED

CLEAR_AGAIN_S = 20.0
"""Between two times that the log is emptied for the sake of single memories alone."""
SELECT_REMOVED = "select value from meta where name = 'removed'"
FORGET_REMOVED = "delete from meta where name = 'removed' and value = ?"


class SqliteTraces(Traces):
    """Traces of deleted content in the logs of the file and of the index. A mark in `meta` says that there are some."""

    def __init__(self, database: SqliteDatabase, index: IndexFile) -> None:
        self.database = database
        self.index = index
        self.cleared_s = float("-inf")
        """When the logs were emptied last, by a clock that is never set."""

    def note(self, connection: Connection) -> None:
        connection.execute(NOTE_REMOVED)
        self.cleared_s = float("-inf")

    async def clear(self) -> bool:
        removed: bytes | None = await self.database.read(lambda connection: connection.raw.execute(SELECT_REMOVED).get)
        if removed is None or time.monotonic() < self.cleared_s + CLEAR_AGAIN_S:
            return True
        path, index = self.database.path, self.index
        try:
            if path != IN_MEMORY and not await asyncio.to_thread(truncate_log, path):
                return False
        except apsw.IOError:
            await self.database.write(lambda connection: self.database.writing.mark_ruined())
            raise StoreUnavailable(RUINED) from None
        try:
            if not (index.in_memory or not index.is_there or await asyncio.to_thread(truncate_log, index.path)):
                return False
        except apsw.IOError as error:  # that does not ruin the store: the index can be made again
            raise StoreUnavailable(f"The index cannot be cleared: {type(error).__name__}.") from None
        self.cleared_s = time.monotonic()
        await self.database.write(lambda connection: connection.raw.execute(FORGET_REMOVED, (removed,)))
        return True
