"""Streams whose memory could not be made, so that no later read or start tries it again."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict

from voicemem.store.database import Connection, Port, upsert, writes
from voicemem.store.stream_changes import STREAM_COLUMNS, to_stream
from voicemem.store.streams import SESSION_KIND, Stream

QuarantineReason = Literal["failed", "too_slow", "too_large", "damaged"]


class QuarantineEntry(Struct, frozen=True):
    """An entry of the quarantine: the memory of a stream could not be made, and `version` does not try it again.

    `version` is that of the program and its fold. `damaged` says that an entry of the journal is.
    """

    reason: QuarantineReason
    since_ms: int
    version: str


SELECT_STREAM = f"select {STREAM_COLUMNS} from streams s where key = :key and state <> 'erased'"
SELECT_ENTRY = """
    select q.reason, q.since_ms, q.version from quarantined q join streams s on s.key = q.stream
    where q.stream = :key and q.version = :version and s.state <> 'erased'
"""
SAVE_ENTRY = upsert("quarantined", ["stream"], QuarantineEntry.__struct_fields__)
DELETE_ENTRY = "delete from quarantined where stream = :key"
MAKE_DUE = """
    update deliveries set due_ms = case when due_ms > :now_ms then :now_ms else due_ms end, waiting_for = null
    where stream = :key and waiting_for is not null
"""
ENTRIES = "quarantined q join streams s on s.key = q.stream where q.version = :version and s.state <> 'erased'"
COUNT_ENTRIES = f"select count(*) from {ENTRIES}"
SELECT_SESSIONS = f"""
    select {STREAM_COLUMNS} from {ENTRIES} and s.kind = '{SESSION_KIND}'
    order by q.since_ms desc, s.key desc limit :limit
"""


class Quarantine(Port):
    """Streams whose memory could not be made. Entries of another `version` are ignored."""

    @writes
    def add(self, connection: Connection, key: int, entry: QuarantineEntry) -> Stream | None:
        """Quarantine a stream; return its row, or None if it is erased or this version has quarantined it already."""
        row = connection.row(f"{SELECT_STREAM} for share of s", key=key)
        if row is None or connection.row(SELECT_ENTRY, key=key, version=entry.version) is not None:
            return None
        connection.execute(SAVE_ENTRY, stream=key, **asdict(entry))
        return to_stream(row)

    async def find_quarantined(self, key: int, version: str) -> QuarantineEntry | None:
        """Return the entry of a stream; None without one, and for an erased stream. Called at each first read."""
        return await self.database.find(QuarantineEntry, SELECT_ENTRY, key=key, version=version)

    @writes
    def release(self, connection: Connection, key: int, now_ms: int) -> None:
        """Release a stream from quarantine, and make the deliveries that wait for it due."""
        connection.execute(DELETE_ENTRY, key=key)
        connection.execute(MAKE_DUE, key=key, now_ms=now_ms)

    async def count_quarantined(self, version: str) -> int:
        return await self.database.count(COUNT_ENTRIES, version=version)

    async def list_quarantined(self, version: str, limit: int) -> list[Stream]:
        """Return the quarantined sessions, the newest entry first."""
        return [to_stream(row) for row in await self.database.rows(SELECT_SESSIONS, version=version, limit=limit)]
