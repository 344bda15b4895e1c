"""The methods of `voicemem.store.ports.vectors.MemoryVectors` on SQLite: vectors beside the rows, in the same file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from voicemem.store.ports.memories import MemoryFilter, row_of_values
from voicemem.store.ports.vectors import (
    Embedded,
    MemoryPlace,
    NearMemories,
    TextToEmbed,
    VectorCheck,
    embedder_number,
)
from voicemem.store.sqlite.database.connections import Database
from voicemem.store.sqlite.memories.conditions import conditions
from voicemem.store.sqlite.memories.memories import NEWEST_FIRST, with_newer
from voicemem.store.sqlite.memories.rows import COLUMNS, IS_THERE
from voicemem.store.sqlite.vectors import add_distance, cosines_of, texts_of_streams

IS_MISSING = """
    m.removed_ms is null and not exists (
        select 1 from memory_vectors v where v.number = m.number and v.embedder = ?
    )
"""
CHECK = f"""
    select stream, max({IS_MISSING}) from memories m where stream > ? and {IS_THERE}
    group by stream order by stream limit ?
"""
COUNT = f"select count(*) from memories m where {IS_MISSING} and {IS_THERE}"
SELECT_WITHOUT = f"select id, text from memories m where stream = ? and {IS_MISSING} and {IS_THERE} limit ?"
SAVE = """
    insert or replace into memory_vectors
    select number, ?, ? from memories where stream = ? and id = ? and text = ? and removed_ms is null
"""
FIND = f"""
    with compared as materialized (
        select m.number, 1 - vec_distance_cosine(v.vector, ?) as cosine
        from memories m cross join memory_vectors v on v.number = m.number and v.embedder = ?
        where v.vector is not null and {{conditions}} order by {NEWEST_FIRST} limit ?
    ), near as materialized (
        select number, cosine, count(*) over () as compared from compared order by cosine desc, number desc limit ?
    )
    select compared, cosine, {COLUMNS} from near join memories m using (number)
    order by cosine desc, {NEWEST_FIRST}
"""
SELECT_COSINE = """
    select 1 - vec_distance_cosine(v.vector, ?) from memories m join memory_vectors v on v.number = m.number
    where m.stream = ? and m.id = ? and v.embedder = ? and v.vector is not null
"""


class SqliteMemoryVectors:
    """The methods are documented in `voicemem.store.ports.vectors.MemoryVectors`."""

    database: Database

    async def check_memory_vectors(self, embedder: str, after_key: int, limit: int) -> VectorCheck:
        values = embedder_number(embedder), after_key, limit
        found = await self.database.scan(lambda connection: list(connection.execute(CHECK, values)))
        behind = [key for key, is_missing in found if is_missing]
        return VectorCheck(behind, len(found), found[-1][0] if len(found) == limit else None)

    async def count_memories_without_vector(self, embedder: str) -> int:
        number = embedder_number(embedder)
        return int(await self.database.scan(lambda connection: connection.execute(COUNT, (number,)).get))

    async def find_memories_without_vector(self, embedder: str, keys: Sequence[int], limit: int) -> list[TextToEmbed]:
        number = embedder_number(embedder)

        def texts_of(connection: apsw.Connection, key: int, left: int) -> list[TextToEmbed]:
            rows = connection.execute(SELECT_WITHOUT, (key, number, left))
            return [TextToEmbed(MemoryPlace(key, id), text) for id, text in rows]

        return await self.database.read(lambda connection: texts_of_streams(connection, texts_of, keys, limit))

    async def save_memory_vectors(self, embedder: str, vectors: Embedded) -> None:
        number = embedder_number(embedder)

        def job(connection: apsw.Connection) -> None:
            for memory, vector in vectors:
                connection.execute(SAVE, (number, vector, *memory.place, memory.text))

        await self.database.write(job)

    async def find_memories_near(
        self, wanted: MemoryFilter, embedder: str, vector: bytes, limit: int, also: Sequence[MemoryPlace] = ()
    ) -> NearMemories:
        number = embedder_number(embedder)
        clauses, values = conditions(wanted)
        query = FIND.format(conditions=clauses)

        def job(connection: apsw.Connection) -> NearMemories:
            max_compared = add_distance(connection)
            given = vector, number, *values, max_compared + 1, limit
            found: list[tuple[Any, ...]] = connection.execute(query, given).fetchall()
            rows = [row_of_values(row[2:]) for row in found]
            if wanted.with_superseded:
                rows = with_newer(connection, wanted.project, rows, wanted.as_of_ms)
            cosines = cosines_of(connection, SELECT_COSINE, vector, also, number)
            near = [(row, float(cosine)) for row, (_, cosine, *_) in zip(rows, found, strict=True)]
            return NearMemories(near, cosines, bool(found) and found[0][0] > max_compared)

        return await self.database.scan(job)
