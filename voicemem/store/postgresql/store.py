"""The store on PostgreSQL as one object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from voicemem.errors import StoreUnavailable
from voicemem.store.database import Connection
from voicemem.store.memory_budget import MemoryBudget
from voicemem.store.port import Store
from voicemem.store.postgresql.connection import PostgresqlConnection
from voicemem.store.postgresql.driver import SELECT_NOW, PostgresqlDatabase
from voicemem.store.postgresql.vectors import PostgresqlVectors
from voicemem.store.postgresql.words import PostgresqlIndex, PostgresqlMemoryWords, PostgresqlMessageWords
from voicemem.store.records import Quotas
from voicemem.store.retention import Traces

SELECT_SIZE = "select pg_database_size(current_database())"


class PostgresqlStore(Store):
    """A `voicemem.store.port.Store` on a PostgreSQL database; `budget` bounds what is kept at hand of it."""

    database: PostgresqlDatabase

    def __init__(self, url: str, budget: MemoryBudget | None = None, upgrade: bool = False, make: bool = True) -> None:
        """Connect, and `make` the schema in an empty database; with `upgrade` also bring an older one to this version.

        Raises `CannotStart`.
        """
        self.database = database = PostgresqlDatabase(url, budget, upgrade, make)
        memory_words = PostgresqlMemoryWords(database.identity["cursor_secret"])
        index, words, vectors = PostgresqlIndex(database), PostgresqlMessageWords(database), PostgresqlVectors(database)
        super().__init__(database, memory_words, index, words, vectors, Traces())

    @property
    def healthy(self) -> bool:
        return self.trouble is None

    @property
    def trouble(self) -> str | None:
        return self.database.troubles.reason

    def measure(self, connection: Connection) -> tuple[int, int]:
        return int(connection.one(SELECT_SIZE)[0]), 0

    def set_quotas(self, quotas: Quotas, count_refusal: Callable[[str], None] | None = None) -> None:
        self.database.quotas = quotas
        if count_refusal is not None:
            self.database.count_quota_refusal = count_refusal

    async def read_clock(self) -> int | None:
        def job(connection: PostgresqlConnection) -> int:
            self.database.compare_again(connection)  # each heartbeat asks for the clock
            (now_ms,) = connection.one(SELECT_NOW)
            return int(now_ms)

        return await self.database.read(job)

    async def close_store(self) -> None:
        with suppress(StoreUnavailable):
            await self.database.save_stored_bytes()
        await asyncio.to_thread(self.database.close)
