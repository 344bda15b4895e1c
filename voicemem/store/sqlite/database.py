"""The file itself: opening and migrating it, one writer thread that group-commits, one reader.

SQLite comes from `apsw`, whose bundled version has the WAL-reset fix (3.51.3) that system libraries lack.
"""

from __future__ import annotations

import asyncio
import os
import queue
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple, TypeVar

import apsw

from voicemem.errors import CannotStart, StoreUnavailable, VoicememError
from voicemem.store.sqlite.files import lock_file, make_private, secure_log
from voicemem.store.sqlite.rows import Rows

T = TypeVar("T")
Job = Callable[[apsw.Connection], Any]
IN_MEMORY = ":memory:"
CLOSED = "The store was closed."
DOWN = (
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
"""Errors of the file; any other one is the fault of a single job."""
SYNC_FAILED = (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC)
RUINED = "The disk could not sync the store, and what a later sync says cannot be trusted."
MAX_JOBS = 4096
"""Jobs in one transaction: a bound on how long a commit can take to build."""


class Waiting(NamedTuple):
    """A job in the writer's queue, and who waits for it."""

    job: Job
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class Database:
    """One SQLite file. `write` runs a job in the next transaction and returns after its commit is on disk."""

    def __init__(self, path: str, exclusive: bool = True) -> None:
        """Open and migrate. Raises `CannotStart`; with `exclusive`, also when another server holds the file."""
        self.path = path
        self.lock = lock_file(path) if exclusive and path != IN_MEMORY else None
        try:
            if path != IN_MEMORY:
                make_private(path)
            if exclusive and path != IN_MEMORY:
                secure_log(path)
            self.writer = connect(path)
            # The log begins anew, so that the next start finds little to secure.
            self.writer.execute("pragma wal_checkpoint(truncate)").fetchall()
            migrate(self.writer, None if exclusive or path == IN_MEMORY else path)
            self.rows = Rows(self.writer, keep=exclusive)
            self.reader = self.writer if path == IN_MEMORY else connect(path, read_only=True)
            self.glancer = None if path == IN_MEMORY else connect(path, read_only=True)
        except (apsw.Error, CannotStart) as error:
            self.unlock()
            if isinstance(error, CannotStart):
                raise
            raise CannotStart(f"The database {path} cannot be opened: {error}.") from None
        self.healthy = True
        self.ruined = False
        """Whether a sync has failed: the kernel forgets what it could not write, so this process must not go on."""
        self.closed = False
        self.waiting: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.run, name="voicemem-writer", daemon=True)
        self.thread.start()
        self.readers = ThreadPoolExecutor(1, "voicemem-reader")

    async def write(self, job: Callable[[apsw.Connection], T]) -> T:
        """The job's result, after the commit. A job that raises a `VoicememError` must do so before it writes.

        A job may run more than once (the first time in a transaction that was rolled back).
        """
        if self.closed:
            raise StoreUnavailable(CLOSED)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self.waiting.put(Waiting(job, future, loop))
        return await future

    async def read(self, job: Callable[[apsw.Connection], T]) -> T:
        """The result of a job that only reads; it sees everything that was committed before."""
        if self.reader is self.writer:
            return await self.write(job)
        if self.closed:
            raise StoreUnavailable(CLOSED)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self.readers, job, self.reader)
        except apsw.Error as error:
            raise StoreUnavailable(f"The store cannot be read: {type(error).__name__}.") from None

    async def glance(self, job: Callable[[apsw.Connection], T]) -> T:
        """The result of a read of a row or two, made at once: a way to another thread takes ten times longer."""
        if self.glancer is None:
            return await self.read(job)
        if self.closed:
            raise StoreUnavailable(CLOSED)
        try:
            return job(self.glancer)
        except apsw.Error as error:
            raise StoreUnavailable(f"The store cannot be read: {type(error).__name__}.") from None

    def close(self) -> None:
        """Finish what waits, checkpoint, and let go of the file."""
        self.closed = True
        self.waiting.put(None)
        self.thread.join()
        while not self.waiting.empty():  # what came in the very moment of the close
            late = self.waiting.get()
            if late is not None:
                settle([late], [StoreUnavailable(CLOSED)])
        self.rows.forget()
        self.readers.shutdown()
        try:
            if self.glancer is not None:
                self.glancer.close()
            self.reader.close()
            self.writer.close()
        finally:
            self.unlock()

    def unlock(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def run(self) -> None:
        """The writer thread: whatever waits goes into one transaction."""
        while (first := self.waiting.get()) is not None:
            batch, last = [first], False
            while not self.waiting.empty() and len(batch) < MAX_JOBS:
                more = self.waiting.get()
                if more is None:
                    last = True
                    break
                batch.append(more)
            self.commit(batch)
            if last:
                return

    def commit(self, batch: list[Waiting]) -> None:
        if self.ruined:
            settle(batch, [StoreUnavailable(RUINED)] * len(batch))
            return
        try:
            before = self.writer.total_changes()
            self.writer.execute("begin immediate")
            results = [self.attempt(waiting.job) for waiting in batch]
            self.rows.flush()
            self.writer.execute("commit")
            self.rows.committed()
            if self.writer.total_changes() > before:  # a commit of nothing proves nothing
                self.healthy = True
        except DOWN as error:
            self.healthy = False
            if getattr(error, "extendedresult", None) in SYNC_FAILED:
                self.ruined = True
                self.writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self.roll_back()
            down = StoreUnavailable(f"The store cannot be written: {type(error).__name__}.")
            settle(batch, [down] * len(batch))
            return
        except Exception as error:  # a job with a fault of its own must not take the others down with it
            self.roll_back()
            if len(batch) == 1:
                settle(batch, [error])
            else:
                for waiting in batch:
                    self.commit([waiting])
            return
        settle(batch, results)

    def attempt(self, job: Job) -> Any:
        try:
            result = job(self.writer)
        except VoicememError as error:
            self.rows.drop_job()
            return error
        self.rows.keep_job()
        return result

    def roll_back(self) -> None:
        self.rows.rolled_back()
        with suppress(apsw.Error):  # what cannot be rolled back now is when the file is opened next
            if self.writer.in_transaction:
                self.writer.execute("rollback")


def settle(batch: list[Waiting], results: list[Any]) -> None:
    """Hand the results to their waiters, with one call into each of their loops."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for waiting, result in zip(batch, results, strict=True):
        by_loop.setdefault(waiting.loop, []).append((waiting.future, result))
    for loop, pairs in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(resolve, pairs)


def resolve(pairs: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in pairs:
        if future.done():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


def connect(path: str, read_only: bool = False) -> apsw.Connection:
    connection = apsw.Connection(path)
    connection.set_busy_timeout(5_000)
    if read_only:
        connection.execute("pragma query_only = on")
        connection.execute("pragma wal_autocheckpoint = 0")  # only the writer checkpoints
        return connection
    refuse_foreign(connection, path)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute("pragma cache_size = -16384")
    connection.execute("pragma secure_delete = on")
    if connection.pragma("synchronous") != 2:
        raise CannotStart("SQLite does not keep synchronous=FULL, so nothing could be acknowledged safely.")
    if path != IN_MEMORY and connection.pragma("journal_mode") != "wal":
        raise CannotStart(f"The database {path} cannot be put into WAL mode.")
    return connection


def refuse_foreign(connection: apsw.Connection, path: str) -> None:
    """Raise `CannotStart` for a database of another program, before anything is written into it."""
    tables = {name for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")}
    if tables and not {"meta", "streams", "journal"} <= tables:
        raise CannotStart(f"{path} is a database of another program.")


def migrate(connection: apsw.Connection, beside: str | None = None) -> None:
    """Bring the schema forward by numbered files. Raises `CannotStart` for a database newer than the program.

    `beside` is a file that a server may have: one of an older version must not meet a newer schema.
    """
    folder = resources.files("voicemem.store.sqlite") / "migrations"
    files = sorted((int(f.name[:4]), f) for f in folder.iterdir() if f.name.endswith(".sql"))
    version = connection.pragma("user_version")
    if version > files[-1][0]:
        raise CannotStart(f"The database has schema {version}, newer than this program's {files[-1][0]}.")
    lock = lock_older(beside) if beside is not None and 0 < version < files[-1][0] else None
    try:
        apply(connection, files, version)
    finally:
        if lock is not None:
            os.close(lock)


def lock_older(path: str) -> int:
    try:
        return lock_file(path)
    except CannotStart:
        raise CannotStart(f"The server on {path} is of an older version; restart it first.") from None


def apply(connection: apsw.Connection, files: list[tuple[int, Traversable]], version: int) -> None:
    for number, file in files:
        if number > version:
            with connection:
                connection.execute(file.read_text())
                connection.execute(f"pragma user_version = {number}")
    with connection:
        for name in ("incarnation", "cursor_secret"):
            connection.execute("insert or ignore into meta values (?, ?)", (name, secrets.token_bytes(16)))
