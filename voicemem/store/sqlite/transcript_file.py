"""The file of the transcript index: opened at the first use, and made again when it is lost or damaged.

It is written on a thread of its own, one job after another.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TypeVar

import apsw

from voicemem.errors import StoreUnavailable
from voicemem.store.database import CLOSED
from voicemem.store.sqlite.connection import SqliteConnection, transaction
from voicemem.store.sqlite.driver import IN_MEMORY, SqliteDatabase, open_connection
from voicemem.store.sqlite.files import make_private, trouble_of, wait_for_lock
from voicemem.store.sqlite.words import FREQUENCIES, INDEX_VERSION, SCHEMA, frequencies
from voicemem.store.upkeep import on_failure

LOG = logging.getLogger("voicemem")
T = TypeVar("T")
SUFFIX = "-memories"
INDEX_FILES = (SUFFIX, f"{SUFFIX}-wal", f"{SUFFIX}-shm", f"{SUFFIX}-journal")
WRITER_PRAGMAS = """
    pragma journal_mode = wal;
    pragma synchronous = normal;
    pragma cache_size = -16384;
    pragma secure_delete = on;
"""
DAMAGES = apsw.CorruptError, apsw.NotADBError, apsw.FormatError
"""Errors of a file that is damaged, or no index."""
SELECT_STORE = "select value from meta where name = 'store'"
SAVE_STORE = "insert into meta values ('store', ?)"
SELECT_READABLE = "select key from streams where key in :keys and state <> 'erased'"


UNUSABLE = (
    "The index at %s cannot be used (%s), so searches are refused: move away what is there unless it is the index, and"
    " see that its folder can be written; the index is made again by itself"
)


class IndexFile:
    """The index of a store on SQLite, a `voicemem.store.transcript_index.IndexDatabase`; nothing is opened yet."""

    has_own_database = True

    def __init__(self, store: SqliteDatabase, incarnation: bytes) -> None:
        self.store = store
        self.in_memory = store.path == IN_MEMORY
        self.path = IN_MEMORY if self.in_memory else f"{store.path}{SUFFIX}"
        self.incarnation = incarnation
        self.resets = 0
        self.closed = False
        self.failure: str | None = None
        """The error that prevents its use at the moment."""
        self.writer: apsw.Connection | None = None
        self.reader: apsw.Connection | None = None
        self.opening = threading.RLock()
        self.writing = ThreadPoolExecutor(1, "voicemem-index")
        self.reading = self.writing if self.in_memory else ThreadPoolExecutor(1, "voicemem-search")

    async def write(self, job: Callable[[SqliteConnection], T]) -> T:
        """Run a job in a transaction. Raises `StoreUnavailable`, also if the index had to be made again."""

        def work() -> T:
            connection = self.open_writer()
            with transaction(connection):
                return job(SqliteConnection(connection))

        return await self.run_on(self.writing, work)

    async def write_if_there(self, job: Callable[[SqliteConnection], bool]) -> bool:
        """Run a job in a transaction; return False without an index: none is made for it."""
        return self.is_there and await self.write(job)

    async def write_readable(self, keys: Sequence[int], job: Callable[[SqliteConnection, Collection[int]], T]) -> T:
        """See `IndexDatabase`: the one thread that writes the index deletes on it too, after this commit."""
        if self.in_memory:
            known = {key for (key,) in await self.store.rows(SELECT_READABLE, keys=list(keys))}
            return await self.write(lambda connection: job(connection, known))

        def with_readable(connection: SqliteConnection) -> T:
            with closing(open_connection(self.store.path, read_only=True)) as raw:
                readable = {key for (key,) in SqliteConnection(raw).rows(SELECT_READABLE, keys=list(keys))}
            return job(connection, readable)

        return await self.write(with_readable)

    @property
    def is_there(self) -> bool:
        return self.in_memory or self.writer is not None or os.path.exists(self.path)

    async def read(self, job: Callable[[SqliteConnection], T]) -> T:
        return await self.run_on(self.reading, lambda: job(SqliteConnection(self.open_reader())))

    async def run_on(self, thread: ThreadPoolExecutor, job: Callable[[], T]) -> T:
        if self.closed:
            raise StoreUnavailable(CLOSED)
        loop = asyncio.get_running_loop()
        try:
            result = await loop.run_in_executor(thread, job)
            self.failure = None
            return result
        except DAMAGES as error:
            await loop.run_in_executor(self.writing, self.replace, f"it is damaged ({type(error).__name__})")
        except (apsw.Error, OSError) as error:
            if self.failure is None:  # once, however often that is tried until it can be used again
                LOG.error(UNUSABLE, self.path, type(error).__name__)
            self.failure = type(error).__name__
            raise StoreUnavailable(f"The index at {self.path} cannot be used: {trouble_of(error)}.") from None
        raise StoreUnavailable("The index was damaged, and is being made again.")

    # The file

    def open_writer(self) -> apsw.Connection:
        with self.opening:
            if self.writer is None:
                reason = None
                try:
                    self.writer = self.connect()
                    version = self.writer.pragma("user_version")
                    if version != INDEX_VERSION or self.writer.execute(SELECT_STORE).get != self.incarnation:
                        reason = "it is of another version, or of another store"
                except (*DAMAGES, apsw.SQLError) as error:
                    reason = f"it is damaged ({type(error).__name__})"
                if reason is not None:
                    self.replace(reason)
            assert self.writer is not None
            return self.writer

    def open_reader(self) -> apsw.Connection:
        writer = self.open_writer()
        if self.in_memory:
            return writer
        with self.opening:
            if self.reader is None:
                self.reader = open_connection(self.path, read_only=True)
            return self.reader

    def connect(self) -> apsw.Connection:
        if not self.in_memory:
            make_private(self.path)
        connection = apsw.Connection(self.path)
        connection.set_busy_handler(wait_for_lock)
        with on_failure(connection.close):
            connection.execute(WRITER_PRAGMAS).fetchall()
            connection.register_fts5_function(FREQUENCIES, frequencies)  # after what shows damage
            if not connection.pragma("user_version"):
                connection.execute(SCHEMA)
                connection.execute(SAVE_STORE, (self.incarnation,))
        return connection

    def replace(self, why: str) -> None:
        """Delete the file and begin with an empty one: all sessions are to be indexed again."""
        LOG.warning("The index of heard messages is made again: %s", why)
        with self.opening:
            self.release()
            if not self.in_memory:
                for suffix in INDEX_FILES:
                    with suppress(FileNotFoundError):
                        os.unlink(self.path.removesuffix(SUFFIX) + suffix)
            self.writer = self.connect()
            self.resets += 1

    def release(self) -> None:
        for connection in (self.reader, self.writer):
            if connection is not None:
                with suppress(apsw.Error):
                    connection.close()
        self.reader = self.writer = None

    def close(self) -> None:
        self.closed = True
        self.writing.shutdown()
        self.reading.shutdown()
        self.release()
