"""Chooses the engine by the scheme of the setting `store`."""

from __future__ import annotations

from voicemem.config.service import MEMORY_STORE, SQLITE_PREFIX
from voicemem.store.memory_budget import MemoryBudget
from voicemem.store.port import Store
from voicemem.store.sqlite.store import MemoryStore, SqliteStore


def open_store(url: str, exclusive: bool = True, budget: MemoryBudget | None = None) -> Store:
    """Open the store of a setting, `sqlite:PATH` or `memory:`. Raises `CannotStart`.

    Without `exclusive` a file may be open in a server at the same time. `budget` bounds what is cached of it.
    """
    if url == MEMORY_STORE:
        return MemoryStore(budget)
    return SqliteStore(url.removeprefix(SQLITE_PREFIX), exclusive, budget)
