"""Chooses the engine by the scheme of the setting `store`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from voicemem.config.service import MEMORY_STORE, POSTGRESQL_PREFIXES, SQLITE_PREFIX
from voicemem.errors import CannotStart
from voicemem.runtime import MemoryBudget
from voicemem.store.copying import CopyEnd, why_not_served
from voicemem.store.port import Store
from voicemem.store.sqlite.copying import SqliteCopy
from voicemem.store.sqlite.store import InMemoryStore, SqliteStore


def open_store(
    url: str,
    exclusive: bool = True,
    budget: MemoryBudget | None = None,
    unfinished: bool = False,
    make: bool = True,
) -> Store:
    """Open the store of a setting, `sqlite:PATH`, `memory:` or `postgresql://…`. Raises `CannotStart`.

    Without `exclusive`, a file may be open in a server at the same time. `budget` bounds the caches.
    A missing store is created with `make`, and refused without.
    A store that was moved to another engine is refused, and so is an unfinished copy, except with `unfinished`.
    """
    if url == MEMORY_STORE:
        return InMemoryStore(budget)
    if url.startswith(POSTGRESQL_PREFIXES):
        with explaining_extra():
            from voicemem.store.postgresql.store import PostgresqlStore
        database = PostgresqlStore(url, budget, make=make)
        refuse_copies(database.database.identity, unfinished, database.database.close)
        return database
    file = SqliteStore(url.removeprefix(SQLITE_PREFIX), exclusive, budget, make)
    refuse_copies(file.database.identity, unfinished, file.database.close)
    return file


def migrate_store(url: str) -> tuple[int, int]:
    """Create the schema of a PostgreSQL database or upgrade it; return its versions before (0: none) and now.

    Raises `CannotStart`.
    """
    with explaining_extra():
        from voicemem.store.postgresql.store import PostgresqlStore
    database = PostgresqlStore(url, upgrade=True).database
    refuse_copies(database.identity, False, database.close)
    database.close()
    return database.version_before, int(database.identity["schema"])


def open_copy_end(url: str, is_target: bool, only_look: bool) -> CopyEnd:
    """Open a store as an end of a copy; with `only_look` it stays as it is. Raises `CannotStart`."""
    if url.startswith(POSTGRESQL_PREFIXES):
        with explaining_extra():
            from voicemem.store.postgresql.copying import PostgresqlCopy
        return PostgresqlCopy(url, is_target, only_look)
    return SqliteCopy(url.removeprefix(SQLITE_PREFIX), is_target, only_look)


def refuse_copies(values: Mapping[str, bytes], unfinished: bool, close: Callable[[], None]) -> None:
    reason = None if unfinished else why_not_served(values)
    if reason is not None:
        close()
        raise CannotStart(reason)


@contextmanager
def explaining_extra() -> Iterator[None]:
    """Raise `CannotStart` if PostgreSQL's driver is missing, which is an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise CannotStart(
            "PostgreSQL needs the extra postgres: pip install 'voicemem-core[server,postgres]'."
        ) from None
