"""The vectors of memories, beside their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from voicemem.store.database import Connection, Database
from voicemem.store.memories import COLUMNS, NEWEST_FIRST, with_newer
from voicemem.store.memory_filters import IS_THERE, Conditions, MemoryFilter
from voicemem.store.memory_rows import MemoryRow, row_of_values
from voicemem.store.vectors import (
    Embedded,
    MemoryPlace,
    TextToEmbed,
    VectorCheck,
    VectorMath,
    checked,
    embedder_number,
)


class NearMemories(NamedTuple):
    """What was found by vectors; scores are cosines."""

    found: list[tuple[MemoryRow, float]]
    """The nearest first."""
    also: dict[MemoryPlace, float]
    """The cosines of those that the query names, as far as they have vectors."""
    is_capped: bool
    """Whether more memories match the filter than were compared."""


IS_MISSING = """
    m.removed_ms is null and not exists (
        select 1 from memory_vectors v where v.stream = m.stream and v.id = m.id and v.embedder = :embedder
    )
"""
CHECK = f"""
    select stream, max(case when {IS_MISSING} then 1 else 0 end) from memories m where stream > :after and {IS_THERE}
    group by stream order by stream limit :limit
"""
COUNT = f"select count(*) from memories m where {IS_MISSING} and {IS_THERE}"
SELECT_WITHOUT = f"""
    select stream, id, text from memories m where stream in :keys and {IS_MISSING} and {IS_THERE} limit :limit
"""
LOCK = """
    select 1 from memories where stream = :stream and id = :id and text = :text and removed_ms is null for share
"""
"""What changes the text waits for that, and then deletes the vector."""
SAVE = """
    insert into memory_vectors (stream, id, embedder, vector) values (:stream, :id, :embedder, {vector})
    on conflict (stream, id) do update set embedder = excluded.embedder, vector = excluded.vector
"""
FIND = f"""
    with compared as materialized (
        select m.stream, m.id, m.created_ms from memories m
        join memory_vectors v on v.stream = m.stream and v.id = m.id
        where v.embedder = :embedder and v.vector is not null and {{conditions}} order by {NEWEST_FIRST} limit :most
    ), near as materialized (
        select v.stream, v.id, {{cosine}} as cosine
        from compared c join memory_vectors v on v.stream = c.stream and v.id = c.id
        order by cosine desc, c.created_ms desc, c.id desc limit :limit
    )
    select (select count(*) from compared), n.cosine, {COLUMNS}
    from near n join memories m on m.stream = n.stream and m.id = n.id order by n.cosine desc, {NEWEST_FIRST}
"""
SELECT_COSINE = """
    select {cosine} from memory_vectors v
    where v.stream = :stream and v.id = :id and v.embedder = :embedder and v.vector is not null
"""


class MemoryVectors:
    """The vectors of memories. What changes the text of a memory, or removes it, deletes its vector."""

    def __init__(self, database: Database, math: VectorMath) -> None:
        self.database = database
        self.math = math

    async def check_memory_vectors(self, embedder: str, after_key: int, limit: int) -> VectorCheck:
        """Look at some streams that have memories, by key: which have some without a vector of this embedder."""
        values = {"embedder": embedder_number(embedder), "after": after_key, "limit": limit}
        return checked(await self.database.scan(lambda connection: connection.rows(CHECK, **values)), limit)

    async def count_memories_without_vector(self, embedder: str) -> int:
        """How many memories have no vector of this embedder."""
        number = embedder_number(embedder)
        (count,) = await self.database.scan(lambda connection: connection.one(COUNT, embedder=number))
        return int(count)

    async def find_memories_without_vector(self, embedder: str, keys: Sequence[int], limit: int) -> list[TextToEmbed]:
        """Memories of these streams that have no vector of this embedder."""
        values = {"embedder": embedder_number(embedder), "keys": list(keys), "limit": limit}
        rows = await self.database.read(lambda connection: connection.rows(SELECT_WITHOUT, **values))
        return [TextToEmbed(MemoryPlace(key, memory_id), text) for key, memory_id, text in rows]

    async def save_memory_vectors(self, embedder: str, vectors: Embedded) -> None:
        """Keep vectors of memories whose texts still are as they were."""
        number, statement = embedder_number(embedder), SAVE.format(vector=self.math.stored)
        in_order = sorted(vectors, key=lambda one: one[0].place)

        def job(connection: Connection) -> None:
            for (place, text), vector in in_order:
                assert isinstance(place, MemoryPlace)
                memory = {"stream": place.key, "id": place.id}
                if connection.row(LOCK, text=text, **memory) is not None:
                    values = {**memory, "embedder": number}
                    connection.execute(statement, vector=self.math.value(vector), **values)

        await self.database.write(job)

    async def find_memories_near(
        self, query: MemoryFilter, embedder: str, vector: bytes, limit: int, also: Sequence[MemoryPlace] = ()
    ) -> NearMemories:
        """The memories whose vectors are the nearest, and how near those of `also` are.

        `after` and the filter's own limit count for nothing.
        """
        conditions = Conditions(query)
        values = {**conditions.values, "vector": self.math.value(vector), "embedder": embedder_number(embedder)}

        def job(connection: Connection) -> NearMemories:
            most = self.math.begin(connection)
            if not most:
                return NearMemories([], {}, False)
            sql = FIND.format(conditions=conditions.sql, cosine=self.math.cosine)
            found = connection.rows(sql, most=most + 1, limit=limit, **values)
            rows = [row_of_values(row[2:]) for row in found]
            if query.with_superseded:
                rows = with_newer(connection, query.project, rows, query.as_of_ms)
            near = [(row, float(cosine)) for row, (_, cosine, *_) in zip(rows, found, strict=True)]
            cosines = {}
            for place in also:
                sql = SELECT_COSINE.format(cosine=self.math.cosine)
                row = connection.row(sql, stream=place.key, **(values | {"id": place.id}))
                if row is not None:
                    cosines[place] = float(row[0])
            return NearMemories(near, cosines, bool(found) and found[0][0] > most)

        return await self.database.scan(job)
