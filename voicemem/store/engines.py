"""Chooses the engine by the scheme of the setting `store`."""

from __future__ import annotations

from voicemem.config.service import MEMORY_STORE, POSTGRESQL_PREFIXES, SQLITE_PREFIX
from voicemem.errors import CannotStart
from voicemem.store.memory_budget import MemoryBudget
from voicemem.store.port import Store
from voicemem.store.sqlite.store import MemoryStore, SqliteStore


def open_store(url: str, exclusive: bool = True, budget: MemoryBudget | None = None, upgrade: bool = False) -> Store:
    """Open the store of a setting, `sqlite:PATH`, `memory:` or `postgresql://…`. Raises `CannotStart`.

    Without `exclusive` a file may be open in a server at the same time. `budget` bounds what is cached of it.
    With `upgrade` a PostgreSQL database of an older program is brought to this version; files always are.
    """
    if url == MEMORY_STORE:
        return MemoryStore(budget)
    if url.startswith(POSTGRESQL_PREFIXES):
        return open_postgresql(url, budget, upgrade)
    return SqliteStore(url.removeprefix(SQLITE_PREFIX), exclusive, budget)


def open_postgresql(url: str, budget: MemoryBudget | None, upgrade: bool) -> Store:
    """Open a PostgreSQL database, whose driver is an extra. Raises `CannotStart`."""
    try:
        from voicemem.store.postgresql.store import PostgresqlStore
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise CannotStart(
            "PostgreSQL needs the extra postgres: pip install 'voicemem-core[server,postgres]'."
        ) from None
    return PostgresqlStore(url, budget, upgrade)
