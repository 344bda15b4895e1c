"""Entries of journals that come back other than they were written."""

from __future__ import annotations

from typing import NamedTuple

import apsw

from voicemem.store.sqlite.driver import Database
from voicemem.store.sqlite.rows import fetch_one

SELECT_RUN = "select payload, checksum from journal where stream = ? and position = ?"
SET_RUN = "update journal set payload = ?, checksum = ? where stream = ? and position = ?"


class Run(NamedTuple):
    """What a row of the journal holds."""

    payload: bytes
    checksum: int | None


async def replace_run(database: Database, key: int, run: Run, position: int = 1) -> Run:
    """Put this in place of the row that begins at a position; what was there."""

    def job(connection: apsw.Connection) -> Run:
        before = Run(*fetch_one(connection, SELECT_RUN, (key, position)))
        connection.execute(SET_RUN, (*run, key, position))
        return before

    return await database.write(job)


async def damage_entry(database: Database, key: int, position: int = 1) -> Run:
    """Make a row unreadable, which no checksum tells; what was there."""
    return await replace_run(database, key, Run(b"{", None), position)
