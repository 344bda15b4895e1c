"""Vectors of heard messages and of memories: which of them mean what a query means. See `voicemem.store.port`."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

from msgspec import Struct

from voicemem.store.ports.heard_index import FIRST_MS, LAST_MS, FoundMessage, HeardScope
from voicemem.store.ports.memories import MemoryFilter, MemoryRow

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
    """What has no vector yet."""

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


class VectorQuery(Struct, frozen=True):
    """Which messages to find: those whose vectors are the nearest to this one, of all that `embedder` has made.

    A vector is little-endian 32-bit floats, of length 1 together. `also` are messages whose nearness is asked for too.
    """

    scope: HeardScope
    embedder: str
    vector: bytes
    since_ms: int | None = None
    until_ms: int | None = None
    limit: int = MAX_NEAR
    also: Sequence[MessagePlace] = ()

    @property
    def said_between(self) -> tuple[int, int]:
        """As `HeardQuery.said_between`."""
        return (
            FIRST_MS if self.since_ms is None else self.since_ms,
            LAST_MS if self.until_ms is None else self.until_ms,
        )


class NearMessages(NamedTuple):
    """What was found by vectors; scores are cosines."""

    found: list[FoundMessage]
    """The nearest first."""
    also: dict[MessagePlace, float]
    """The cosines of those that were asked for, as far as they have vectors."""
    is_capped: bool
    """Whether the scope has more vectors than were compared."""


class NearMemories(NamedTuple):
    """The same of memories."""

    found: list[tuple[MemoryRow, float]]
    also: dict[MemoryPlace, float]
    is_capped: bool


class VectorCheck(NamedTuple):
    """A part of all streams, of which some have texts without a vector."""

    behind: Sequence[int]
    """Their keys."""
    looked_at: int
    through_key: int | None
    """The key to go on after; None when there are no more."""


class HeardVectors(Protocol):
    """The vectors of the messages in the index, each by the name of the embedder that made it.

    They stand and fall with their messages: what changes a message, or deletes it, deletes its vector.
    """

    async def prepare_vectors(self) -> VectorSupport:
        """Make ready for vectors, of memories too; called before any other of these methods."""

    async def check_vectors(self, embedder: str, after_key: int, limit: int) -> VectorCheck:
        """Look at some sessions of the index, by key: which have messages without a vector of this embedder."""

    async def find_without_vector(self, embedder: str, keys: Sequence[int], limit: int) -> list[TextToEmbed]:
        """Messages of these sessions that have no vector of this embedder."""

    async def save_vectors(self, embedder: str, vectors: Embedded) -> None:
        """Keep vectors of messages that still are as they were."""

    async def find_near(self, wanted: VectorQuery) -> NearMessages:
        """The messages whose vectors are the nearest, and those that were asked for."""

    async def count_without_vector(self, embedder: str) -> int:
        """How many messages have no vector of this embedder."""


class MemoryVectors(Protocol):
    """The vectors of memories, likewise. What changes the text of a memory, or removes it, deletes its vector."""

    async def check_memory_vectors(self, embedder: str, after_key: int, limit: int) -> VectorCheck:
        """Look at some streams that have memories, by key: which have some without a vector of this embedder."""

    async def find_memories_without_vector(self, embedder: str, keys: Sequence[int], limit: int) -> list[TextToEmbed]:
        """Memories of these streams that have no vector of this embedder."""

    async def save_memory_vectors(self, embedder: str, vectors: Embedded) -> None:
        """Keep vectors of memories whose texts still are as they were."""

    async def find_memories_near(
        self, wanted: MemoryFilter, embedder: str, vector: bytes, limit: int, also: Sequence[MemoryPlace] = ()
    ) -> NearMemories:
        """The memories whose vectors are the nearest, and how near those are that were asked for.

        `after` and the filter's own limit count for nothing.
        """

    async def count_memories_without_vector(self, embedder: str) -> int:
        """How many memories have no vector of this embedder."""


def embedder_number(name: str) -> int:
    """The number by which rows name an embedder."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), signed=True)


def floats_of(vector: bytes) -> array[float]:
    """The numbers of a vector."""
    floats = array("f", vector)
    if sys.byteorder == "big":
        floats.byteswap()
    return floats
