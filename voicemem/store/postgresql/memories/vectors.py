"""The methods of `voicemem.store.ports.vectors.MemoryVectors` on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from voicemem.store.ports.memories import MemoryFilter
from voicemem.store.ports.vectors import (
    MAX_COMPARED,
    Embedded,
    MemoryPlace,
    NearMemories,
    TextToEmbed,
    VectorCheck,
    embedder_number,
    floats_of,
)
from voicemem.store.postgresql.database.connection import Session
from voicemem.store.postgresql.database.pool import Database
from voicemem.store.postgresql.heard_index.vectors import COSINE
from voicemem.store.postgresql.journal.rows import Rows
from voicemem.store.postgresql.memories.conditions import Parameters, conditions
from voicemem.store.postgresql.memories.memories import NEWEST_FIRST, with_newer
from voicemem.store.postgresql.memories.rows import COLUMNS, IS_THERE, to_row

IS_MISSING = """
    m.removed_ms is null and not exists (
        select 1 from memory_vectors v where v.stream = m.stream and v.id = m.id
        and v.embedder = $1
    )
"""
CHECK = f"""
    select stream, bool_or({IS_MISSING}) from memories m where stream > $2 and {IS_THERE}
    group by stream order by stream limit $3
"""
COUNT = f"select count(*) from memories m where {IS_MISSING} and {IS_THERE}"
SELECT_WITHOUT = f"""
    select m.stream, m.id, m.text from unnest($2::bigint[]) as wanted (key)
    join memories m on m.stream = key where {IS_MISSING} and {IS_THERE} limit $3
"""
SAVE = """
    insert into memory_vectors
    select stream, id, $1, $2, $3::float8[]::real[] from memories
    where stream = $4 and id = $5 and text = $6 and removed_ms is null for share
    on conflict (stream, id) do update
    set embedder = excluded.embedder, digest = excluded.digest, vector = excluded.vector
"""
FIND = f"""
with compared as materialized (
    select m.stream, m.id from memories m
    join memory_vectors v on v.stream = m.stream and v.id = m.id
    where v.embedder = $2 and v.vector is not null and {{conditions}} order by {NEWEST_FIRST} limit {{max}}
), near as materialized (
    select stream, id, {{cosine}} as cosine from compared join memory_vectors v using (stream, id)
    order by cosine desc, id desc limit {{limit}}
)
select (select count(*) from compared), cosine, {COLUMNS} from near join memories m using (stream, id)
order by cosine desc, {NEWEST_FIRST}
"""
SELECT_COSINES = """
    select v.stream, v.id, {cosine} from unnest($2::bigint[], $3::text[]) as wanted (key, id)
    join memory_vectors v on v.stream = key and v.id = wanted.id
    where v.embedder = $4 and v.vector is not null
"""


class PostgresqlMemoryVectors:
    """The methods are documented in `voicemem.store.ports.vectors.MemoryVectors`."""

    database: Database
    vector_schema: str | None

    async def check_memory_vectors(self, embedder: str, after_key: int, limit: int) -> VectorCheck:
        values = embedder_number(embedder), after_key, limit
        found = await self.database.read(lambda session: session.rows(CHECK, values))
        behind = [key for key, is_missing in found if is_missing]
        return VectorCheck(behind, len(found), found[-1][0] if len(found) == limit else None)

    async def count_memories_without_vector(self, embedder: str) -> int:
        number = embedder_number(embedder)
        (count,) = await self.database.read(lambda session: session.one(COUNT, (number,)))
        return int(count)

    async def find_memories_without_vector(self, embedder: str, keys: Sequence[int], limit: int) -> list[TextToEmbed]:
        values = embedder_number(embedder), [*keys], limit
        found = await self.database.read(lambda session: session.rows(SELECT_WITHOUT, values))
        return [TextToEmbed(MemoryPlace(key, id), text) for key, id, text in found]

    async def save_memory_vectors(self, embedder: str, vectors: Embedded) -> None:
        number = embedder_number(embedder)
        in_order = sorted(vectors, key=lambda one: one[0].place)

        def job(rows: Rows) -> None:
            for memory, vector in in_order:
                floats = None if vector is None else floats_of(vector).tolist()
                digest = sha256(memory.text.encode()).digest()
                rows.session.execute(SAVE, (number, digest, floats, *memory.place, memory.text))

        await self.database.write(job)

    async def find_memories_near(
        self, wanted: MemoryFilter, embedder: str, vector: bytes, limit: int, also: Sequence[MemoryPlace] = ()
    ) -> NearMemories:
        if self.vector_schema is None:
            return NearMemories([], {}, False)
        cosine, number = COSINE.format(schema=self.vector_schema), embedder_number(embedder)
        given = Parameters(floats_of(vector).tolist(), number)
        clauses = conditions(wanted, given)
        query = FIND.format(conditions=clauses, cosine=cosine, max=given.add(MAX_COMPARED + 1), limit=given.add(limit))

        def job(session: Session) -> NearMemories:
            found = session.rows(query, given.values)
            rows = [to_row(row[2:]) for row in found]
            if wanted.with_superseded:
                rows = with_newer(session, wanted.project, rows, wanted.as_of_ms)
            near = [(row, float(value)) for row, (_, value, *_) in zip(rows, found, strict=True)]
            cosines = cosines_of(session, cosine, given.values[:2], also)
            return NearMemories(near, cosines, bool(found) and found[0][0] > MAX_COMPARED)

        return await self.database.read(job)


def cosines_of(
    session: Session, cosine: str, asked: Sequence[object], also: Sequence[MemoryPlace]
) -> dict[MemoryPlace, float]:
    """How near these memories are to a vector, of those of an embedder (`asked`)."""
    if not also:
        return {}
    vector, number = asked
    keys, ids = [place.key for place in also], [place.id for place in also]
    found = session.rows(SELECT_COSINES.format(cosine=cosine), (vector, keys, ids, number))
    return {MemoryPlace(key, id): float(value) for key, id, value in found}
