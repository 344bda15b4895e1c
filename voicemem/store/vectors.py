"""Vectors of messages and of memories, each by the name of the embedder that made it.

A query is compared with each vector of its scope, those of the newest sessions first: nothing is held in RAM, and no
vector of another scope is read.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from voicemem.store.database import Check, Connection, Database, Port, Row, checked, columns, scans
from voicemem.store.memories import COLUMNS, NEWEST_FIRST, MemoryRow, row_of_values, with_newer
from voicemem.store.memory_filters import IS_THERE, Conditions, MemoryFilter, with_linked
from voicemem.store.scopes import QueryScope
from voicemem.store.transcript_search import FoundMessage, MessagePlace, said_between

T = TypeVar("T")

MAX_COMPARED = 20_000
"""The most vectors of a scope that a query is compared with: those of the newest sessions."""
MAX_NEAR = 200
"""How many of the best messages by vectors, and by words, a hybrid search combines."""


class MemoryPlace(NamedTuple):
    key: int
    id: str


class TextToEmbed(NamedTuple):
    place: MessagePlace | MemoryPlace
    text: str


Embedded = Sequence[tuple[TextToEmbed, bytes | None]]
"""Texts with their vectors; None for a text that has none, which is recorded too."""


class VectorSupport(NamedTuple):
    max_compared: int
    """The most vectors of a scope that a query is compared with; 0 if the store can compare none."""
    note: str | None = None


class VectorMath(Protocol):
    """How an engine stores and compares vectors."""

    stored: str
    """The parameter `:vector` as it goes into a column."""

    async def prepare(self) -> VectorSupport:
        """Prepare for vectors; called before anything else."""

    def value(self, vector: bytes | None) -> Any:
        """Return the value of the parameter `:vector`."""

    def begin(self, connection: Connection) -> int:
        """Prepare a connection; return how many vectors it may compare, 0 if none."""

    @property
    def cosine(self) -> str:
        """The cosine of the column `v.vector` and of `:vector`, both of length 1."""


def embedder_number(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), signed=True)


def floats_of(vector: bytes) -> array[float]:
    floats = array("f", vector)
    if sys.byteorder == "big":
        floats.byteswap()
    return floats


class VectorQuery(Struct, frozen=True):
    """A query for the messages whose vectors are the nearest to this one, of all that `embedder` has made.

    A vector is little-endian 32-bit floats, of length 1. `also` are messages whose cosines are returned too.
    """

    scope: QueryScope
    embedder: str
    vector: bytes
    since_ms: int | None = None
    until_ms: int | None = None
    limit: int = MAX_NEAR
    also: Sequence[MessagePlace] = ()


class NearestTexts(NamedTuple, Generic[T]):
    """The result of a query by vectors; scores are cosines."""

    found: list[T]
    also: dict[Any, float]
    """The cosines of the places that the query names, if they have vectors."""
    is_capped: bool
    """True if the query has more vectors than were compared."""


SELECT_READABLE = "select key from streams where key in :keys and state <> 'erased'"
WITHOUT = "select {place}, m.text from {texts} m where m.stream in :keys and {is_missing} limit :limit"
SAVE = """
    insert into {vectors} ({columns}, embedder, vector)
    select {copied}, cast(:embedder as bigint), {vector} from {texts} m where {is_place} and m.text = :text for share
    on conflict ({key}) do update set embedder = excluded.embedder, vector = excluded.vector
"""
"""Saves a vector; a change of its text waits for that, and then deletes the vector."""
SELECT_COSINE = "select {cosine} from {vectors} v where {is_place} and embedder = :embedder and vector is not null"


Run = Callable[[Callable[[Connection], Any]], Awaitable[Any]]


class Vectors(Port):
    """The vectors of texts of one kind, each by the name of the embedder that made it.

    A text's vector is deleted when the text is changed or deleted.
    """

    texts: str
    vectors: str
    key: tuple[str, ...]
    """The columns of a place, in both tables."""
    copied: tuple[str, ...] = ()
    """Columns that a vector copies from its text."""
    is_text = "true"
    """The condition for texts `m` that get vectors."""
    place: Callable[..., MessagePlace | MemoryPlace]
    check: str
    """Selects the next keys of streams, and whether texts of each lack a vector."""
    count: str
    near: str
    """Selects the nearest texts: the number of vectors that were compared, and the columns to return."""

    def __init__(self, database: Database, math: VectorMath, read: Run, write: Run) -> None:
        """`read` and `write` run jobs on the database of the vectors."""
        super().__init__(database)
        self.math = math
        self.read = read
        self.write = write

    @classmethod
    def fill(cls, text: str, **more: str) -> str:
        """Put the names of the tables and of their columns into a text."""
        same = " and ".join(f"v.{name} = m.{name}" for name in cls.key)
        is_missing = f"{cls.is_text} and not exists (select 1 from {cls.vectors} v where {same}"
        return text.format(
            texts=cls.texts,
            vectors=cls.vectors,
            key=columns(cls.key),
            place=columns(cls.key, "m."),
            columns=columns((*cls.key, *cls.copied)),
            copied=columns((*cls.key, *cls.copied), "m."),
            is_place=" and ".join(f"{name} = :{name}" for name in cls.key),
            is_same=same,
            is_text=cls.is_text,
            is_missing=f"{is_missing} and v.embedder = :embedder)",
            **more,
        )

    async def check_vectors(self, embedder: str, after_key: int, limit: int) -> Check[int]:
        """Check some streams with texts, by key, for those with texts that lack a vector of this embedder."""
        values = {"embedder": embedder_number(embedder), "after": after_key, "limit": limit}
        rows = await self.read(lambda connection: connection.rows(self.fill(self.check), **values))
        return checked(rows, limit, [key for key, is_missing in rows if is_missing])

    async def count_without_vector(self, embedder: str) -> int:
        number = embedder_number(embedder)
        return int((await self.read(lambda connection: connection.one(self.fill(self.count), embedder=number)))[0])

    async def find_without_vector(self, embedder: str, keys: Sequence[int], limit: int) -> list[TextToEmbed]:
        """Return texts of these streams, if they are not erased, that have no vector of this embedder."""
        readable = [key for (key,) in await self.database.rows(SELECT_READABLE, keys=list(keys))]
        values = {"keys": readable, "embedder": embedder_number(embedder), "limit": limit}
        rows = await self.read(lambda connection: connection.rows(self.fill(WITHOUT), **values))
        return [TextToEmbed(self.place(*place), text) for *place, text in rows]

    async def save_vectors(self, embedder: str, vectors: Embedded) -> None:
        """Store vectors of texts that have not changed since."""
        statement, number = self.fill(SAVE, vector=self.math.stored), embedder_number(embedder)
        rows = [
            dict(zip(self.key, place, strict=True)) | {"text": text, "embedder": number, "vector": self.math.value(one)}
            for (place, text), one in sorted(vectors, key=lambda one: one[0].place)
        ]
        await self.write(lambda connection: connection.many(statement, rows))

    def compare(
        self, connection: Connection, limit: int, also: Sequence[Any], values: dict[str, Any], **conditions: str
    ) -> NearestTexts[Row]:
        """Return the rows of the nearest texts; each begins with the number of vectors that were compared."""
        most = self.math.begin(connection)
        if not most:
            return NearestTexts([], {}, False)
        text = self.fill(self.near, cosine=self.math.cosine, **conditions)
        rows = connection.rows(text, most=most + 1, limit=limit, **values)
        cosines = {}
        for place in also:
            one = values | dict(zip(self.key, place, strict=True))
            row = connection.row(self.fill(SELECT_COSINE, cosine=self.math.cosine), **one)
            if row is not None:
                cosines[place] = float(row[0])
        return NearestTexts([row[1:] for row in rows], cosines, bool(rows) and rows[0][0] > most)


class TranscriptVectors(Vectors):
    texts, vectors, key = "transcript_messages", "transcript_vectors", ("stream", "turn", "number")
    copied = ("said_ms",)
    place = MessagePlace
    check = """
        select s.stream, exists (select 1 from {texts} m where m.stream = s.stream and {is_missing})
        from transcript_sessions s where s.stream > :after order by s.stream limit :limit
    """
    count = "select (select count(*) from {texts}) - (select count(*) from {vectors} where embedder = :embedder)"
    near = """
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
        select (select count(*) from compared), m.stream, m.turn, m.number, m.position, m.role, m.said_ms, m.text,
        v.cosine from near v join transcript_messages m on {is_same}
        order by v.cosine desc, m.said_ms desc, m.stream desc, m.turn desc, m.number desc
    """

    async def prepare_vectors(self) -> VectorSupport:
        """Prepare for vectors, of memories too; called before any other of these methods."""
        return await self.math.prepare()

    async def find_near(self, query: VectorQuery) -> NearestTexts[FoundMessage]:
        """Return the messages whose vectors are the nearest, and the cosines of those of `also`."""
        clauses, whose = query.scope.conditions("s.")
        compared = {"vector": self.math.value(query.vector), "embedder": embedder_number(query.embedder)}
        values = whose | said_between(query.since_ms, query.until_ms) | compared
        near: NearestTexts[Row] = await self.read(
            lambda opened: self.compare(opened, query.limit, query.also, values, scope=" and ".join(clauses))
        )
        return NearestTexts([FoundMessage(*row) for row in near.found], near.also, near.is_capped)


class MemoryVectors(Vectors):
    texts, vectors, key = "memories", "memory_vectors", ("stream", "id")
    is_text = f"m.removed_ms is null and {IS_THERE}"
    place = MemoryPlace
    check = f"""
        select stream, max(case when {{is_missing}} then 1 else 0 end) from memories m
        where stream > :after and {IS_THERE} group by stream order by stream limit :limit
    """
    count = "select count(*) from memories m where {is_missing}"
    near = f"""
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

    @scans
    def find_near(
        self,
        connection: Connection,
        query: MemoryFilter,
        embedder: str,
        vector: bytes,
        limit: int,
        also: Sequence[MemoryPlace] = (),
    ) -> NearestTexts[tuple[MemoryRow, float]]:
        """Return the memories whose vectors are the nearest, with their cosines, and the cosines of those of `also`.

        `after` and the filter's own limit are ignored.
        """
        conditions = Conditions(with_linked(connection, query))
        compared = {"vector": self.math.value(vector), "embedder": embedder_number(embedder)}
        values = conditions.values | compared
        nearest, cosines, is_capped = self.compare(connection, limit, also, values, conditions=conditions.sql)
        rows = [row_of_values(row[1:]) for row in nearest]
        if query.with_superseded:
            rows = with_newer(connection, query.project, rows, query.as_of_ms)
        near = [(row, float(cosine)) for row, (cosine, *_) in zip(rows, nearest, strict=True)]
        return NearestTexts(near, cosines, is_capped)
