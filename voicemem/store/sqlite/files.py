"""The files of a store: private, held by one server, safe after a crash of the machine, and with a known schema.

A server that starts has its file to itself, since it may create it, change its schema or rewrite its log. SQLite
overwrites deleted rows with zeros (`secure_delete`), and their traces in the log disappear when it is truncated. When
SQLite moves rows of a full page to its neighbours, copies may stay in an unused part of the page until it is needed;
only `vacuum`, which blocks every writer, removes them at once (docs/storage.md).
"""

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache

import apsw

from voicemem.errors import CannotStart, StoreUnavailable
from voicemem.store.upkeep import Migration, migrations_of, not_ours, on_failure

LOCK_SUFFIX = ".lock"


def size_with_log(path: str) -> int:
    """Return the bytes of a file and of its log, where most of a copy is at first."""
    return sum(os.path.getsize(one) for one in (path, f"{path}-wal") if os.path.exists(one))


def check_store_path(path: str) -> None:
    """Raise `CannotStart` for a path at which no file can be created."""
    if os.path.isdir(path):
        raise CannotStart(f"The store {path} is a folder; write sqlite:PATH with the path of a file.")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise CannotStart(f"The folder of the store does not exist: {folder}.")


def make_private(path: str) -> None:
    """Create the file readable by its owner only, since it holds secrets; SQLite gives its log the same mode."""
    if os.path.exists(path):  # closing it here would release the POSIX locks that this process has on it
        return
    with suppress(OSError):  # SQLite reports a file that cannot be created
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def lock_file(path: str) -> int:
    """Lock `PATH.lock` for this process: one server per file. Raises `CannotStart` when another one has it.

    The kernel releases the lock of a process that was killed. Return the descriptor, whose close releases it.
    """
    descriptor = open_lock_file(path, LOCK_SUFFIX)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise CannotStart(f"Another server is already using {path}; one server per file.") from None
    return descriptor


def open_lock_file(path: str, suffix: str) -> int:
    """Return the descriptor of a file beside the store that exists only to be locked. Raises `CannotStart`."""
    try:
        return os.open(path + suffix, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CannotStart(f"The folder of {path} cannot be written: {error.strerror}.") from None


SYNC_ERRORS = (apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC)
LOCK_WAIT_S, LOCK_WAITS = 0.0005, 10_000
"""How long a connection waits for another's lock at a time, and how often."""
REDO_SUFFIX = "-redo"
"""Suffix of the database that holds a copy of the log while the log is rewritten; otherwise it is absent."""
LOG_CHUNK_BYTES = 64 * 1024
"""SQLite's system interface writes less than 128 KiB at once."""
LOG_FLAGS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
REDO_SCHEMA = """
pragma journal_mode = delete;
pragma synchronous = extra;
create table if not exists log (number integer primary key, content blob not null) strict;
"""


HAS_COPY = "select exists (select 1 from log)"


def rewrite_log(path: str) -> None:
    """Rewrite a database's log on disk, exactly as it now reads. Raises `apsw.Error`.

    After a failed sync Linux counts the pages as clean: the log can be read, but is not on disk, and no later sync
    writes it. A power cut while such a log moves into the database would leave half of it there, and no log. So the log
    is copied into a database of its own and written again from the copy; if the start is interrupted, the next one
    finds the copy. No other process may write the database meanwhile (`OpeningLock`).
    """
    log, redo = f"{path}-wal", f"{path}{REDO_SUFFIX}"
    if not os.path.exists(redo) and not (os.path.exists(log) and os.path.getsize(log)):
        return
    make_private(redo)
    with closing(apsw.Connection(redo)) as copy:
        copy.execute(REDO_SCHEMA).fetchall()
        if not copy.execute(HAS_COPY).get and os.path.exists(log):
            with copy, opened_file(log, LOG_FLAGS) as file:
                for start in range(0, size := file.xFileSize(), LOG_CHUNK_BYTES):
                    copy.execute(
                        "insert into log (content) values (?)", (file.xRead(min(LOG_CHUNK_BYTES, size - start), start),)
                    )
        if copy.execute(HAS_COPY).get:
            with opened_file(log, LOG_FLAGS) as file:
                end = 0
                for (content,) in copy.execute("select content from log order by number"):
                    if content is None:  # a disk that lost a part of the copy
                        raise apsw.CorruptError(f"{redo} is damaged")
                    file.xWrite(content, end)
                    end += len(content)
                file.xTruncate(end)
                file.xSync(apsw.SQLITE_SYNC_NORMAL)
            copy.execute("delete from log")
    os.unlink(redo)


@contextmanager
def opened_file(path: str, flags: int) -> Iterator[apsw.VFSFile]:
    """A file through SQLite's own system interface, as all files of the store are."""
    file = apsw.VFSFile("", path, [flags, 0])
    try:
        yield file
    finally:
        file.xClose()


APPLICATION_ID = 0x766D656D
"""Marks a file as a store of voicemem. It is written to the first page before anything else."""
SQLITE_MAGIC, SQLITE_FRACTIONS = b"SQLite format 3\0", bytes([64, 32, 32])
HEADER_BYTES, FRACTIONS_AT, APPLICATION_ID_AT = 100, slice(21, 24), slice(68, 72)
"""The header of an SQLite file, and two constants in it (sqlite.org/fileformat2, section 1.3)."""
OWN_TABLES = {"meta", "streams", "journal"}
SELECT_TABLES = "select name from sqlite_schema where type = 'table'"
INSERT_IDENTITY = "insert or ignore into meta values (?, ?)"
SELECT_IDENTITY = "select name, value from meta"
UPDATE_INCARNATION = "update meta set value = :value where name = 'incarnation'"
IDENTITY, IDENTITY_BYTES = {"incarnation", "cursor_secret"}, 16


def migrations() -> list[Migration]:
    return migrations_of("voicemem.store.sqlite")


def newest_version() -> int:
    return migrations()[-1].version


def refuse_unmarked(path: str) -> None:
    """Raise `CannotStart` for the file of another program, or of a version before the first release.

    The file is only read, and nothing is written beside it. A missing or empty file passes, and so does one that SQLite
    cannot read: SQLite gives the reason when it opens it.
    """
    if not os.path.exists(path) or os.path.getsize(path) < HEADER_BYTES:
        return
    # Through SQLite: the close of a plain `open` would release all POSIX locks that this process has on the file.
    with opened_file(os.path.abspath(path), apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY) as file:
        header = file.xRead(HEADER_BYTES, 0)
    is_sqlite = header.startswith(SQLITE_MAGIC) and header[FRACTIONS_AT] == SQLITE_FRACTIONS
    if is_sqlite and int.from_bytes(header[APPLICATION_ID_AT], "big") != APPLICATION_ID:
        raise CannotStart(not_ours(path))


def mark_new(connection: apsw.Connection) -> None:
    """Mark a new file, before it is switched to WAL mode: so the mark is never in the log alone."""
    if not connection.pragma("page_count"):
        connection.pragma("application_id", APPLICATION_ID)


@cache
def schema_image() -> bytes:
    with closing(apsw.Connection(":memory:")) as fresh:
        mark_new(fresh)
        for step in migrations():
            fresh.execute(step.sql)
        fresh.pragma("user_version", newest_version())
        return fresh.serialize("main")


def copy_schema(connection: apsw.Connection) -> None:
    """Copy the schema into a database in memory, which takes a tenth of the time of creating it."""
    with closing(apsw.Connection(":memory:")) as image:
        image.deserialize("main", schema_image())
        with connection.backup("main", image, "main") as copying:
            copying.step()


def migrate(connection: apsw.Connection, shared_path: str | None = None) -> None:
    """Upgrade the schema to the newest version. Raises `CannotStart` for a database newer than the program.

    `shared_path` is the file when a server may have it open too. A server of an older version would still write by its
    own schema, so an upgrade then needs the lock that such a server holds.
    """
    steps, version = migrations(), connection.pragma("user_version")
    newest = steps[-1].version
    if version > newest:
        raise CannotStart(f"The database has schema version {version}, newer than this program's version {newest}.")
    lock = None
    if shared_path is not None and 0 < version < newest:
        try:
            lock = lock_file(shared_path)
        except CannotStart:
            raise CannotStart(
                f"The server that holds {shared_path} is of an older version; restart it first."
            ) from None
    try:
        for step in steps:
            if step.version > version:
                with connection:
                    connection.execute(step.sql)
                    connection.execute(f"pragma user_version = {step.version}")
        with connection:  # a new file gets its identity
            for name in sorted(IDENTITY):
                connection.execute(INSERT_IDENTITY, (name, secrets.token_bytes(IDENTITY_BYTES)))
    finally:
        if lock is not None:
            os.close(lock)


def run_no_code(connection: apsw.Connection) -> None:
    """Run no triggers and read no views: a store has none, so those in a file come from someone who changed it."""
    for kind in (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, apsw.SQLITE_DBCONFIG_ENABLE_VIEW):
        connection.config(kind, 0)


def open_source(path: str) -> apsw.Connection:
    """Open a store to copy from. Raises `CannotStart` for one of another program or newer version, and `apsw.Error`.

    SQLite opens a read-only file too.
    """
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    with on_failure(connection.close):
        run_no_code(connection)
        connection.set_busy_handler(wait_for_lock)
        version, newest = connection.pragma("user_version"), newest_version()
        if version < 1:
            raise CannotStart(f"{path} is not a voicemem database.")
        if version > newest:
            raise CannotStart(f"{path} has schema version {version}, newer than this program's version {newest}.")
    return connection


OPENING_SUFFIX = ".opening"
WAIT_S, PAUSE_S = 30.0, 0.02
"""The longest wait for a lock: a start takes less, except to upgrade a large file; a command takes a second or two."""


class OpeningLock:
    """The lock `PATH.opening`, which every process that opens the file for writing takes first.

    A server holds it alone while it starts, a command while it makes or upgrades the file; a command then shares it
    with other commands until it ends. SQLite's own locks do not suffice: the log is written again beneath SQLite, where
    nothing would keep another process from committing into it or moving it into the database at the same time. And
    two processes that make a schema at once, or change to WAL mode, fail each other. The kernel releases the lock of a
    process that was killed.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor: int | None = None

    def hold(self, alone: bool) -> None:
        """Wait until no other process holds it, or holds it alone. Raises `CannotStart`.

        A change of the kind may let another in between, so check the file again once it is held alone.
        """
        kind, until = fcntl.LOCK_EX if alone else fcntl.LOCK_SH, time.monotonic() + WAIT_S
        while True:
            if self.descriptor is None:
                self.descriptor = open_lock_file(self.path, OPENING_SUFFIX)
                if os.geteuid() == 0:  # the server, which owns the store, must be able to open it
                    with suppress(OSError):
                        owner = os.stat(self.path)
                        os.fchown(self.descriptor, owner.st_uid, owner.st_gid)
            try:
                fcntl.flock(self.descriptor, kind | fcntl.LOCK_NB)
                if os.fstat(self.descriptor).st_nlink:
                    return
                self.release()  # a restore that was refused has removed the file meanwhile
                continue
            except BlockingIOError:
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)  # two processes that share it would wait for each other
            if time.monotonic() >= until:
                self.release()
                raise CannotStart(f"Another process is opening {self.path}, or works on it; try again when it is done.")
            time.sleep(PAUSE_S)

    def release(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def is_complete(path: str) -> bool:
    """Return whether a file has the newest schema, an identity, and no interrupted start: it can be used as it is."""
    if not (os.path.exists(path) and os.path.getsize(path)) or os.path.exists(f"{path}{REDO_SUFFIX}"):
        return False
    with suppress(apsw.Error), closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
        connection.set_busy_handler(wait_for_lock)
        tables = {name for (name,) in connection.execute(SELECT_TABLES)}
        same = connection.pragma("user_version") == newest_version() and tables >= OWN_TABLES
        return same and set(dict(connection.execute(SELECT_IDENTITY))) >= IDENTITY
    return False


def trouble_of(error: Exception) -> str:
    """Return the reason why a file cannot be used, for an operator."""
    return "its disk is full" if isinstance(error, apsw.FullError) else type(error).__name__


def wait_for_lock(waits: int) -> bool:
    """Wait for another connection's lock: SQLite's own waits grow to 100 ms, which all acks would wait for."""
    time.sleep(LOCK_WAIT_S)
    return waits < LOCK_WAITS


def truncate_log(path: str) -> bool:
    """Move everything from the log into the file, and truncate the log; False while a reader is using it.

    The passive checkpoints, of which the second is short, do the work while the writer continues; the last one, which
    blocks the writer, has next to nothing left to do. It never waits for a reader, since the writer would wait too.
    Raises `StoreUnavailable`, and `apsw.IOError` when the disk failed to sync.
    """
    try:
        with closing(apsw.Connection(path)) as connection:
            connection.pragma("user_version")  # a connection does not notice the log before its first read
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError:
        return False
    except apsw.Error as error:
        if getattr(error, "extendedresult", None) in SYNC_ERRORS:
            raise
        raise StoreUnavailable(f"Deleted content cannot be cleared: {trouble_of(error)}.") from None
    return True
