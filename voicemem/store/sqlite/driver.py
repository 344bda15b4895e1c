"""SQLite's side of the seam (`voicemem.store.database`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import apsw

from voicemem.store.sqlite.connection import SqliteConnection
from voicemem.store.sqlite.database.connections import Database

T = TypeVar("T")


class SqliteDatabase:
    """A `voicemem.store.database.Database` on one SQLite file."""

    engine = "sqlite"

    def __init__(self, database: Database) -> None:
        self.database = database
        self.path = database.path

    async def write(self, job: Callable[[SqliteConnection], T]) -> T:
        return await self.database.write(self.with_connection(job))

    async def read(self, job: Callable[[SqliteConnection], T]) -> T:
        return await self.database.read(self.with_connection(job))

    async def read_inline(self, job: Callable[[SqliteConnection], T]) -> T:
        return await self.database.read_inline(self.with_connection(job))

    async def scan(self, job: Callable[[SqliteConnection], T]) -> T:
        return await self.database.scan(self.with_connection(job))

    def with_connection(self, job: Callable[[SqliteConnection], T]) -> Callable[[apsw.Connection], T]:
        rows = self.database.rows
        return lambda raw: job(SqliteConnection(raw, rows))

    @property
    def is_exclusive(self) -> bool:
        return self.database.is_exclusive

    @property
    def identity(self) -> dict[str, bytes]:
        return self.database.identity
