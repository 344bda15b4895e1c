"""PostgreSQL's side of the seam (`voicemem.store.database`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from voicemem.store.postgresql.database.pool import Database
from voicemem.store.postgresql.statements import PostgresqlConnection

T = TypeVar("T")


class PostgresqlDatabase:
    """A `voicemem.store.database.Database` on one PostgreSQL database."""

    engine = "postgresql"
    is_exclusive = False

    def __init__(self, database: Database) -> None:
        self.database = database

    async def write(self, job: Callable[[PostgresqlConnection], T]) -> T:
        return await self.database.write(lambda rows: job(PostgresqlConnection(rows.session, rows)))

    async def read(self, job: Callable[[PostgresqlConnection], T]) -> T:
        return await self.database.read(lambda session: job(PostgresqlConnection(session)))

    read_inline = scan = read

    @property
    def identity(self) -> dict[str, bytes]:
        return self.database.identity
