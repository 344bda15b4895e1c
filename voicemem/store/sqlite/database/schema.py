"""The schema of the file: its mark, numbered migrations, and which databases are refused (docs/storage.md)."""

from __future__ import annotations

import os
import secrets

import apsw

from voicemem.errors import CannotStart
from voicemem.store.sqlite.database.files import lock_file
from voicemem.store.upkeep import Migration, migrations_of, not_ours

APPLICATION_ID = 0x766D656D
"""Marks a file as a store of voicemem's. It is in the first page before anything else is."""
SQLITE_MAGIC, SQLITE_FRACTIONS = b"SQLite format 3\0", bytes([64, 32, 32])
HEADER_BYTES, FRACTIONS_AT, APPLICATION_ID_AT = 100, slice(21, 24), slice(68, 72)
"""The header of a file of SQLite's, and two constants in it (sqlite.org/fileformat2, section 1.3)."""
OWN_TABLES = {"meta", "streams", "journal"}
"""Tables that every version of a voicemem database has."""
SELECT_TABLES = "select name from sqlite_schema where type = 'table'"
INSERT_IDENTITY = "insert or ignore into meta values (?, ?)"
SELECT_IDENTITY = "select name, value from meta"
UPDATE_INCARNATION = "update meta set value = ? where name = 'incarnation'"
IDENTITY, IDENTITY_BYTES = {"incarnation", "cursor_secret"}, 16


def migrations() -> list[Migration]:
    """Every migration, in order."""
    return migrations_of("voicemem.store.sqlite")


def newest_version() -> int:
    """The version that this program brings every database to."""
    return migrations()[-1].version


def tables_of(connection: apsw.Connection) -> set[str]:
    return {name for (name,) in connection.execute(SELECT_TABLES)}


def refuse_unmarked(path: str) -> None:
    """Raise `CannotStart` for the file of another program, or of a version before the first release.

    The file is only read, and nothing is written beside it. A file that is missing or empty passes, and so does one
    that SQLite cannot read: it gives the reason when it opens it.
    """
    if not os.path.exists(path) or os.path.getsize(path) < HEADER_BYTES:
        return
    # Through SQLite: the close of a plain `open` would release all POSIX locks that this process has on the file.
    file = apsw.VFSFile("", os.path.abspath(path), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        header = file.xRead(HEADER_BYTES, 0)
    finally:
        file.xClose()
    is_sqlite = header.startswith(SQLITE_MAGIC) and header[FRACTIONS_AT] == SQLITE_FRACTIONS
    if is_sqlite and int.from_bytes(header[APPLICATION_ID_AT], "big") != APPLICATION_ID:
        raise CannotStart(not_ours(path))


def mark_new(connection: apsw.Connection) -> None:
    """Mark a new file, before it is switched to WAL mode: so the mark is never in the log alone."""
    if not connection.pragma("page_count"):
        connection.pragma("application_id", APPLICATION_ID)


def migrate(connection: apsw.Connection, shared_path: str | None = None) -> None:
    """Bring the schema to the newest version. Raises `CannotStart` for a database newer than the program.

    `shared_path` is the file when a server may have it open too. A server of an older version would go on writing by
    its own schema, so an upgrade then needs the lock that such a server holds.
    """
    steps, version = migrations(), version_of(connection)
    newest = steps[-1].version
    if version > newest:
        raise CannotStart(f"The database has schema version {version}, newer than this program's version {newest}.")
    lock = lock_for_upgrade(shared_path) if shared_path is not None and 0 < version < newest else None
    try:
        apply_migrations(connection, [step for step in steps if step.version > version])
    finally:
        if lock is not None:
            os.close(lock)


def version_of(connection: apsw.Connection) -> int:
    """The schema version of a file; 0 of one without a schema."""
    version: int = connection.pragma("user_version")
    return version


def lock_for_upgrade(path: str) -> int:
    try:
        return lock_file(path)
    except CannotStart:
        raise CannotStart(f"The server that holds {path} is of an older version; restart it first.") from None


def apply_migrations(connection: apsw.Connection, steps: list[Migration]) -> None:
    """Apply each migration in a transaction of its own, and give a new file its identity."""
    for step in steps:
        with connection:
            connection.execute(step.sql)
            connection.execute(f"pragma user_version = {step.version}")
    with connection:
        for name in sorted(IDENTITY):
            connection.execute(INSERT_IDENTITY, (name, secrets.token_bytes(IDENTITY_BYTES)))
