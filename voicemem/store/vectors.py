"""Vectors of messages and of memories: what they share on any engine."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

from voicemem.store.database import Connection

MAX_COMPARED = 20_000
"""The vectors of a scope that a query is compared with: those of the newest sessions."""
MAX_NEAR = 200
"""The best messages by vectors, and by words, of which a search that goes by both is put together."""


class MessagePlace(NamedTuple):
    """Which message of the index it is."""

    key: int
    """Of its session."""
    turn_id: int
    number: int


class MemoryPlace(NamedTuple):
    """Which memory it is."""

    key: int
    """Of the stream in whose journal it stands."""
    id: str


class TextToEmbed(NamedTuple):
    """A text that has no vector yet."""

    place: MessagePlace | MemoryPlace
    text: str


Embedded = Sequence[tuple[TextToEmbed, bytes | None]]
"""Texts with their vectors; None for one that is to have none, and be found so."""


class VectorSupport(NamedTuple):
    """What a store can do with vectors."""

    max_compared: int
    """How many vectors of a scope a query is compared with; 0 where the store can compare none."""
    note: str | None = None
    """What an operator should know about it."""


class VectorCheck(NamedTuple):
    """A part of all streams, of which some have texts without a vector."""

    behind: Sequence[int]
    """Their keys."""
    looked_at: int
    through_key: int | None
    """The key to go on after; None when there are no more."""


class VectorMath(Protocol):
    """How an engine keeps vectors and compares them."""

    stored: str
    """The parameter `:vector` as it goes into a column."""

    async def prepare(self) -> VectorSupport:
        """Make ready for vectors; called before anything else."""

    def value(self, vector: bytes | None) -> Any:
        """What goes in as `:vector`."""

    def begin(self, connection: Connection) -> int:
        """Make a connection ready; returns how many vectors may be compared, 0 where none can."""

    @property
    def cosine(self) -> str:
        """The cosine of the column `v.vector` and of `:vector`, both of length 1."""


def embedder_number(name: str) -> int:
    """The number by which rows name an embedder."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), signed=True)


def floats_of(vector: bytes) -> array[float]:
    """The numbers of a vector."""
    floats = array("f", vector)
    if sys.byteorder == "big":
        floats.byteswap()
    return floats


def checked(found: Sequence[tuple[int, Any]], limit: int) -> VectorCheck:
    """The result of a look at streams: their keys, and whether texts of each lack a vector."""
    behind = [key for key, is_missing in found if is_missing]
    return VectorCheck(behind, len(found), found[-1][0] if len(found) == limit else None)
