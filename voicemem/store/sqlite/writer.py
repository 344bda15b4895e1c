"""The writing thread of a database, and its group commit: all jobs that wait share one transaction and one sync."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import apsw

from voicemem.errors import StoreUnavailable, VoicememError
from voicemem.store.sqlite.connection import BEGIN, COMMIT, ROLLBACK, SqliteConnection
from voicemem.store.sqlite.files import SYNC_ERRORS
from voicemem.store.sqlite.rows import RowCache
from voicemem.store.troubles import Troubles

Job = Callable[[SqliteConnection], Any]
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

RUINED = "The disk failed to sync the store, so a later sync that succeeds cannot be trusted."
MAX_JOBS = 4096
"""Jobs in one transaction, at most: it bounds how long a commit takes to build."""


class QueuedJob(NamedTuple):
    """A job in the writer's queue, the future that gets its result, and the future's loop."""

    job: Job
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class Writer:
    """The thread that runs all jobs that write, on a connection of its own."""

    def __init__(self, rows: RowCache) -> None:
        self.connection = rows.connection.raw
        self.rows = rows
        self.troubles = Troubles()
        self.ruined = False
        """Whether a sync has failed.

        The kernel drops the pages that it could not write and reports the next sync as successful, so this process
        must not go on: only a new one, which reads the file again, knows what is on disk.
        """
        self.jobs: queue.SimpleQueue[QueuedJob | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.run, name="voicemem-writer", daemon=True)
        self.thread.start()

    def mark_ruined(self) -> None:
        """Refuse every later job, and checkpoint no more: a sync has failed."""
        self.ruined = True
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.troubles.begin(self, RUINED)

    @property
    def healthy(self) -> bool:
        """Whether the last commit reached the disk."""
        return not self.troubles.has(self)

    def close(self) -> None:
        """Finish the jobs that wait, and end the thread."""
        self.jobs.put(None)
        self.thread.join()
        while not self.jobs.empty():  # jobs that were queued while it closed
            late = self.jobs.get()
            if late is not None:
                deliver_results([late], [StoreUnavailable(CLOSED)])
        self.rows.invalidate()

    def run(self) -> None:
        """The thread: all jobs that wait go into one transaction.

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
            before = self.connection.total_changes()
            self.connection.execute(BEGIN)
            results = [self.run_job(queued.job) for queued in batch]
            self.rows.flush()
            self.connection.execute(COMMIT)
            self.rows.after_commit()
            if self.connection.total_changes() > before:  # an empty commit proves nothing about the disk
                self.troubles.end(self)
        except FILE_ERRORS as error:
            down = StoreUnavailable(f"The store cannot be written: {type(error).__name__}.")
            self.troubles.begin(self, down.detail)
            if getattr(error, "extendedresult", None) in SYNC_ERRORS:
                self.ruined = True
                self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self.roll_back()
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
