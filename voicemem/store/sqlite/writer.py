"""The writing thread of a database, and its group commit: all jobs that wait share one transaction and one sync."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import apsw

from voicemem.errors import StoreUnavailable, VoicememError
from voicemem.store.group_commit import GroupCommit
from voicemem.store.sqlite.connection import BEGIN, COMMIT, ROLLBACK, SqliteConnection
from voicemem.store.sqlite.files import SYNC_ERRORS
from voicemem.store.sqlite.rows import RowCache
from voicemem.store.troubles import Troubles

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
MAX_JOBS = 4096
"""Jobs in one transaction, at most: it bounds how long a commit takes to build."""


class Writer:
    """Runs all jobs that write, on its thread and connection; all that wait share a transaction and a sync."""

    def __init__(self, rows: RowCache) -> None:
        self.connection = rows.connection.raw
        self.rows = rows
        self.troubles = Troubles()
        self.ruined = False
        """True if a sync has failed.

        The kernel drops the pages that it could not write and reports the next sync as successful, so this process
        must not go on: only a new one, which reads the file again, knows what is on disk.
        """
        self.group = GroupCommit("voicemem-writer", self.commit, MAX_JOBS)

    def mark_ruined(self) -> None:
        """Refuse every later job, and checkpoint no more: a sync has failed."""
        self.ruined = True
        self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.troubles.begin(self, RUINED)

    @property
    def healthy(self) -> bool:
        return not self.troubles.has(self)

    def close(self) -> None:
        self.group.close()
        self.rows.invalidate()

    def commit(self, jobs: list[Job]) -> list[Any]:
        """Run jobs in one transaction, and return their results once it is on disk.

        After an error of the file it is unknown whether the commit happened: all get `StoreUnavailable`, and everything
        cached is dropped. After a fault of one job each runs again alone, so that only the faulty one fails.
        """
        if self.ruined:
            return [StoreUnavailable(RUINED)] * len(jobs)
        try:
            before = self.connection.total_changes()
            self.connection.execute(BEGIN)
            results = [self.run_job(job) for job in jobs]
            self.rows.flush()
            self.connection.execute(COMMIT)
            self.rows.after_commit()
            # An empty commit proves nothing about the disk, and none does once a sync has failed.
            if self.connection.total_changes() > before and not self.ruined:
                self.troubles.end(self)
            return results
        except FILE_ERRORS as error:
            down = StoreUnavailable(f"The store cannot be written: {type(error).__name__}.")
            self.troubles.begin(self, down.detail)
            if getattr(error, "extendedresult", None) in SYNC_ERRORS:
                self.ruined = True
                self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
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
