"""Who may open a file when. A start is alone with it, since it makes the file, changes its schema or writes its log."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import closing, suppress

import apsw

from voicemem.errors import CannotStart
from voicemem.store.sqlite.database.files import BUSY_TIMEOUT_MS, REDO_SUFFIX, open_lock_file
from voicemem.store.sqlite.database.schema import (
    IDENTITY,
    OWN_TABLES,
    SELECT_IDENTITY,
    newest_version,
    tables_of,
)
from voicemem.store.upkeep import no_store

OPENING_SUFFIX = ".opening"
WAIT_S, PAUSE_S = 30.0, 0.02
"""A start takes less than the one, but for an upgrade of a large file; a command takes a second or two."""


class Opening:
    """The lock `PATH.opening`, which whoever opens the file for writing takes first.

    A server holds it alone while it starts, a command while it makes or upgrades the file; a command then shares it
    with other commands until it ends. SQLite's own locks do not suffice: the log is written again beneath SQLite, where
    nothing would keep another process from committing into it or moving it into the database at the same time. And
    two processes that make a schema at once, or change to WAL mode, fail each other. The kernel releases the lock of a
    process that was killed.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor: int | None = None

    def hold_alone(self) -> None:
        """Wait until no other process holds it. Raises `CannotStart`."""
        self.hold(fcntl.LOCK_EX)

    def hold_shared(self) -> None:
        """Wait until no other process holds it alone. Raises `CannotStart`."""
        self.hold(fcntl.LOCK_SH)

    def hold(self, kind: int) -> None:
        """A change of the kind may let another in between, so check the file again once it is held alone."""
        until = time.monotonic() + WAIT_S
        while True:
            if self.descriptor is None:
                self.descriptor = open_lock(self.path)
            try:
                fcntl.flock(self.descriptor, kind | fcntl.LOCK_NB)
                if os.fstat(self.descriptor).st_nlink:
                    return
                self.release()  # a restore that was refused has removed the file meanwhile
                continue
            except BlockingIOError:
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)  # two that share it would wait for each other
            if time.monotonic() >= until:
                self.release()
                raise CannotStart(f"Another process is opening {self.path}, or works on it; try again when it is done.")
            time.sleep(PAUSE_S)

    def release(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def open_lock(path: str) -> int:
    """The lock's file; root's belongs to the owner of the store, like SQLite's log, so that the server can open it."""
    descriptor = open_lock_file(path, OPENING_SUFFIX)
    if os.geteuid() == 0:
        with suppress(OSError):
            owner = os.stat(path)
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def is_complete(path: str) -> bool:
    """Whether a file has today's schema, an identity, and no start that was cut short: nothing is to be made of it."""
    if is_missing(path) or os.path.exists(f"{path}{REDO_SUFFIX}"):
        return False
    with suppress(apsw.Error), closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        same = connection.pragma("user_version") == newest_version() and tables_of(connection) >= OWN_TABLES
        return same and set(dict(connection.execute(SELECT_IDENTITY))) >= IDENTITY
    return False


def is_missing(path: str) -> bool:
    """Whether there is no file, or one without anything in it, as is there before the first page is written."""
    return not os.path.exists(path) or not os.path.getsize(path)


def refuse_missing(path: str) -> None:
    """Raise `CannotStart` where there is no store."""
    if is_missing(path):
        raise CannotStart(no_store(path))
