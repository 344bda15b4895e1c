"""The embedded store in one object."""

from __future__ import annotations

import asyncio
import os

import apsw

from voicemem.errors import StoreRuined
from voicemem.store.records import Figures
from voicemem.store.sqlite.archive import SqliteArchive
from voicemem.store.sqlite.database import IN_MEMORY, RUINED, Database
from voicemem.store.sqlite.directory import SqliteDirectory
from voicemem.store.sqlite.endpoints import SqliteEndpoints
from voicemem.store.sqlite.journal import SqliteJournal
from voicemem.store.sqlite.outbox import SqliteOutbox
from voicemem.store.sqlite.retention import SqliteErasure
from voicemem.store.sqlite.rows import one

PROBE_BYTES = 64 * 1024


class SqliteFigures:
    """The method is documented in `voicemem.store.port.Operations`."""

    database: Database

    async def figures(self, now_ms: int) -> Figures:
        path = self.database.path

        def job(connection: apsw.Connection) -> Figures:
            # Every running session has a time at which it is due, if only for its greatest length, and no other has.
            (running,) = one(connection, "select count(*) from streams where due_ms is not null")
            (pending,) = one(connection, "select count(*) from exports where due_ms is not null")
            due, oldest = one(
                connection,
                "select count(*), min(due_ms) from exports where due_ms <= ? and leased_until_ms <= ?",
                (now_ms, now_ms),
            )
            return Figures(running, pending, due, oldest, size_of(path), size_of(f"{path}-wal"))

        return await self.database.read(job)


class SqliteStore(
    SqliteJournal, SqliteOutbox, SqliteEndpoints, SqliteErasure, SqliteArchive, SqliteDirectory, SqliteFigures
):
    """A `voicemem.store.port.Store` on one SQLite file.

    `exclusive` takes the file for this process; commands that work beside a server open it without.
    Raises `CannotStart`.
    """

    def __init__(self, path: str, exclusive: bool = True) -> None:
        self.database = Database(path, exclusive)
        self.identity = dict(self.database.writer.execute("select name, value from meta"))

    @property
    def healthy(self) -> bool:
        return self.database.healthy

    async def probe(self) -> None:
        if self.database.ruined:
            raise StoreRuined(RUINED)

        def job(connection: apsw.Connection) -> None:
            connection.execute("insert or replace into meta values ('probe', zeroblob(?))", (PROBE_BYTES,))
            connection.execute("delete from meta where name = 'probe'")

        await self.database.write(job)

    async def close_store(self) -> None:
        await asyncio.to_thread(self.database.close)


class MemoryStore(SqliteStore):
    """A `voicemem.store.port.Store` in memory."""

    def __init__(self) -> None:
        super().__init__(IN_MEMORY)


def size_of(path: str) -> int:
    """Of a file, in bytes; 0 when there is none."""
    try:
        return 0 if path.startswith(IN_MEMORY) else os.stat(path).st_size
    except OSError:
        return 0
