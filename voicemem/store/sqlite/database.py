"""One SQLite file: a writer thread that group-commits, and connections that only read.

SQLite comes from `apsw`, whose bundled version has the WAL-reset fix (3.51.3) that system libraries lack.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import apsw

from voicemem.errors import CannotStart, StoreUnavailable, VoicememError
from voicemem.store.sqlite.database_files import lock_file, make_private, rewrite_log
from voicemem.store.sqlite.journal.row_cache import RowCache
from voicemem.store.sqlite.schema import migrate, refuse_foreign

T = TypeVar("T")
Job = Callable[[apsw.Connection], Any]
IN_MEMORY = ":memory:"
CLOSED = "The store was closed."
FILE_ERRORS = (
    apsw.BusyError,
    apsw.CantOpenError,
    apsw.CorruptError,
    apsw.FullError,
    apsw.IOError,
    apsw.LockedError,
    apsw.NoMemError,
    apsw.NotADBError,
    apsw.ProtocolError,
    apsw.ReadOnlyError,
)
"""Errors of the file or the disk; any other error is the fault of a single job."""
SYNC_ERRORS = (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC)
RUINED = "The disk failed to sync the store, so a later sync that succeeds cannot be trusted."
MAX_JOBS = 4096
"""Jobs in one transaction, at most: it bounds how long a commit takes to build."""
BUSY_TIMEOUT_MS = 5_000

WRITER_PRAGMAS = """
    pragma journal_mode = wal;
    pragma synchronous = full;
    pragma cache_size = -16384;
    pragma secure_delete = on;
"""
READER_PRAGMAS = """
    pragma query_only = on;
    pragma wal_autocheckpoint = 0;
"""
"""Only the writer checkpoints."""
BEGIN, COMMIT, ROLLBACK = "begin immediate", "commit", "rollback"
TRUNCATE_LOG = "pragma wal_checkpoint(truncate)"
SYNCHRONOUS_FULL = 2
"""What SQLite answers when asked for its setting."""


class QueuedJob(NamedTuple):
    """A job in the writer's queue, the future that gets its result, and the future's loop."""

    job: Job
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class Database:
    """One SQLite file with its writer thread. A job is a function of a connection."""

    def __init__(self, path: str, exclusive: bool = True) -> None:
        """Open and migrate the file. Raises `CannotStart`; with `exclusive` also when another server holds the file."""
        self.path = path
        self.lock = lock_file(path) if exclusive and path != IN_MEMORY else None
        try:
            if path != IN_MEMORY:
                make_private(path)
            if exclusive and path != IN_MEMORY:
                rewrite_log(path)
            self.writer = open_connection(path)
            # An empty log leaves the next start little to secure.
            self.writer.execute(TRUNCATE_LOG).fetchall()
            migrate(self.writer, None if exclusive or path == IN_MEMORY else path)
            self.rows = RowCache(self.writer, keeps_committed=exclusive)
            self.reader = self.writer if path == IN_MEMORY else open_connection(path, read_only=True)
            self.inline_reader = None if path == IN_MEMORY else open_connection(path, read_only=True)
        except (apsw.Error, CannotStart) as error:
            self.unlock()
            if isinstance(error, CannotStart):
                raise
            raise CannotStart(f"The database {path} cannot be opened: {error}.") from None
        self.healthy = True
        self.ruined = False
        """Whether a sync has failed.

        The kernel drops the pages that it could not write and reports the next sync as successful, so this process
        must not go on: only a new one, which reads the file again, knows what is on disk.
        """
        self.closed = False
        self.jobs: queue.SimpleQueue[QueuedJob | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.run, name="voicemem-writer", daemon=True)
        self.thread.start()
        self.readers = ThreadPoolExecutor(1, "voicemem-reader")

    async def write(self, job: Callable[[apsw.Connection], T]) -> T:
        """Run a job in the next transaction, and return its result after the commit is on disk.

        A job that raises a `VoicememError` must do so before it writes. A job may run twice: a transaction that
        failed is rolled back, and its jobs run again one by one. Raises `StoreUnavailable`.
        """
        if self.closed:
            raise StoreUnavailable(CLOSED)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self.jobs.put(QueuedJob(job, future, loop))
        return await future

    async def read(self, job: Callable[[apsw.Connection], T]) -> T:
        """Run a job that only reads, on the reader's thread. It sees everything that was committed before."""
        if self.reader is self.writer:
            return await self.write(job)
        if self.closed:
            raise StoreUnavailable(CLOSED)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self.readers, job, self.reader)
        except apsw.Error as error:
            raise StoreUnavailable(f"The store cannot be read: {type(error).__name__}.") from None

    async def read_inline(self, job: Callable[[apsw.Connection], T]) -> T:
        """Read a row or two on the calling thread: a switch to the reader's thread would take ten times longer."""
        if self.inline_reader is None:
            return await self.read(job)
        if self.closed:
            raise StoreUnavailable(CLOSED)
        try:
            return job(self.inline_reader)
        except apsw.Error as error:
            raise StoreUnavailable(f"The store cannot be read: {type(error).__name__}.") from None

    def close(self) -> None:
        """Finish the jobs that wait, checkpoint, and release the file."""
        self.closed = True
        self.jobs.put(None)
        self.thread.join()
        while not self.jobs.empty():  # jobs that were queued while it closed
            late = self.jobs.get()
            if late is not None:
                deliver_results([late], [StoreUnavailable(CLOSED)])
        self.rows.invalidate()
        self.readers.shutdown()
        try:
            if self.inline_reader is not None:
                self.inline_reader.close()
            self.reader.close()
            self.writer.close()
        finally:
            self.unlock()

    def unlock(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def run(self) -> None:
        """The writer thread: all jobs that wait go into one transaction.

        This is the group commit: while one transaction is synced, the next ones queue up and share a single sync, so
        throughput grows with load and a lone job never waits for company.
        """
        while (first := self.jobs.get()) is not None:
            batch, last = [first], False
            while not self.jobs.empty() and len(batch) < MAX_JOBS:
                more = self.jobs.get()
                if more is None:
                    last = True
                    break
                batch.append(more)
            self.commit(batch)
            if last:
                return

    def commit(self, batch: list[QueuedJob]) -> None:
        """Run jobs in one transaction, and hand out results only once it is on disk.

        After an error of the file it is unknown whether the commit happened: all get `StoreUnavailable`, and everything
        cached is dropped. After a fault of one job each runs again alone, so that only the faulty one fails.
        """
        if self.ruined:
            deliver_results(batch, [StoreUnavailable(RUINED)] * len(batch))
            return
        try:
            before = self.writer.total_changes()
            self.writer.execute(BEGIN)
            results = [self.run_job(queued.job) for queued in batch]
            self.rows.flush()
            self.writer.execute(COMMIT)
            self.rows.after_commit()
            if self.writer.total_changes() > before:  # an empty commit proves nothing about the disk
                self.healthy = True
        except FILE_ERRORS as error:
            self.healthy = False
            if getattr(error, "extendedresult", None) in SYNC_ERRORS:
                self.ruined = True
                self.writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self.roll_back()
            down = StoreUnavailable(f"The store cannot be written: {type(error).__name__}.")
            deliver_results(batch, [down] * len(batch))
            return
        except Exception as error:  # a fault of one job: the others must not fail with it
            self.roll_back()
            if len(batch) == 1:
                deliver_results(batch, [error])
            else:
                for queued in batch:
                    self.commit([queued])
            return
        deliver_results(batch, results)

    def run_job(self, job: Job) -> Any:
        try:
            result = job(self.writer)
        except VoicememError as error:
            self.rows.drop_job()
            return error
        self.rows.accept_job()
        return result

    def roll_back(self) -> None:
        self.rows.after_rollback()
        with suppress(apsw.Error):  # SQLite rolls it back when the file is opened next
            if self.writer.in_transaction:
                self.writer.execute(ROLLBACK)


def deliver_results(batch: list[QueuedJob], results: list[Any]) -> None:
    """Give each job its result, with one wake-up of each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for queued, result in zip(batch, results, strict=True):
        by_loop.setdefault(queued.loop, []).append((queued.future, result))
    for loop, pairs in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed, and nothing waits in it
            loop.call_soon_threadsafe(set_results, pairs)


def set_results(pairs: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in pairs:
        if future.done():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


def open_connection(path: str, read_only: bool = False) -> apsw.Connection:
    """Open a connection with the settings that every promise rests on. Raises `CannotStart` and `apsw.Error`."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    if read_only:
        connection.execute(READER_PRAGMAS).fetchall()
        return connection
    refuse_foreign(connection, path)
    connection.execute(WRITER_PRAGMAS).fetchall()
    if connection.pragma("synchronous") != SYNCHRONOUS_FULL:
        raise CannotStart("SQLite does not keep synchronous=FULL, so nothing could be acknowledged safely.")
    if path != IN_MEMORY and connection.pragma("journal_mode") != "wal":
        raise CannotStart(f"The database {path} cannot be switched to WAL mode.")
    return connection
