"""The embedded store as one object, on a file or in memory."""

import asyncio
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from operator import mul
from pathlib import Path
from typing import Any

import apsw

from voicemem.errors import CannotStart, StoreUnavailable
from voicemem.runtime import MemoryBudget
from voicemem.store.database import Connection
from voicemem.store.port import Store
from voicemem.store.records import Quotas
from voicemem.store.retention import Residue
from voicemem.store.sqlite.connection import SqliteConnection, count_bytes, transaction
from voicemem.store.sqlite.driver import IN_MEMORY, RUINED, SqliteDatabase
from voicemem.store.sqlite.files import truncate_log
from voicemem.store.sqlite.transcript_file import IndexFile
from voicemem.store.sqlite.words import NOTE_REMOVED, SqliteMemoryWords, SqliteMessageWords
from voicemem.store.vectors import MAX_COMPARED, VectorSupport, floats_of

CLEAR_AGAIN_S = 20.0
"""The time between two truncations of the log: each takes the disk ten ms or more, in which nothing is committed."""
SELECT_REMOVED = "select value from meta where name = 'removed'"
FORGET_REMOVED = "delete from meta where name = 'removed' and value = :value"


class SqliteResidue(Residue):
    """The residue of deleted content in the logs of file and index. A mark in `meta` says that there is some."""

    def __init__(self, database: SqliteDatabase, index: IndexFile) -> None:
        self.database = database
        self.index = index
        self.cleared_s = float("-inf")
        """When the logs were emptied last, by a clock that is never set."""

    def note(self, connection: Connection) -> None:
        connection.execute(NOTE_REMOVED)

    async def clear(self) -> bool:
        removed: bytes | None = await self.database.read(lambda connection: connection.raw.execute(SELECT_REMOVED).get)
        if removed is None or time.monotonic() < self.cleared_s + CLEAR_AGAIN_S:
            return True
        path, index = self.database.path, self.index
        try:
            if path != IN_MEMORY and not await asyncio.to_thread(truncate_log, path):
                return False
        except apsw.IOError:
            await self.database.write(lambda connection: self.database.writing.mark_ruined())
            raise StoreUnavailable(RUINED) from None
        try:
            if not (index.in_memory or not index.is_there or await asyncio.to_thread(truncate_log, index.path)):
                return False
        except apsw.IOError as error:  # that does not ruin the store: the index can be made again
            raise StoreUnavailable(f"The index cannot be cleared: {type(error).__name__}.") from None
        self.cleared_s = time.monotonic()
        await self.database.write(lambda connection: connection.execute(FORGET_REMOVED, value=removed))
        return True


MAX_COMPARED_IN_PYTHON = 2_000
"""Without sqlite-vec: a vector takes 20 µs of Python for 256 dimensions, 230 µs for 1,536; with it 1 and 9 µs."""
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
    """Give a connection `vec_distance_cosine`, if it lacks it; return how many vectors it may compare."""
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


class SqliteStore(Store):
    """A `voicemem.store.port.Store` on one SQLite file.

    With `exclusive` the file is locked for this process; commands that run while a server has it open do without.
    `budget` bounds the cached rows.
    """

    database: SqliteDatabase

    def __init__(
        self, path: str, exclusive: bool = True, budget: MemoryBudget | None = None, make: bool = True
    ) -> None:
        """Open the file and migrate it; a missing one is created only with `make`. Raises `CannotStart`."""
        self.database = SqliteDatabase(path, exclusive, budget, make)
        secrets = self.database.identity
        self.index_file = IndexFile(self.database, secrets["incarnation"])
        self.memory_words = SqliteMemoryWords(secrets["cursor_secret"])
        words = SqliteMessageWords(self.database)
        residue = SqliteResidue(self.database, self.index_file)
        super().__init__(self.database, self.memory_words, self.index_file, words, SqliteVectors(), residue)
        self.counts_bytes: bool | None = None
        """True if the bytes of projects are counted; None until that was set."""
        if exclusive:
            self.make_words()

    def make_words(self) -> None:
        """Make the words of memories again if another program made them. Raises `CannotStart`."""
        try:
            with transaction(self.database.writer):
                self.memory_words.make_words(self.database.streams.connection)
        except apsw.Error as error:
            self.database.close()
            raise CannotStart(f"The words of memories cannot be made again: {error}.") from None

    @property
    def healthy(self) -> bool:
        return self.database.writing.healthy

    def measure(self, connection: Connection) -> tuple[int, int]:
        return size_of(self.database.path), size_of(f"{self.database.path}-wal")

    def set_quotas(self, quotas: Quotas, count_refusal: Callable[[str], None] | None = None) -> None:
        if self.counts_bytes != bool(quotas.stored_bytes):  # else nothing is to do, and the writer may be at work
            self.counts_bytes = bool(quotas.stored_bytes)
            count_bytes(self.database.writer, self.counts_bytes)
            self.database.streams.counts_stored = self.counts_bytes
        self.database.streams.quotas = quotas
        if count_refusal is not None:
            self.database.streams.count_quota_refusal = count_refusal

    async def close_store(self) -> None:
        await asyncio.to_thread(self.index_file.close)
        await asyncio.to_thread(self.database.close)


class InMemoryStore(SqliteStore):
    """A `voicemem.store.port.Store` in memory; one that is not `exclusive` may be given to several nodes."""

    def __init__(self, budget: MemoryBudget | None = None, exclusive: bool = True) -> None:
        super().__init__(IN_MEMORY, budget=budget)
        self.database.is_exclusive = exclusive


def size_of(path: str) -> int:
    try:
        return 0 if path.startswith(IN_MEMORY) else os.stat(path).st_size
    except OSError:
        return 0
