"""The vectors of messages, beside their words in the file of the index; see `voicemem.store.ports.vectors`.

A query is compared with each vector of its scope, of the newest sessions first: nothing is held in memory, and nobody
else's is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from voicemem.store.ports.heard_index import FoundMessage
from voicemem.store.ports.vectors import (
    Embedded,
    MessagePlace,
    NearMessages,
    TextToEmbed,
    VectorCheck,
    VectorQuery,
    VectorSupport,
    embedder_number,
)
from voicemem.store.sqlite.database.connections import Database
from voicemem.store.sqlite.heard_index.index import select_erased
from voicemem.store.sqlite.heard_index.index_file import IndexFile
from voicemem.store.sqlite.heard_index.rows import scope_numbers
from voicemem.store.sqlite.vectors import add_distance, cosines_of, support, texts_of_streams

CHECK = """
    select key, (select count(*) from messages m where m.session = s.key)
    - (select count(*) from vectors v where v.session = s.key and v.embedder = ?) from sessions s
    where key > ? order by key limit ?
"""
COUNT = "select (select count(*) from messages) - (select count(*) from vectors where embedder = ?)"
SELECT_WITHOUT = """
    select turn, number, text from messages where session = ?1
    and id not in (select id from vectors where session = ?1 and embedder = ?2) limit ?3
"""
SAVE = """
    insert or replace into vectors
    select id, session, said_ms, ?, ? from messages where session = ? and turn = ? and number = ? and text = ?
"""
FIND = """
    with compared as materialized (
        select v.id, 1 - vec_distance_cosine(v.vector, ?1) as cosine
        from sessions s cross join vectors v on v.session = s.key and v.embedder = ?2
        where {scope} and v.said_ms >= ?3 and v.said_ms < ?4 and v.vector is not null
        order by s.key desc limit ?5
    ), near as materialized (
        select id, cosine, count(*) over () as compared from compared order by cosine desc, id desc limit ?6
    )
    select compared, session, turn, number, position, role, said_ms, text, cosine from near join messages using (id)
    order by cosine desc, said_ms desc, id desc
"""
SCOPE_COLUMNS = {"s": "session", "u": "user", "n": "namespace", "p": "project"}
SELECT_COSINE = """
    select 1 - vec_distance_cosine(v.vector, ?) from messages m join vectors v on v.id = m.id
    where m.session = ? and m.turn = ? and m.number = ? and v.embedder = ? and v.vector is not null
"""


class SqliteHeardVectors:
    """The methods are documented in `voicemem.store.ports.vectors.HeardVectors`."""

    database: Database
    heard: IndexFile

    async def prepare_vectors(self) -> VectorSupport:
        return support()

    async def check_vectors(self, embedder: str, after_key: int, limit: int) -> VectorCheck:
        values = embedder_number(embedder), after_key, limit
        found = await self.heard.read(lambda connection: list(connection.execute(CHECK, values)))
        behind = [key for key, missing in found if missing]
        return VectorCheck(behind, len(found), found[-1][0] if len(found) == limit else None)

    async def count_without_vector(self, embedder: str) -> int:
        number = embedder_number(embedder)
        return int(await self.heard.read(lambda connection: connection.execute(COUNT, (number,)).get))

    async def find_without_vector(self, embedder: str, keys: Sequence[int], limit: int) -> list[TextToEmbed]:
        """Nothing of a session that is erased, and of which the index has something yet, is found."""
        erased = await self.database.read(lambda connection: select_erased(connection, keys))
        wanted = [key for key in keys if key not in erased]
        number = embedder_number(embedder)

        def texts_of(connection: apsw.Connection, key: int, left: int) -> list[TextToEmbed]:
            rows = connection.execute(SELECT_WITHOUT, (key, number, left))
            return [TextToEmbed(MessagePlace(key, turn, place), text) for turn, place, text in rows]

        return await self.heard.read(lambda connection: texts_of_streams(connection, texts_of, wanted, limit))

    async def save_vectors(self, embedder: str, vectors: Embedded) -> None:
        number = embedder_number(embedder)

        def job(connection: apsw.Connection) -> None:
            for message, vector in vectors:
                connection.execute(SAVE, (number, vector, *message.place, message.text))

        await self.heard.write(job)

    async def find_near(self, wanted: VectorQuery) -> NearMessages:
        return await self.heard.read(lambda connection: find_near(connection, wanted, self.heard.incarnation))


def find_near(connection: apsw.Connection, wanted: VectorQuery, secret: bytes) -> NearMessages:
    max_compared = add_distance(connection)
    number, numbers = embedder_number(wanted.embedder), scope_numbers(wanted.scope, secret)
    given = [kind for kind in SCOPE_COLUMNS if kind in numbers]
    # The first condition may use its index; each of the others is looked at in the row.
    conditions = " and ".join(
        f"{'+' * (place > 0)}s.{SCOPE_COLUMNS[kind]} = ?{place + 7}" for place, kind in enumerate(given)
    )
    # One more than is compared would say whether there are more.
    values = wanted.vector, number, *wanted.said_between, max_compared + 1, wanted.limit
    query = FIND.format(scope=conditions)
    rows = list(connection.execute(query, (*values, *(numbers[kind] for kind in given))))
    found = [FoundMessage(*row[1:]) for row in rows if row[-1] is not None]
    cosines = cosines_of(connection, SELECT_COSINE, wanted.vector, wanted.also, number)
    return NearMessages(found, cosines, bool(rows) and rows[0][0] > max_compared)
