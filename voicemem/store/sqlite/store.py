"""The embedded store in one object."""

from __future__ import annotations

import asyncio

import apsw

from voicemem.errors import StoreRuined
from voicemem.store.sqlite.archive import SqliteArchive
from voicemem.store.sqlite.database import RUINED, Database
from voicemem.store.sqlite.directory import SqliteDirectory
from voicemem.store.sqlite.endpoints import SqliteEndpoints
from voicemem.store.sqlite.erasure import SqliteErasure
from voicemem.store.sqlite.figures import SqliteFigures
from voicemem.store.sqlite.journal import SqliteJournal
from voicemem.store.sqlite.outbox import SqliteOutbox

PROBE_BYTES = 64 * 1024


class SqliteStore(
    SqliteJournal, SqliteOutbox, SqliteEndpoints, SqliteErasure, SqliteArchive, SqliteDirectory, SqliteFigures
):
    """A `voicemem.store.base.Store` on one SQLite file.

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
