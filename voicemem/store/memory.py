"""A store that touches no disk: the embedded store on a database in memory, gone when the process ends."""

from __future__ import annotations

from voicemem.store.sqlite.database import IN_MEMORY
from voicemem.store.sqlite.store import SqliteStore


class MemoryStore(SqliteStore):
    """A `voicemem.store.base.Store` in memory."""

    def __init__(self) -> None:
        super().__init__(IN_MEMORY)
