"""A service's store in trouble: full, locked, or unable to commit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import apsw

from voicemem.app import App
from voicemem.store.sqlite.driver import SqliteDatabase
from voicemem.store.sqlite.store import SqliteStore


def database_of(app: App) -> SqliteDatabase:
    """The database of a service."""
    assert isinstance(app.services.store, SqliteStore)
    return app.services.store.database


@asynccontextmanager
async def store_without_room(app: App) -> AsyncIterator[None]:
    """Until the block ends the database gets no further page, as on a full disk."""
    database = database_of(app)
    await database.write(lambda c: c.raw.pragma("max_page_count", c.raw.pragma("page_count")))
    try:
        yield
    finally:
        await database.write(lambda connection: connection.raw.pragma("max_page_count", 2**30))


@asynccontextmanager
async def store_that_cannot_commit(app: App) -> AsyncIterator[None]:
    """Until the block ends every commit of a service on a file fails at once."""
    database = database_of(app)
    await database.write(lambda connection: connection.raw.set_busy_timeout(0))
    with locked_database(database.path):
        yield
    await database.write(lambda connection: connection.raw.set_busy_timeout(5_000))


@contextmanager
def locked_database(path: str) -> Iterator[None]:
    """Until the block ends someone else writes to the database, so that no commit comes through."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(5_000)  # the server may be writing at this moment
    try:
        connection.execute("begin immediate")
        yield
    finally:
        connection.close()
