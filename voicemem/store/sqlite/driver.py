"""SQLite's side of the seam (`voicemem.store.database`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import apsw

from voicemem.store.admission import AppendResult, Batch
from voicemem.store.sqlite.connection import SqliteConnection
from voicemem.store.sqlite.database.connections import Database
from voicemem.store.streams import Stream

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

    commit_shards = 1

    async def append(self, batches: Sequence[Batch], now_ms: int) -> list[AppendResult]:
        rows = self.database.rows
        return await self.database.write(lambda _: [rows.append(batch, now_ms) for batch in batches])

    async def try_append(self, batches: Sequence[Batch], now_ms: int) -> Sequence[AppendResult | None]:
        return await self.append(batches, now_ms)

    def find_kept_stream(self, project: str, kind: str, name: str) -> Stream | None:
        return self.database.rows.committed.find_by_name(project, kind, name)

    @property
    def is_exclusive(self) -> bool:
        return self.database.is_exclusive

    @property
    def identity(self) -> dict[str, bytes]:
        return self.database.identity
