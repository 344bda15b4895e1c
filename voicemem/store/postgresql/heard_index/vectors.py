"""The vectors of messages, in tables of the database; see `voicemem.store.ports.vectors`.

They are arrays of the database's own, and become vectors of pgvector in the query that compares them: the extension may
be missing, come later, or stand in any schema.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from voicemem.store.ports.heard_index import HeardScope
from voicemem.store.ports.vectors import (
    MAX_COMPARED,
    Embedded,
    MessagePlace,
    NearMessages,
    TextToEmbed,
    VectorCheck,
    VectorQuery,
    VectorSupport,
    embedder_number,
    floats_of,
)
from voicemem.store.postgresql.database.connection import Session
from voicemem.store.postgresql.database.pool import Database
from voicemem.store.postgresql.heard_index.index import SCOPE_COLUMNS, to_message
from voicemem.store.postgresql.journal.rows import Rows

NO_EXTENSION = "PostgreSQL has no pgvector, or the role may not create the extension; searches go by words alone."
CREATE_EXTENSION = "create extension if not exists vector"
SELECT_SCHEMA = """
    select quote_ident(n.nspname) from pg_extension e join pg_namespace n on n.oid = e.extnamespace
    where e.extname = 'vector'
"""
MISSING = """
    select 1 from heard_messages m where m.stream = s.stream and not exists (
        select 1 from heard_vectors v where v.stream = m.stream and v.turn = m.turn
        and v.number = m.number and v.embedder = $1
    )
"""
CHECK = f"""
    select stream, exists({MISSING}) from heard_sessions s where stream > $2 order by stream limit $3
"""
COUNT = """
    select (select count(*) from heard_messages) - (select count(*) from heard_vectors where embedder = $1)
"""
SELECT_WITHOUT = """
    select stream, turn, number, text from unnest($1::bigint[]) as wanted (key)
    join streams s on s.key = wanted.key and s.state <> 'erased'
    join heard_messages m on m.stream = s.key where not exists (
        select 1 from heard_vectors v where v.stream = m.stream and v.turn = m.turn
        and v.number = m.number and v.embedder = $2
    ) limit $3
"""
SAVE = """
    insert into heard_vectors
    select stream, turn, number, said_ms, $1, $2::float8[]::real[] from heard_messages
    where stream = $3 and turn = $4 and number = $5 and text = $6 for key share
    on conflict (stream, turn, number) do update set embedder = excluded.embedder, vector = excluded.vector
"""
"""The lock keeps a message that is being deleted from getting a vector behind its back."""
COSINE = "1 - (v.vector::{schema}.vector operator({schema}.<=>) $1::float8[]::real[]::{schema}.vector)"
FIND = """
with compared as materialized (
    select v.stream, v.turn, v.number from heard_sessions s
    cross join lateral (
        select * from heard_vectors v where v.stream = s.stream and v.embedder = $2
        and v.said_ms >= $3 and v.said_ms < $4 and v.vector is not null
    ) v where {scope} order by s.stream desc limit $5
), near as materialized (
    select stream, turn, number, {cosine} as cosine from compared
    join heard_vectors v using (stream, turn, number) order by cosine desc, stream desc limit $6
)
select (select count(*) from compared), m.stream, m.turn, m.number, m.position, m.role, m.said_ms, m.text, cosine
from near join heard_messages m using (stream, turn, number)
order by cosine desc, m.said_ms desc, m.stream desc, m.turn desc, m.number desc
"""
SELECT_COSINES = """
    select v.stream, v.turn, v.number, {cosine} from unnest($2::bigint[], $3::bigint[], $4::bigint[])
    as wanted (key, turn, number) join heard_vectors v on v.stream = key
    and v.turn = wanted.turn and v.number = wanted.number where v.embedder = $5 and v.vector is not null
"""


class PostgresqlHeardVectors:
    """The methods are documented in `voicemem.store.ports.vectors.HeardVectors`."""

    database: Database
    vector_schema: str | None = None
    """Where pgvector is; None until `prepare_vectors` has found it."""

    async def prepare_vectors(self) -> VectorSupport:
        def job(rows: Rows) -> str | None:
            return find_extension(rows.session)

        try:
            self.vector_schema = await self.database.write(job)
        except psycopg.Error:
            self.vector_schema = None
        return VectorSupport(0, NO_EXTENSION) if self.vector_schema is None else VectorSupport(MAX_COMPARED)

    async def check_vectors(self, embedder: str, after_key: int, limit: int) -> VectorCheck:
        values = embedder_number(embedder), after_key, limit
        found = await self.database.read(lambda session: session.rows(CHECK, values))
        behind = [key for key, is_missing in found if is_missing]
        return VectorCheck(behind, len(found), found[-1][0] if len(found) == limit else None)

    async def count_without_vector(self, embedder: str) -> int:
        number = embedder_number(embedder)
        (count,) = await self.database.read(lambda session: session.one(COUNT, (number,)))
        return int(count)

    async def find_without_vector(self, embedder: str, keys: Sequence[int], limit: int) -> list[TextToEmbed]:
        values = [*keys], embedder_number(embedder), limit
        found = await self.database.read(lambda session: session.rows(SELECT_WITHOUT, values))
        return [TextToEmbed(MessagePlace(*place), text) for *place, text in found]

    async def save_vectors(self, embedder: str, vectors: Embedded) -> None:
        number = embedder_number(embedder)

        def job(rows: Rows) -> None:
            for message, vector in in_order:
                floats = None if vector is None else floats_of(vector).tolist()
                rows.session.execute(SAVE, (number, floats, *message.place, message.text))

        in_order = sorted(vectors, key=lambda one: one[0].place)
        await self.database.write(job)

    async def find_near(self, wanted: VectorQuery) -> NearMessages:
        schema = self.vector_schema
        if schema is None:
            return NearMessages([], {}, False)
        return await self.database.read(lambda session: find_near(session, wanted, COSINE.format(schema=schema)))


def find_extension(session: Session) -> str | None:
    """The schema in which pgvector is, which is made where it may be; None where there is none."""
    row = session.row(SELECT_SCHEMA)
    if row is None:
        session.execute("savepoint extension")
        try:
            session.execute(CREATE_EXTENSION)
        except psycopg.Error:
            session.execute("rollback to savepoint extension")  # another node may have made it
        row = session.row(SELECT_SCHEMA)
    return None if row is None else str(row[0])


def find_near(session: Session, wanted: VectorQuery, cosine: str) -> NearMessages:
    vector, number = floats_of(wanted.vector).tolist(), embedder_number(wanted.embedder)
    conditions, given = scope_conditions(wanted.scope, 7)
    values = vector, number, *wanted.said_between, MAX_COMPARED + 1, wanted.limit, *given
    rows = session.rows(FIND.format(scope=conditions, cosine=cosine), values)
    cosines = {}
    if wanted.also:
        places = [list(column) for column in zip(*wanted.also, strict=True)]
        found = session.rows(SELECT_COSINES.format(cosine=cosine), (vector, *places, number))
        cosines = {MessagePlace(*place): float(value) for *place, value in found}
    return NearMessages([to_message(row[1:]) for row in rows], cosines, bool(rows) and rows[0][0] > MAX_COMPARED)


def scope_conditions(scope: HeardScope, first: int) -> tuple[str, list[str]]:
    """The conditions for the sessions of a scope, and their values, of which the first has this number."""
    given = [(name, part) for name, part in zip(SCOPE_COLUMNS, scope, strict=True) if part is not None]
    conditions = " and ".join(f"s.{name} = ${number}" for number, (name, _) in enumerate(given, first))
    return conditions, [part for _, part in given]
