"""The store on PostgreSQL as one object."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import psycopg

from voicemem.errors import StoreUnavailable
from voicemem.runtime import MemoryBudget
from voicemem.store.database import Connection, Database
from voicemem.store.port import Store
from voicemem.store.postgresql.connection import PostgresqlConnection
from voicemem.store.postgresql.driver import SELECT_NOW, PostgresqlDatabase
from voicemem.store.postgresql.words import PostgresqlIndex, PostgresqlMemoryWords, PostgresqlMessageWords
from voicemem.store.records import Quotas
from voicemem.store.retention import Residue
from voicemem.store.vectors import MAX_COMPARED, VectorSupport, floats_of

NO_EXTENSION = "PostgreSQL has no pgvector, or the role may not create the extension; searches go by words alone."
CREATE_EXTENSION = "create extension if not exists vector"
SELECT_SCHEMA = """
    select quote_ident(n.nspname) from pg_extension e join pg_namespace n on n.oid = e.extnamespace
    where e.extname = 'vector'
"""
COSINE = "1 - (v.vector::{0}.vector operator({0}.<=>) :vector::float8[]::real[]::{0}.vector)"


class PostgresqlVectors:
    """A `voicemem.store.vectors.VectorMath` on PostgreSQL: arrays, which become vectors of pgvector in the queries.

    So the extension may be missing, come later, or be in any schema.
    """

    stored = ":vector::float8[]::real[]"

    def __init__(self, database: Database) -> None:
        self.database = database
        self.schema: str | None = None
        """The schema of pgvector; None until `prepare` has found it."""

    async def prepare(self) -> VectorSupport:
        """Find the extension, or create it if that is allowed."""
        try:
            self.schema = await self.database.write(find_extension)
        except psycopg.Error:
            self.schema = None
        return VectorSupport(0, NO_EXTENSION) if self.schema is None else VectorSupport(MAX_COMPARED)

    def value(self, vector: bytes | None) -> list[float] | None:
        return None if vector is None else floats_of(vector).tolist()

    def begin(self, connection: Connection) -> int:
        return 0 if self.schema is None else MAX_COMPARED

    @property
    def cosine(self) -> str:
        return COSINE.format(self.schema)


def find_extension(connection: Connection) -> str | None:
    """Return the schema of pgvector, which is created if that is allowed; None without it."""
    row = connection.row(SELECT_SCHEMA)
    if row is None:
        connection.execute("savepoint extension")
        try:
            connection.execute(CREATE_EXTENSION)
        except psycopg.Error:
            connection.execute("rollback to savepoint extension")  # another node may have made it
        row = connection.row(SELECT_SCHEMA)
    return None if row is None else str(row[0])


SELECT_SIZE = "select pg_database_size(current_database())"


class PostgresqlStore(Store):
    """A `voicemem.store.port.Store` on a PostgreSQL database; `budget` bounds the caches."""

    database: PostgresqlDatabase

    def __init__(self, url: str, budget: MemoryBudget | None = None, upgrade: bool = False, make: bool = True) -> None:
        """Connect; see `PostgresqlDatabase`. Raises `CannotStart`."""
        self.database = database = PostgresqlDatabase(url, budget, upgrade, make)
        memory_words = PostgresqlMemoryWords(database.identity["cursor_secret"])
        index, words, vectors = PostgresqlIndex(database), PostgresqlMessageWords(database), PostgresqlVectors(database)
        super().__init__(database, memory_words, index, words, vectors, Residue())

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
