"""Entries of journals that come back other than they were written."""

from __future__ import annotations

from typing import NamedTuple

from voicemem.store.sqlite.connection import SqliteConnection
from voicemem.store.sqlite.driver import SqliteDatabase

SELECT_RUN = "select payload, checksum from journal where stream = :stream and position = :position"
SET_RUN = "update journal set payload = :payload, checksum = :checksum where stream = :stream and position = :position"


class Run(NamedTuple):
    """What a row of the journal holds."""

    payload: bytes
    checksum: int | None


async def replace_run(database: SqliteDatabase, key: int, run: Run, position: int = 1) -> Run:
    """Put this in place of the row that begins at a position; what was there."""

    def job(connection: SqliteConnection) -> Run:
        before = Run(*connection.one(SELECT_RUN, stream=key, position=position))
        connection.execute(SET_RUN, **run._asdict(), stream=key, position=position)
        return before

    return await database.write(job)


async def damage_entry(database: SqliteDatabase, key: int, position: int = 1) -> Run:
    """Make a row unreadable, which no checksum tells; what was there."""
    return await replace_run(database, key, Run(b"{", None), position)
