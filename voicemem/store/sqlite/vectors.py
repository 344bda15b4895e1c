"""Vectors on SQLite: blobs, compared by one function of sqlite-vec's; without it, by Python."""

from importlib.util import find_spec
from operator import mul
from pathlib import Path
from typing import Any

import apsw

from voicemem.store.database import Connection
from voicemem.store.sqlite.connection import SqliteConnection
from voicemem.store.vectors import MAX_COMPARED, VectorSupport, floats_of

MAX_COMPARED_IN_PYTHON = 2_000
"""Without sqlite-vec: each takes 20 µs of Python for 256 dimensions, 230 µs for 1,536; with it 1 and 9 µs."""
HAS_DISTANCE = "select count(*) from pragma_function_list where name = 'vec_distance_cosine'"
SLOW = (
    "Vectors are compared in Python, which is slow: at most {} of each search's scope. For ten times as many install"
    " sqlite-vec (pip install 'voicemem-core[vectors]')."
)


class SqliteVectors:
    """A `voicemem.store.vectors.VectorMath` on SQLite."""

    stored = ":vector"
    cosine = "1 - vec_distance_cosine(v.vector, :vector)"

    async def prepare(self) -> VectorSupport:
        if extension_path() is None:
            return VectorSupport(MAX_COMPARED_IN_PYTHON, SLOW.format(MAX_COMPARED_IN_PYTHON))
        return VectorSupport(MAX_COMPARED)

    def value(self, vector: bytes | None) -> bytes | None:
        return vector

    def begin(self, connection: Connection) -> int:
        assert isinstance(connection, SqliteConnection)
        return add_distance(connection.raw)


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


def extension_path() -> Path | None:
    spec = find_spec("sqlite_vec")
    return None if spec is None or spec.origin is None else Path(spec.origin).with_name("vec0")


def distance_of(*vectors: Any) -> float:
    return float(1.0 - sum(map(mul, *map(floats_of, vectors))))
