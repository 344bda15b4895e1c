"""The vectors of the messages in the transcript index.

A query is compared with each vector of its scope, of the newest sessions first: nothing is held in RAM, and no vector
of another scope is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from voicemem.store.database import Connection, Database
from voicemem.store.scopes import Scope
from voicemem.store.transcript_index import FoundMessage, IndexDatabase, said_between
from voicemem.store.vectors import (
    MAX_NEAR,
    Embedded,
    MessagePlace,
    TextToEmbed,
    VectorCheck,
    VectorMath,
    VectorSupport,
    checked,
    embedder_number,
)


class VectorQuery(Struct, frozen=True):
    """Which messages to find: those whose vectors are the nearest to this one, of all that `embedder` has made.

    A vector is little-endian 32-bit floats, of length 1 together. `also` are messages whose nearness is wanted too.
    """

    scope: Scope
    embedder: str
    vector: bytes
    since_ms: int | None = None
    until_ms: int | None = None
    limit: int = MAX_NEAR
    also: Sequence[MessagePlace] = ()


class NearMessages(NamedTuple):
    """What was found by vectors; scores are cosines."""

    found: list[FoundMessage]
    """The nearest first."""
    also: dict[MessagePlace, float]
    """The cosines of those that the query names, as far as they have vectors."""
    is_capped: bool
    """Whether the scope has more vectors than were compared."""


IS_SAME = "v.stream = m.stream and v.turn = m.turn and v.number = m.number"
IS_MISSING = f"not exists (select 1 from transcript_vectors v where {IS_SAME} and v.embedder = :embedder)"
CHECK = f"""
    select s.stream, exists (select 1 from transcript_messages m where m.stream = s.stream and {IS_MISSING})
    from transcript_sessions s where s.stream > :after order by s.stream limit :limit
"""
COUNT = """
    select (select count(*) from transcript_messages)
    - (select count(*) from transcript_vectors where embedder = :embedder)
"""
SELECT_READABLE = "select key from streams where key in :keys and state <> 'erased'"
SELECT_WITHOUT = f"""
    select m.stream, m.turn, m.number, m.text from transcript_messages m
    where m.stream in :keys and {IS_MISSING} limit :limit
"""
LOCK = """
    select said_ms from transcript_messages
    where stream = :stream and turn = :turn and number = :number and text = :text for share
"""
"""Keeps a message that is being deleted from getting a vector behind its back."""
SAVE = """
    insert into transcript_vectors (stream, turn, number, said_ms, embedder, vector)
    values (:stream, :turn, :number, :said_ms, :embedder, {vector})
    on conflict (stream, turn, number) do update set embedder = excluded.embedder, vector = excluded.vector
"""
FIND = """
    with compared as materialized (
        select v.stream, v.turn, v.number from transcript_sessions s cross join transcript_vectors v
        where {scope} and v.stream = s.stream and v.embedder = :embedder
        and v.said_ms >= :since_ms and v.said_ms < :until_ms and v.vector is not null
        order by s.stream desc limit :most
    ), near as materialized (
        select v.stream, v.turn, v.number, {cosine} as cosine from compared c
        join transcript_vectors v on v.stream = c.stream and v.turn = c.turn and v.number = c.number
        order by cosine desc, v.stream desc, v.turn desc, v.number desc limit :limit
    )
    select (select count(*) from compared), m.stream, m.turn, m.number, m.position, m.role, m.said_ms, m.text, v.cosine
    from near v join transcript_messages m on {is_same}
    order by v.cosine desc, m.said_ms desc, m.stream desc, m.turn desc, m.number desc
"""
SELECT_COSINE = """
    select {cosine} from transcript_vectors v where v.stream = :stream and v.turn = :turn and v.number = :number
    and v.embedder = :embedder and v.vector is not null
"""


class TranscriptVectors:
    """The vectors of the messages in the index, each by the name of the embedder that made it.

    What changes a message, or deletes it, deletes its vector.
    """

    def __init__(self, database: Database, index: IndexDatabase, math: VectorMath) -> None:
        self.database = database
        self.index = index
        self.math = math

    async def prepare_vectors(self) -> VectorSupport:
        """Make ready for vectors, of memories too; called before any other of these methods."""
        return await self.math.prepare()

    async def check_vectors(self, embedder: str, after_key: int, limit: int) -> VectorCheck:
        """Look at some sessions of the index, by key: which have messages without a vector of this embedder."""
        values = {"embedder": embedder_number(embedder), "after": after_key, "limit": limit}
        return checked(await self.index.read(lambda connection: connection.rows(CHECK, **values)), limit)

    async def count_without_vector(self, embedder: str) -> int:
        """How many messages have no vector of this embedder."""
        number = embedder_number(embedder)
        (count,) = await self.index.read(lambda connection: connection.one(COUNT, embedder=number))
        return int(count)

    async def find_without_vector(self, embedder: str, keys: Sequence[int], limit: int) -> list[TextToEmbed]:
        """Messages of these sessions, if they are not erased, that have no vector of this embedder."""
        rows = await self.database.read(lambda connection: connection.rows(SELECT_READABLE, keys=list(keys)))
        values = {"keys": [key for (key,) in rows], "embedder": embedder_number(embedder), "limit": limit}
        found = await self.index.read(lambda connection: connection.rows(SELECT_WITHOUT, **values))
        return [TextToEmbed(MessagePlace(*place), text) for *place, text in found]

    async def save_vectors(self, embedder: str, vectors: Embedded) -> None:
        """Keep vectors of messages that still are as they were."""
        number, statement = embedder_number(embedder), SAVE.format(vector=self.math.stored)
        in_order = sorted(vectors, key=lambda one: one[0].place)

        def job(connection: Connection) -> None:
            for (place, text), vector in in_order:
                message = dict(zip(("stream", "turn", "number"), place, strict=True))
                row = connection.row(LOCK, text=text, **message)
                if row is not None:
                    values = {"said_ms": row[0], "embedder": number, "vector": self.math.value(vector)}
                    connection.execute(statement, **message, **values)

        await self.index.write(job)

    async def find_near(self, query: VectorQuery) -> NearMessages:
        """The messages whose vectors are the nearest, and how near those of `also` are."""
        given = query.scope.given
        scope = " and ".join(f"s.{name} = :{name}" for name in given)
        compared = {"vector": self.math.value(query.vector), "embedder": embedder_number(query.embedder)}
        values = given | said_between(query.since_ms, query.until_ms) | compared

        def job(connection: Connection) -> NearMessages:
            most = self.math.begin(connection)
            if not most:
                return NearMessages([], {}, False)
            sql = FIND.format(scope=scope, cosine=self.math.cosine, is_same=IS_SAME)
            rows = connection.rows(sql, most=most + 1, limit=query.limit, **values)
            cosines = {}
            for place in query.also:
                message = dict(zip(("stream", "turn", "number"), place, strict=True))
                row = connection.row(SELECT_COSINE.format(cosine=self.math.cosine), **message, **compared)
                if row is not None:
                    cosines[place] = float(row[0])
            found = [FoundMessage(*row[1:]) for row in rows]
            return NearMessages(found, cosines, bool(rows) and rows[0][0] > most)

        return await self.index.read(job)
