"""What vectors of messages and of memories share: how they are compared, and how texts without one are found.

The comparison is sqlite-vec's, of which nothing but one function is used; without it, Python's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from operator import mul
from pathlib import Path
from typing import Any, TypeVar

import apsw

from voicemem.store.ports.vectors import MAX_COMPARED, TextToEmbed, VectorSupport, floats_of

Place = TypeVar("Place", bound=tuple[Any, ...])
MAX_COMPARED_IN_PYTHON = 2_000
"""Without sqlite-vec: each takes 20 µs of Python for 256 dimensions, 230 µs for 1,536; with it 1 and 9 µs."""
HAS_DISTANCE = "select count(*) from pragma_function_list where name = 'vec_distance_cosine'"
SLOW = (
    "Vectors are compared in Python, which is slow: at most {} of each search's scope. For ten times as many install"
    " sqlite-vec (pip install 'voicemem-core[vectors]')."
)


def support() -> VectorSupport:
    """How many vectors a search may compare here."""
    if extension_path() is None:
        return VectorSupport(MAX_COMPARED_IN_PYTHON, SLOW.format(MAX_COMPARED_IN_PYTHON))
    return VectorSupport(MAX_COMPARED)


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


def distance_of(*vectors: Any) -> float:
    """The cosine distance of two vectors of length 1."""
    return float(1.0 - sum(map(mul, *map(floats_of, vectors))))


def cosines_of(
    connection: apsw.Connection, query: str, vector: bytes, places: Sequence[Place], number: int
) -> dict[Place, float]:
    """How near these are to a vector, of those that have one of an embedder. The connection has the function."""
    cosines: dict[Place, float] = {}
    for place in places:
        (cosine,) = connection.execute(query, (vector, *place, number)).fetchone() or (None,)
        if cosine is not None:
            cosines[place] = float(cosine)
    return cosines


def texts_of_streams(
    connection: apsw.Connection,
    texts_of: Callable[[apsw.Connection, int, int], list[TextToEmbed]],
    keys: Sequence[int],
    limit: int,
) -> list[TextToEmbed]:
    """What `texts_of` finds in each of these streams, where it is told how many more are wanted."""
    found: list[TextToEmbed] = []
    for key in keys:
        found += texts_of(connection, key, limit - len(found))
        if len(found) >= limit:
            break
    return found
