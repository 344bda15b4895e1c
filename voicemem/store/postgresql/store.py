"""The store on PostgreSQL as one object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from voicemem.errors import StoreUnavailable
from voicemem.store.memory_budget import MemoryBudget
from voicemem.store.port import Store
from voicemem.store.postgresql.connection import Session
from voicemem.store.postgresql.driver import SELECT_NOW, Database, PostgresqlDatabase
from voicemem.store.postgresql.memory_words import PostgresqlMemoryWords
from voicemem.store.postgresql.nodes import PostgresqlNodes
from voicemem.store.postgresql.overviews import PostgresqlOverviews
from voicemem.store.postgresql.retention import PostgresqlErasure
from voicemem.store.postgresql.rows import Rows
from voicemem.store.postgresql.transcript_words import PostgresqlIndex, PostgresqlMessageWords
from voicemem.store.postgresql.vectors import PostgresqlVectors
from voicemem.store.records import Figures, Quotas

PROBE_BYTES = 64 * 1024
"""The size of a usual commit."""
WRITE_PROBE = "insert into meta values ($1, $2) on conflict (name) do update set value = excluded.value"
DELETE_PROBE = "delete from meta where name = $1"
COUNT_RUNNING = "select count(*) from streams where due_ms is not null"
"""Every running session has a time at which it is due, if only for its greatest length; other streams have none."""
COUNT_PENDING_DELIVERIES = "select count(*) from deliveries where due_ms is not null"
COUNT_DUE_DELIVERIES = "select count(*), min(due_ms) from deliveries where due_ms <= $1 and leased_until_ms <= $1"
SELECT_SIZE = "select pg_database_size(current_database())"


class PostgresqlStore(PostgresqlOverviews, PostgresqlErasure, PostgresqlNodes, Store):
    """A `voicemem.store.port.Store` on a PostgreSQL database; `budget` bounds what is kept at hand of it."""

    def __init__(self, url: str, budget: MemoryBudget | None = None, upgrade: bool = False, make: bool = True) -> None:
        """Connect, and `make` the schema in an empty database; with `upgrade` also bring an older one to this version.

        Raises `CannotStart`.
        """
        self.database = Database(url, budget, upgrade, make)
        seam = PostgresqlDatabase(self.database)
        memory_words = PostgresqlMemoryWords(self.database.identity["cursor_secret"])
        words = PostgresqlMessageWords(seam)
        super().__init__(seam, memory_words, PostgresqlIndex(seam), words, PostgresqlVectors(seam))

    @property
    def healthy(self) -> bool:
        return self.trouble is None

    @property
    def trouble(self) -> str | None:
        return self.database.troubles.reason

    async def read_figures(self, now_ms: int) -> Figures:
        def job(session: Session) -> Figures:
            (running,) = session.one(COUNT_RUNNING)
            (pending,) = session.one(COUNT_PENDING_DELIVERIES)
            due, oldest = session.one(COUNT_DUE_DELIVERIES, (now_ms,))
            (size,) = session.one(SELECT_SIZE)
            return Figures(running, pending, due, oldest, size, 0)

        return await self.database.read(job)

    def set_quotas(self, quotas: Quotas, count_refusal: Callable[[str], None] | None = None) -> None:
        self.database.quotas = quotas
        if count_refusal is not None:
            self.database.count_quota_refusal = count_refusal

    async def read_clock(self) -> int | None:
        def job(session: Session) -> int:
            self.database.compare_again(session)  # each heartbeat asks for the clock
            (now_ms,) = session.one(SELECT_NOW)
            return int(now_ms)

        return await self.database.read(job)

    async def probe(self) -> None:
        name = f"probe {self.database.token.hex()}"

        def job(rows: Rows) -> None:
            rows.session.execute(WRITE_PROBE, (name, bytes(PROBE_BYTES)))
            rows.session.execute(DELETE_PROBE, (name,))

        with suppress(StoreUnavailable):  # that some connections do not work stops nobody from using the others
            await self.database.try_again(job)
        await self.database.write(job)

    async def close_store(self) -> None:
        with suppress(StoreUnavailable):
            await self.database.save_stored_bytes()
        await asyncio.to_thread(self.database.close)
