"""SQLite's side of the seam (`voicemem.store.database`): one file, its writer, and its read-only connections.

SQLite comes from `apsw`, whose bundled version has the WAL-reset fix (3.51.3) that system libraries lack.
"""

import asyncio
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import apsw

from voicemem.errors import CannotStart, StoreRuined, StoreUnavailable, VoicememError
from voicemem.runtime import MemoryBudget
from voicemem.store.append_rules import AppendResult, Batch
from voicemem.store.database import CLOSED, ConnectionFailures, Database, GroupCommit, KeySource
from voicemem.store.sqlite import files
from voicemem.store.sqlite.connection import COMMIT, ROLLBACK, RowCache, SqliteConnection
from voicemem.store.sqlite.words import FREQUENCIES, frequencies
from voicemem.store.upkeep import no_store

Job = Callable[[SqliteConnection], Any]
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

RUINED = "The disk failed to sync the store, so a later sync that succeeds cannot be trusted."
LOST = "The store's file or its log was moved, deleted, replaced or truncated: what is written is not found again."
MAX_JOBS = 4096
"""The most jobs in one transaction: it bounds how long a commit takes to build."""
LOG_PAGE_HEAD = 24
"""Bytes in the log before each page."""


class OpenFileIdentity:
    """The identity of a store's open file and its log, and the length of the file at the last check."""

    def __init__(self, path: str, writer: apsw.Connection) -> None:
        self.paths = path, f"{path}-wal"
        self.writer, self.page_bytes = writer, LOG_PAGE_HEAD + int(writer.pragma("page_size"))
        self.known = [os.stat(one) for one in self.paths]

    def is_lost(self) -> bool:
        """Return whether a path has another file by now, or the file is shorter: no program of ours does either."""
        known = self.known
        try:
            now = self.known = [os.stat(one) for one in self.paths]
        except OSError:
            return True
        return [one.st_ino for one in now] != [one.st_ino for one in known] or now[0].st_size < known[0].st_size

    def has_short_log(self, pages: int) -> bool:
        """Return whether the log has fewer than these pages, unless a command has just truncated it.

        For the writer's thread, before a commit: the pages that a commit adds would hide it.
        """
        with suppress(OSError):
            is_short = pages * self.page_bytes > os.stat(self.paths[1]).st_size
            return is_short and pages == self.writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
        return True


class Checkpoints:
    """Moves committed pages from the log into the file, on a thread and connection of its own.

    Within a commit it would take some ten ms. A passive checkpoint holds up neither writer nor readers, but while
    commits follow each other it never reaches the end of the log, which could then not begin again. So once the log is
    long, the writer itself makes the last step, between two commits: next to nothing is left to do.
    """

    pages = 4_000
    """The length of the log from which it is moved into the file."""
    most_pages = 16_000
    """The length of the log from which the writer makes the last step."""

    def __init__(self, path: str, writer: apsw.Connection) -> None:
        self.writer, self.written = writer, 0
        """The writer's connection, and the pages in the log after its last commit."""
        self.file = OpenFileIdentity(path, writer)
        self.connection = apsw.Connection(path)
        self.connection.set_busy_timeout(0)  # others move the log too (`files.truncate_log`)
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.connection.pragma("user_version")  # a connection does not notice the log before its first read
        self.is_due, self.is_last_step_due, self.is_closed, self.sync_failed = threading.Event(), False, False, False
        self.thread = threading.Thread(target=self.work, name="voicemem-checkpoints", daemon=True)
        self.thread.start()
        writer.set_wal_hook(self.note_commit)

    def note_commit(self, _: apsw.Connection, __: str, pages: int) -> int:
        self.written = pages
        if pages >= self.pages:
            self.is_due.set()
        return apsw.SQLITE_OK

    def work(self) -> None:
        while self.is_due.wait() and not self.is_closed:
            self.is_due.clear()
            pages, _ = self.checkpoint(self.connection)
            self.is_last_step_due = pages >= self.most_pages

    def make_last_step(self) -> None:
        """Move the rest of a long log; for the writer's thread."""
        if self.is_last_step_due:
            self.is_last_step_due = False
            self.checkpoint(self.writer)

    def checkpoint(self, connection: apsw.Connection) -> tuple[int, int]:
        """Move the log into the file; return its pages, and how many were moved. A failure leaves the log as it is."""
        try:
            return connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error as error:
            self.sync_failed = self.sync_failed or getattr(error, "extendedresult", None) in files.SYNC_ERRORS
            return 0, 0

    def close(self) -> None:
        self.is_closed = True
        self.is_due.set()
        self.thread.join()
        self.connection.close()


class Writer:
    """Runs all jobs that write, on its thread and connection; waiting jobs share a transaction and a sync."""

    def __init__(self, rows: RowCache, checkpoints: Checkpoints | None) -> None:
        """`checkpoints` is None for a database in memory."""
        self.connection = rows.connection.raw
        self.checkpoints = checkpoints
        self.rows = rows
        self.troubles = ConnectionFailures()
        self.ruined: str | None = None
        """Why this process must not continue, such as that a sync has failed.

        The kernel drops pages that it could not write, and reports the next sync as successful: only a new
        process, which reads the file again, knows what is on disk.
        """
        self.group = GroupCommit("voicemem-writer", self.commit, MAX_JOBS)

    def mark_ruined(self, why: str = RUINED) -> None:
        """Refuse every later job, and make no more checkpoints."""
        self.ruined = why
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.troubles.begin(self, why)

    @property
    def healthy(self) -> bool:
        return not (self.troubles.has(self) or self.has_lost_file)

    @property
    def has_lost_file(self) -> bool:
        return self.checkpoints is not None and self.checkpoints.file.is_lost()

    def close(self) -> None:
        self.group.close()
        self.rows.invalidate()

    def commit(self, jobs: list[Job]) -> list[Any]:
        """Run jobs in one transaction, and return their results once it is on disk.

        After an error of the file it is unknown whether the commit happened: all get `StoreUnavailable`, and everything
        cached is dropped. After a fault of one job each runs again alone, so that only the faulty one fails.
        """
        if self.checkpoints is not None:
            self.checkpoints.make_last_step()
            if self.checkpoints.sync_failed and not self.ruined:
                self.mark_ruined()
            if not self.ruined and self.checkpoints.file.has_short_log(self.checkpoints.written):
                self.mark_ruined(LOST)
                self.rows.invalidate()
        if self.ruined:
            return [StoreUnavailable(self.ruined)] * len(jobs)
        try:
            before = self.connection.total_changes()
            results = [self.run_job(job) for job in jobs]
            self.rows.flush(is_last=True)
            if self.connection.in_transaction:
                self.connection.execute(COMMIT)
            if self.has_lost_file:
                self.mark_ruined(LOST)
                self.rows.invalidate()
                return [StoreUnavailable(LOST)] * len(jobs)
            self.rows.after_commit()
            # An empty commit proves nothing about the disk, and none does once a sync has failed.
            if self.connection.total_changes() > before and not self.ruined:
                self.troubles.end(self)
            return results
        except FILE_ERRORS as error:
            down = StoreUnavailable(f"The store cannot be written: {files.trouble_of(error)}.")
            self.troubles.begin(self, down.detail)
            if getattr(error, "extendedresult", None) in files.SYNC_ERRORS:
                self.mark_ruined()
            self.roll_back()
            return [down] * len(jobs)
        except Exception as error:  # a fault of one job: the others must not fail with it
            self.roll_back()
            return [error] if len(jobs) == 1 else [self.commit([job])[0] for job in jobs]

    def run_job(self, job: Job) -> Any:
        try:
            result = job(self.rows.connection)
        except VoicememError as error:
            self.rows.drop_job()
            return error
        self.rows.accept_job()
        return result

    def roll_back(self) -> None:
        self.rows.after_rollback()
        with suppress(apsw.Error):  # SQLite rolls it back when the file is opened next
            if self.connection.in_transaction:
                self.connection.execute(ROLLBACK)


T = TypeVar("T")
IN_MEMORY = ":memory:"

WRITER_PRAGMAS = """
    pragma journal_mode = wal;
    pragma synchronous = full;
    pragma cache_size = -16384;
    pragma secure_delete = on;
"""
READER_PRAGMAS = "pragma query_only = on; pragma wal_autocheckpoint = 0;"
SELECT_LAST_KEY = """
    select max(
        ifnull((select max(key) from endpoints), 0), ifnull((select max(key) from deliveries), 0),
        ifnull((select max(seq) from sqlite_sequence), 0)
    )
"""


class SqliteDatabase(Database):
    engine = "sqlite"

    def __init__(
        self, path: str, exclusive: bool = True, budget: MemoryBudget | None = None, make: bool = True
    ) -> None:
        """Open and migrate the file, and `make` a missing one.

        Raises `CannotStart`; with `exclusive` also when another server holds the file.
        """
        self.path = path
        self.is_exclusive = exclusive
        self.opening = files.OpeningLock(path)
        self.lock: int | None = None
        try:
            if path != IN_MEMORY:
                files.refuse_unmarked(path)
                self.take_file(make)
            self.writer = open_connection(path)
            if path == IN_MEMORY:
                files.copy_schema(self.writer)
            # An empty log leaves the next start little to secure.
            self.writer.execute("pragma wal_checkpoint(truncate)").fetchall()
            files.migrate(self.writer, None if exclusive or path == IN_MEMORY else path)
            self.identity: dict[str, bytes] = dict(self.writer.execute(files.SELECT_IDENTITY))
            keys = KeySource(int(time.time() * 1000), time.monotonic)
            keys.last = int(self.writer.execute(SELECT_LAST_KEY).get)
            self.streams = RowCache(self.writer, exclusive, budget or MemoryBudget(), keys)
            self.find_kept_stream = self.streams.committed.find_by_name
            self.reader, self.inline_reader, self.scanner = (self.open_reader() for _ in range(3))
            if exclusive:
                self.opening.release()
            elif path != IN_MEMORY:  # as long as a command works on it, no server starts on it
                self.opening.hold(alone=False)
        except (apsw.Error, CannotStart) as error:
            self.unlock()
            if isinstance(error, CannotStart):
                raise
            is_full = path != IN_MEMORY and shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free < INDEX_BYTES
            why = "its disk is full, and nothing was changed" if is_full else error
            raise CannotStart(f"The database {path} cannot be opened: {why}.") from None
        self.closed = False
        self.checkpoints = None if path == IN_MEMORY else Checkpoints(path, self.writer)
        self.writing = Writer(self.streams, self.checkpoints)
        self.readers = ThreadPoolExecutor(1, "voicemem-reader")
        self.scanners = ThreadPoolExecutor(1, "voicemem-scanner")

    def open_reader(self) -> SqliteConnection | None:
        """Return a read-only connection; None for a database in memory, which has one connection."""
        return None if self.path == IN_MEMORY else SqliteConnection(open_connection(self.path, read_only=True))

    def take_file(self, make: bool) -> None:
        """Lock the file for opening, and prepare it and its log. Raises `CannotStart`, `apsw.Error`."""
        if not self.is_exclusive:
            self.opening.hold(alone=False)
            if files.is_complete(self.path):
                return
        self.opening.hold(alone=True)
        if not make and not (os.path.exists(self.path) and os.path.getsize(self.path)):
            raise CannotStart(no_store(self.path))
        if self.is_exclusive:
            self.lock = files.lock_file(self.path)
        files.make_private(self.path)
        if self.is_exclusive or os.path.exists(f"{self.path}{files.REDO_SUFFIX}"):
            files.rewrite_log(self.path)

    async def write(self, job: Callable[[SqliteConnection], T]) -> T:
        """See `Database.write`. A transaction that failed is rolled back, and its jobs run again one by one."""
        if self.closed:
            raise StoreUnavailable(CLOSED)
        result: T = await self.writing.group.run(job)
        return result

    async def read(self, job: Callable[[SqliteConnection], T]) -> T:
        return await self.read_on(self.readers, self.reader, job)

    async def scan(self, job: Callable[[SqliteConnection], T]) -> T:
        return await self.read_on(self.scanners, self.scanner, job)

    async def read_inline(self, job: Callable[[SqliteConnection], T]) -> T:
        """Run a job on the calling thread: a switch to the reader's thread would take ten times longer."""
        return await self.read_on(None, self.inline_reader, job)

    async def read_on(
        self,
        thread: ThreadPoolExecutor | None,
        connection: SqliteConnection | None,
        job: Callable[[SqliteConnection], T],
    ) -> T:
        if connection is None:
            return await self.write(job)
        if self.closed:
            raise StoreUnavailable(CLOSED)
        try:
            if thread is None:
                return job(connection)
            return await asyncio.get_running_loop().run_in_executor(thread, job, connection)
        except apsw.Error as error:
            await self.write(lambda _: None)  # says so if the file is lost
            raise StoreUnavailable(f"The store cannot be read: {type(error).__name__}.") from None

    async def append(self, batches: Sequence[Batch], now_ms: int) -> list[AppendResult]:
        return await self.write(lambda _: [self.streams.append(batch, now_ms) for batch in batches])

    # Nodes: only one process at a time serves a file

    def renew_incarnation(self, connection: SqliteConnection) -> None:
        connection.execute(files.UPDATE_INCARNATION, value=secrets.token_bytes(files.IDENTITY_BYTES))

    async def register_node(self, token: str, job: Callable[[SqliteConnection], None]) -> None:
        await self.write(job)
        self.identity = await self.read(lambda connection: dict(connection.rows(files.SELECT_IDENTITY)))

    async def try_again(self, job: Callable[[SqliteConnection], None]) -> None:
        if self.writing.ruined:
            raise StoreRuined(self.writing.ruined)

    def close(self) -> None:
        self.closed = True
        self.writing.close()
        if self.checkpoints is not None:
            self.checkpoints.close()
        self.readers.shutdown()
        self.scanners.shutdown()
        try:
            for reader in (self.scanner, self.inline_reader, self.reader):
                if reader is not None:
                    reader.raw.close()
            self.writer.close()
        finally:
            self.unlock()

    def unlock(self) -> None:
        self.opening.release()
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


INDEX_BYTES = 32 * 1024
"""Bytes of the index of a log, without which SQLite does not open the log."""


def open_connection(path: str, read_only: bool = False) -> apsw.Connection:
    """Open a connection with the settings that durability depends on. Raises `CannotStart` and `apsw.Error`."""
    connection = apsw.Connection(path)
    files.run_no_code(connection)
    connection.set_busy_handler(files.wait_for_lock)
    if not read_only:
        files.mark_new(connection)
    connection.execute(READER_PRAGMAS if read_only else WRITER_PRAGMAS).fetchall()
    connection.register_fts5_function(FREQUENCIES, frequencies)  # after what shows damage, or a full disk
    if read_only:
        return connection
    if connection.pragma("synchronous") != 2:  # full
        raise CannotStart("SQLite does not keep synchronous=FULL, so nothing could be acknowledged safely.")
    if path != IN_MEMORY and connection.pragma("journal_mode") != "wal":
        raise CannotStart(f"The database {path} cannot be switched to WAL mode.")
    return connection
