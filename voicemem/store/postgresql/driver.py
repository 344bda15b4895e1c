"""PostgreSQL's side of the seam (`voicemem.store.database`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from voicemem.errors import Refused
from voicemem.store.admission import AppendResult, Batch
from voicemem.store.batch_append import BatchAppend
from voicemem.store.postgresql.database.connection import APPEND_CONNECTIONS
from voicemem.store.postgresql.database.pool import Database
from voicemem.store.postgresql.journal.rows import Rows
from voicemem.store.postgresql.statements import PostgresqlConnection
from voicemem.store.streams import Stream

T = TypeVar("T")


class PostgresqlDatabase:
    """A `voicemem.store.database.Database` on one PostgreSQL database."""

    engine = "postgresql"
    is_exclusive = False

    def __init__(self, database: Database) -> None:
        self.database = database

    async def write(self, job: Callable[[PostgresqlConnection], T]) -> T:
        return await self.database.write(lambda rows: job(PostgresqlConnection(rows.session, rows)))

    async def read(self, job: Callable[[PostgresqlConnection], T]) -> T:
        return await self.database.read(lambda session: job(PostgresqlConnection(session)))

    read_inline = scan = read

    commit_shards = APPEND_CONNECTIONS

    async def append(self, batches: Sequence[Batch], now_ms: int) -> list[AppendResult]:
        results: dict[int, AppendResult] = {}
        for shard in range(APPEND_CONNECTIONS):
            share = [index for index, batch in enumerate(batches) if batch.key % APPEND_CONNECTIONS == shard]
            if any(self.database.append_connections[shard].may_take(batches[index]) for index in share):
                tried = await self.try_append([batches[index] for index in share], now_ms)
                results |= {index: one for index, one in zip(share, tried, strict=True) if one is not None}
        left = sorted(range(len(batches)) - results.keys(), key=lambda index: batches[index].key)
        if left:
            results |= zip(left, await self.append_slowly([batches[index] for index in left], now_ms), strict=True)
        return [results[index] for index in range(len(batches))]

    async def try_append(self, batches: Sequence[Batch], now_ms: int) -> Sequence[AppendResult | None]:
        return await self.database.append_connections[batches[0].key % APPEND_CONNECTIONS].append(batches)

    async def append_slowly(self, batches: Sequence[Batch], now_ms: int) -> list[AppendResult]:
        """Append batches, by key, in a transaction that locks their streams, and looks at each event."""
        return await self.database.write(lambda rows: [append_one(rows, batch, now_ms) for batch in batches])

    def find_kept_stream(self, project: str, kind: str, name: str) -> Stream | None:
        return None

    @property
    def identity(self) -> dict[str, bytes]:
        return self.database.identity


def append_one(rows: Rows, batch: Batch, now_ms: int) -> AppendResult:
    """Append a batch event by event. Raises `Refused` (`unknown_session`)."""
    stream = rows.stream(batch.key)
    if stream is None:
        raise Refused("unknown_session")
    producer, full = rows.producer(batch.key, batch.producer), rows.is_full(stream.project)
    return BatchAppend(rows, stream, producer, batch, now_ms, full).run()
