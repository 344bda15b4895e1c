"""What an operator wants to know of the store, each from an index."""

from __future__ import annotations

import os

import apsw

from voicemem.store.base import Figures
from voicemem.store.sqlite.database import IN_MEMORY, Database
from voicemem.store.sqlite.rows import one


class SqliteFigures:
    """The method is documented in `voicemem.store.base.Operations`."""

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


def size_of(path: str) -> int:
    """Of a file, in bytes; 0 when there is none."""
    try:
        return 0 if path.startswith(IN_MEMORY) else os.stat(path).st_size
    except OSError:
        return 0
