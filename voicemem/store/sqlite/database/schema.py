"""The schema of the file: numbered migrations, and which databases are refused (docs/storage.md)."""

from __future__ import annotations

import os
import secrets

import apsw

from voicemem.errors import CannotStart
from voicemem.store.sqlite.database.files import lock_file
from voicemem.store.upkeep import Migration, migrations_of

OWN_TABLES = {"meta", "streams", "journal"}
"""Tables that every version of a voicemem database has."""
STEPS_BEFORE = 7
"""Earlier programs made in seven steps what step 1 makes now; a file of theirs has this version and none of step 2."""
TABLE_OF_STEP_2 = "set_aside"
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


def refuse_foreign(connection: apsw.Connection, path: str) -> None:
    """Raise `CannotStart` for a database of another program, before anything is written into it."""
    tables = tables_of(connection)
    if tables and not tables >= OWN_TABLES:
        raise CannotStart(f"{path} is a database of another program.")


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
    """How many of today's steps the file has. Raises `CannotStart` for one in the middle of the earlier steps."""
    version: int = connection.pragma("user_version")
    if not 1 < version <= STEPS_BEFORE or TABLE_OF_STEP_2 in tables_of(connection):
        return version
    if version < STEPS_BEFORE:
        raise CannotStart(f"The database is of an early version {version}, which this program cannot read.")
    return 1


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
