"""The vectors of messages, beside their words in the file of the index; see `voicemem.store.ports.vectors`.

A query is compared with each vector of its scope, of the newest sessions first: nothing is held in memory, and nobody
else's is looked at. The comparison is sqlite-vec's, of which nothing but one function is used; without it, Python's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from operator import mul
from pathlib import Path
from typing import Any

import apsw

from voicemem.store.ports.heard_index import FoundMessage
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
from voicemem.store.sqlite.database import Database
from voicemem.store.sqlite.heard_index.index import select_erased
from voicemem.store.sqlite.heard_index.index_file import IndexFile
from voicemem.store.sqlite.heard_index.rows import scope_numbers

MAX_COMPARED_IN_PYTHON = 2_000
"""Without sqlite-vec: each takes 20 µs of Python for 256 dimensions, 230 µs for 1,536; with it 1 and 9 µs."""
SLOW = (
    "Vectors are compared in Python, which is slow: at most {} of each search's scope. For ten times as many install"
    " sqlite-vec (pip install 'voicemem-core[vectors]')."
)
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
        if extension_path() is None:
            return VectorSupport(MAX_COMPARED_IN_PYTHON, SLOW.format(MAX_COMPARED_IN_PYTHON))
        return VectorSupport(MAX_COMPARED)

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
        return await self.heard.read(partial(find_without_vector, embedder_number(embedder), wanted, limit))

    async def save_vectors(self, embedder: str, vectors: Embedded) -> None:
        number = embedder_number(embedder)

        def job(connection: apsw.Connection) -> None:
            for message, vector in vectors:
                connection.execute(SAVE, (number, vector, *message.place, message.text))

        await self.heard.write(job)

    async def find_near(self, wanted: VectorQuery) -> NearMessages:
        return await self.heard.read(lambda connection: find_near(connection, wanted, self.heard.incarnation))


def find_without_vector(number: int, keys: Sequence[int], limit: int, connection: apsw.Connection) -> list[TextToEmbed]:
    found: list[TextToEmbed] = []
    for key in keys:
        for turn, place, text in connection.execute(SELECT_WITHOUT, (key, number, limit - len(found))):
            found.append(TextToEmbed(MessagePlace(key, turn, place), text))
        if len(found) >= limit:
            break
    return found


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
    cosines = {}
    for place in wanted.also:
        (cosine,) = connection.execute(SELECT_COSINE, (wanted.vector, *place, number)).fetchone() or (None,)
        if cosine is not None:
            cosines[place] = float(cosine)
    return NearMessages(found, cosines, bool(rows) and rows[0][0] > max_compared)


# The comparison


def extension_path() -> Path | None:
    """The extension of sqlite-vec; None where it is not installed."""
    spec = find_spec("sqlite_vec")
    return None if spec is None or spec.origin is None else Path(spec.origin).with_name("vec0")


def add_distance(connection: apsw.Connection) -> int:
    """Give a connection `vec_distance_cosine`, unless it has it; how many vectors it may compare."""
    path = extension_path()
    if not connection.execute(HAS_DISTANCE).get:
        if path is None:
            connection.create_scalar_function("vec_distance_cosine", distance_of, 2, deterministic=True)
        else:
            connection.enable_load_extension(True)
            connection.load_extension(str(path))
            connection.enable_load_extension(False)
    return MAX_COMPARED_IN_PYTHON if path is None else MAX_COMPARED


HAS_DISTANCE = "select count(*) from pragma_function_list where name = 'vec_distance_cosine'"


def distance_of(*vectors: Any) -> float:
    """The cosine distance of two vectors of length 1."""
    return float(1.0 - sum(map(mul, *map(floats_of, vectors))))
