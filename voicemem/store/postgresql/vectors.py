"""Vectors on PostgreSQL: arrays of the database's own, compared by pgvector.

They become vectors of pgvector in the query that compares them: the extension may be missing, come later, or stand in
any schema.
"""

from __future__ import annotations

import psycopg

from voicemem.store.database import Connection, Database
from voicemem.store.vectors import MAX_COMPARED, VectorSupport, floats_of

NO_EXTENSION = "PostgreSQL has no pgvector, or the role may not create the extension; searches go by words alone."
CREATE_EXTENSION = "create extension if not exists vector"
SELECT_SCHEMA = """
    select quote_ident(n.nspname) from pg_extension e join pg_namespace n on n.oid = e.extnamespace
    where e.extname = 'vector'
"""
COSINE = "1 - (v.vector::{0}.vector operator({0}.<=>) :vector::float8[]::real[]::{0}.vector)"


class PostgresqlVectors:
    """A `voicemem.store.vectors.VectorMath` on PostgreSQL."""

    stored = ":vector::float8[]::real[]"

    def __init__(self, database: Database) -> None:
        self.database = database
        self.schema: str | None = None
        """The schema of pgvector; None until `prepare` has found it."""

    async def prepare(self) -> VectorSupport:
        """Find the extension, or make it where that is allowed."""
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
    """The schema in which pgvector is, which is made where it may be; None where there is none."""
    row = connection.row(SELECT_SCHEMA)
    if row is None:
        connection.execute("savepoint extension")
        try:
            connection.execute(CREATE_EXTENSION)
        except psycopg.Error:
            connection.execute("rollback to savepoint extension")  # another node may have made it
        row = connection.row(SELECT_SCHEMA)
    return None if row is None else str(row[0])
