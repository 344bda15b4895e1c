"""The file of the index: opened at the first use, on a thread of its own, and made again when it is lost or damaged."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import apsw

from voicemem.errors import StoreUnavailable
from voicemem.store.sqlite.database.files import make_private
from voicemem.store.sqlite.database.transactions import transaction
from voicemem.store.sqlite.heard_index.rows import INDEX_VERSION, SCHEMA

LOG = logging.getLogger("voicemem")
T = TypeVar("T")
SUFFIX = "-memories"
INDEX_FILES = (SUFFIX, f"{SUFFIX}-wal", f"{SUFFIX}-shm", f"{SUFFIX}-journal")
"""Suffixes of the files of an index."""
BUSY_TIMEOUT_MS = 5_000
WRITER_PRAGMAS = """
    pragma journal_mode = wal;
    pragma synchronous = normal;
    pragma cache_size = -16384;
    pragma secure_delete = on;
"""
READER_PRAGMAS = "pragma query_only = on; pragma wal_autocheckpoint = 0;"
DAMAGES = apsw.CorruptError, apsw.NotADBError, apsw.FormatError
"""Errors that say that the file is not the index that it should be."""
SELECT_STORE = "select value from meta where name = 'store'"
SAVE_STORE = "insert into meta values ('store', ?)"


UNUSABLE = (
    "The index at %s cannot be used (%s), so searches are refused: move away what is there unless it is the index, and"
    " see that its folder can be written; the index is made again by itself"
)


class IndexFile:
    """The index of the store with this `incarnation`. `path` is that of the store, "" for an index in memory."""

    def __init__(self, path: str, incarnation: bytes) -> None:
        self.path = f"{path}{SUFFIX}" if path else ":memory:"
        self.in_memory = not path
        self.incarnation = incarnation
        self.resets = 0
        self.closed = False
        self.failure: str | None = None
        """The error for which it cannot be used at the moment."""
        self.writer: apsw.Connection | None = None
        self.reader: apsw.Connection | None = None
        self.opening = threading.Lock()
        self.writing = ThreadPoolExecutor(1, "voicemem-index")
        self.reading = self.writing if self.in_memory else ThreadPoolExecutor(1, "voicemem-search")

    async def write(self, job: Callable[[apsw.Connection], T]) -> T:
        """The result of a job in a transaction. Raises `StoreUnavailable`, also when the index had to begin anew."""
        return await self.run_on(self.writing, lambda: self.run_write(job))

    async def write_if_there(self, job: Callable[[apsw.Connection], bool]) -> bool:
        """The same, but False where there is no index: none is made for it."""
        return await self.run_on(self.writing, lambda: self.is_there and self.run_write(job))

    @property
    def is_there(self) -> bool:
        return self.in_memory or self.writer is not None or os.path.exists(self.path)

    async def read(self, job: Callable[[apsw.Connection], T]) -> T:
        """The result of a job that only reads. Raises as `write`."""
        return await self.run_on(self.reading, lambda: job(self.open_reader()))

    async def run_on(self, thread: ThreadPoolExecutor, job: Callable[[], T]) -> T:
        if self.closed:
            raise StoreUnavailable("The store was closed.")
        loop = asyncio.get_running_loop()
        try:
            result = await loop.run_in_executor(thread, job)
            self.failure = None
            return result
        except DAMAGES as error:
            await loop.run_in_executor(self.writing, self.begin_anew, f"it is damaged ({type(error).__name__})")
        except (apsw.Error, OSError) as error:
            self.note_failure(type(error).__name__)
            raise StoreUnavailable(f"The index at {self.path} cannot be used: {type(error).__name__}.") from None
        raise StoreUnavailable("The index was damaged, and is being made again.")

    def note_failure(self, failure: str) -> None:
        """Log that the index cannot be used; once, however often that is tried until it can be used again."""
        if self.failure is None:
            LOG.error(UNUSABLE, self.path, failure)
        self.failure = failure

    def run_write(self, job: Callable[[apsw.Connection], T]) -> T:
        connection = self.open_writer()
        with transaction(connection):
            return job(connection)

    # The file

    def open_writer(self) -> apsw.Connection:
        with self.opening:
            if self.writer is None:
                try:
                    self.writer = self.connect()
                except (*DAMAGES, apsw.SQLError) as error:
                    self.replace(f"it is damaged ({type(error).__name__})")
                if not self.is_current():
                    self.replace("it is of another version, or of another store")
            assert self.writer is not None
            return self.writer

    def open_reader(self) -> apsw.Connection:
        writer = self.open_writer()
        if self.in_memory:
            return writer
        with self.opening:
            if self.reader is None:
                self.reader = apsw.Connection(self.path)
                self.reader.set_busy_timeout(BUSY_TIMEOUT_MS)
                self.reader.execute(READER_PRAGMAS).fetchall()
            return self.reader

    def connect(self) -> apsw.Connection:
        if not self.in_memory:
            make_private(self.path)
        connection = apsw.Connection(self.path)
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        try:
            connection.execute(WRITER_PRAGMAS).fetchall()
            if not connection.pragma("user_version"):
                connection.execute(SCHEMA)
                connection.execute(SAVE_STORE, (self.incarnation,))
        except BaseException:
            connection.close()
            raise
        return connection

    def is_current(self) -> bool:
        """Whether the file is an index of this version, of this store."""
        assert self.writer is not None
        if self.writer.pragma("user_version") != INDEX_VERSION:
            return False
        try:
            return bool(self.writer.execute(SELECT_STORE).get == self.incarnation)
        except (*DAMAGES, apsw.SQLError):
            return False

    def begin_anew(self, why: str) -> None:
        with self.opening:
            self.replace(why)

    def replace(self, why: str) -> None:
        """Delete the file and begin with an empty one: all sessions are to be indexed again."""
        LOG.warning("The index of heard messages is made again: %s", why)
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
        """Finish what was begun, and release the file."""
        self.closed = True
        self.writing.shutdown()
        self.reading.shutdown()
        self.release()
