"""PostgreSQL's side of the seam (`voicemem.store.database`): the connections of this process, and how jobs run on them.

psycopg's connections block, so each belongs to one thread at a time. There are three kinds: for appends
(`append_connections`), for other transactions, and for reads.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from itertools import count
from typing import Literal, TypeVar

import psycopg

from voicemem.config.service import shown_store
from voicemem.errors import CannotStart, Refused, StoreUnavailable
from voicemem.runtime import MemoryBudget
from voicemem.store.append_rules import AppendResult, Batch
from voicemem.store.copying import why_not_served
from voicemem.store.database import CLOSED, SAVE_META, ConnectionFailures, Database, KeySource
from voicemem.store.postgresql import connection as postgresql
from voicemem.store.postgresql import failover, schema
from voicemem.store.postgresql.append_connections import AppendConnection
from voicemem.store.postgresql.connection import PostgresqlConnection, Server
from voicemem.store.postgresql.rows import ADD_BYTES, CachedVersions, Rows, StoredBytes
from voicemem.store.postgresql.writer import Pool, Reader, Writer
from voicemem.store.records import Quotas
from voicemem.store.stream_changes import BatchAppend
from voicemem.store.upkeep import no_store, on_failure

T = TypeVar("T")
LOG = logging.getLogger("voicemem.nodes")
LOOK_AGAIN_S = 86_400.0
"""How often partitions are made, so that a process may run for years."""
JOIN_LANES = """
    with alive as (select token from nodes where token = :node for share)
    update lanes set node = alive.token from alive where lanes.token = :token
"""
SELECT_NOW = "select (extract(epoch from clock_timestamp()) * 1000)::bigint"


class PostgresqlDatabase(Database):
    engine = "postgresql"
    is_exclusive = False
    commit_shards = postgresql.APPEND_CONNECTIONS

    def __init__(self, url: str, budget: MemoryBudget | None = None, upgrade: bool = False, make: bool = True) -> None:
        """Connect, and `make` the schema in an empty database; with `upgrade` also upgrade an older one.

        Raises `CannotStart`.
        """
        self.url = url
        self.token = secrets.token_bytes(8)
        """Names the lanes of this object; no two objects share one."""
        self.node: str | None = None
        """The token of the node that this process is, once it has been registered."""
        self.quotas = Quotas()
        self.stored_bytes = StoredBytes()
        self.count_quota_refusal: Callable[[str], None] = lambda quota: None
        _, self.is_pooled, self.trusted = postgresql.parse_options(url)
        self.generation = 1
        """Raised by `settle`: earlier connections and cached versions are dropped."""
        self.displaced = False
        """True if nothing is read or written until `settle`, since the store may be another incarnation."""
        self.troubles = ConnectionFailures()
        self.closed = False
        try:
            with closing(postgresql.connect(url)) as connection:
                if not make and not schema.check_version(connection, upgrade):
                    raise CannotStart(no_store(shown_store(url)))
                self.version_before, self.identity = schema.migrate(connection, upgrade)
                self.server = connection.server
                (now_ms,) = connection.one(SELECT_NOW)
                schema.ensure_partitions(connection, now_ms)
        except psycopg.Error as error:
            raise CannotStart(f"PostgreSQL cannot be used: {postgresql.reason(error)}") from None
        self.keys = KeySource(now_ms, time.monotonic)
        self.partitions_due = time.monotonic() + LOOK_AGAIN_S
        self.cached_versions = CachedVersions(budget or MemoryBudget())
        appending = [Writer(self, number) for number in range(self.commit_shards)]
        self.append_connections = [AppendConnection(writer, self.cached_versions) for writer in appending]
        lanes = count(self.commit_shards)
        self.writers = Pool("voicemem-writer", [Writer(self, next(lanes)) for _ in range(postgresql.WRITERS)])
        registrars = [Writer(self, next(lanes), needs_node=False) for _ in range(postgresql.REGISTRARS)]
        self.registrars = Pool("voicemem-registrar", registrars)
        self.readers = Pool("voicemem-reader", [Reader(self) for _ in range(postgresql.READERS)])

    def refuse_unready(self) -> None:
        if self.closed or self.displaced:
            raise StoreUnavailable(CLOSED if self.closed else failover.DISPLACED)

    def connect(self) -> PostgresqlConnection:
        """Return a new connection to the server of this process. Raises `StoreUnavailable`, `psycopg.Error`.

        If the store may be another incarnation, a node does nothing more until `settle`.
        """
        generation = self.generation
        connection = open_connection(self.url)
        with on_failure(connection.close):
            connection.generation = generation
            self.compare(connection)
            if connection.generation != self.generation:
                raise StoreUnavailable(failover.DISPLACED)  # it was settled meanwhile: its caller knows the old store
        return connection

    def connect_for(self, what: Reader | Writer, verb: Literal["read", "written"]) -> PostgresqlConnection:
        """Connect for a reader or writer, which counts as failing if that is not possible."""
        try:
            return self.connect()
        except (psycopg.Error, StoreUnavailable) as error:
            refusal = error if isinstance(error, StoreUnavailable) else postgresql.unavailable(error, verb)
            self.troubles.begin(what, refusal.detail)
            raise

    def compare(self, connection: PostgresqlConnection) -> None:
        """Raise `StoreUnavailable` if a connection leads to another server, or to one that lacks commits."""
        self.refuse_old_primary(connection)
        newest = self.cached_versions, failover.COMPARED_VERSIONS
        if connection.server == self.server and not failover.misses_any(connection, *newest):
            return
        if self.node is None:  # no other has to know
            self.follow(connection.server, failover.identity_of(connection))
            connection.generation = self.generation
            return
        self.displaced = True
        self.troubles.begin(failover.DISPLACED, failover.DISPLACED)
        raise StoreUnavailable(failover.DISPLACED)

    def compare_again(self, connection: PostgresqlConnection) -> None:
        """Compare a connection to a pooler again: another server may answer behind it by now."""
        if self.is_pooled:
            connection.server = postgresql.find_server(connection)
            self.compare(connection)

    def refuse_old_primary(self, connection: PostgresqlConnection) -> None:
        if connection.server is not None and self.server is not None and self.server.is_after(connection.server):
            raise StoreUnavailable(failover.OLD_PRIMARY)

    def run_settle(self, free_everything: Callable[[PostgresqlConnection], None]) -> None:
        """Continue with the server that answers now. Raises `StoreUnavailable`."""
        try:
            with closing(open_connection(self.url)) as connection:
                self.refuse_old_primary(connection)
                is_missing = failover.misses_any(connection, self.cached_versions)
                with connection.transaction():
                    connection.execute(failover.LOCK_META)
                    if not failover.adopt(connection, self.trusted, is_missing):
                        free_everything(connection)
                    identity = failover.identity_of(connection)
                self.follow(connection.server, identity)
        except psycopg.Error as error:
            raise postgresql.unavailable(error, "written") from None

    def follow(self, server: Server | None, identity: dict[str, bytes]) -> None:
        self.server, self.identity = server, identity
        self.generation += 1
        self.cached_versions.clear()

    async def write(self, job: Callable[[PostgresqlConnection], T]) -> T:
        self.refuse_unready()
        generation = self.generation
        return await self.writers.run(lambda writer: writer.run(job, generation))

    async def read(self, job: Callable[[PostgresqlConnection], T]) -> T:
        self.refuse_unready()
        return await self.readers.run(lambda reader: reader.read(job))

    # Nodes

    @property
    def is_displaced(self) -> bool:
        return self.displaced

    async def settle(self, free: Callable[[PostgresqlConnection], None]) -> None:
        # Not one of the threads of jobs: these wait for this, to find out what became of their commits.
        await asyncio.to_thread(self.run_settle, free)
        self.displaced = False  # on the loop, so that nothing is read before the caller has returned
        self.troubles.end(failover.DISPLACED)

    def adopt(self, connection: PostgresqlConnection) -> bool:
        connection.execute(failover.LOCK_META)
        if refusal := why_not_served(failover.identity_of(connection)):
            raise StoreUnavailable(refusal)  # it was moved while this node was away
        return failover.adopt(connection, self.trusted, is_missing=False)

    def renew_incarnation(self, connection: PostgresqlConnection) -> None:
        connection.execute(failover.LOCK_META)
        failover.renew_incarnation(connection)
        if connection.server is not None:
            connection.execute(SAVE_META, name="server", value=connection.server.text.encode())

    async def register_node(self, token: str, job: Callable[[PostgresqlConnection], None]) -> None:
        def register(connection: PostgresqlConnection) -> dict[str, bytes]:
            job(connection)
            return failover.identity_of(connection)

        self.identity = await self.register(register)
        self.node = token  # from now on lanes are opened for it
        await self.register(lambda connection: connection.execute(JOIN_LANES, node=token, token=self.token))
        self.cached_versions.clear()

    async def register(self, job: Callable[[PostgresqlConnection], T]) -> T:
        """Run a job as `write` does, also while this process is not a node. Raises `StoreUnavailable`."""
        return await self.registrars.run(lambda registrar: registrar.run(job))

    async def keep_up(self) -> None:
        await self.save_stored_bytes()
        if time.monotonic() >= self.partitions_due:
            self.partitions_due = time.monotonic() + LOOK_AGAIN_S
            with suppress(psycopg.Error, StoreUnavailable):  # it is away; there are partitions for a year
                await asyncio.to_thread(self.create_due_partitions)

    async def save_stored_bytes(self) -> None:
        """Add to the projects' bytes what this process has counted. Raises `StoreUnavailable`."""
        counted = self.stored_bytes.take()
        if counted:
            try:
                values = {"projects": list(counted), "sizes": list(counted.values())}
                rows = await self.register(lambda connection: connection.rows(ADD_BYTES, **values))
                self.stored_bytes.known.update(rows)
            except StoreUnavailable:
                self.stored_bytes.give_back(counted)
                raise

    def create_due_partitions(self) -> None:
        """Make the journal's partitions of further months; log those that cannot be made."""
        with closing(self.connect()) as connection:
            try:
                schema.ensure_partitions(connection, self.keys.now_ms())
            except CannotStart as error:
                LOG.error("%s", error.detail)

    # Appends

    async def append(self, batches: Sequence[Batch], now_ms: int) -> list[AppendResult]:
        results: dict[int, AppendResult] = {}
        for shard in range(self.commit_shards):
            share = [index for index, batch in enumerate(batches) if batch.key % self.commit_shards == shard]
            if any(self.append_connections[shard].may_take(batches[index]) for index in share):
                tried = await self.try_append([batches[index] for index in share], now_ms)
                results |= {index: one for index, one in zip(share, tried, strict=True) if one is not None}
        left = sorted(range(len(batches)) - results.keys(), key=lambda index: batches[index].key)
        if left:
            results |= zip(left, await self.append_slowly([batches[index] for index in left], now_ms), strict=True)
        return [results[index] for index in range(len(batches))]

    async def try_append(self, batches: Sequence[Batch], now_ms: int) -> Sequence[AppendResult | None]:
        return await self.append_connections[batches[0].key % self.commit_shards].append(batches)

    async def append_slowly(self, batches: Sequence[Batch], now_ms: int) -> list[AppendResult]:
        """Append batches, by key, in a transaction that locks their streams, and examines each event."""
        return await self.write(lambda connection: [append_one(connection.streams, batch, now_ms) for batch in batches])

    # Trouble, and the end

    async def try_again(self, job: Callable[[PostgresqlConnection], None]) -> None:
        """Try the failing connections that are not in use, until one fails again."""
        with suppress(StoreUnavailable):
            self.refuse_unready()
            for connection in self.append_connections:
                await connection.try_again(job)
            for pool in (self.registrars, self.writers):
                await pool.try_again(lambda writer: writer.run(job))
            await self.readers.try_again(lambda reader: reader.read(lambda connection: None))

    def close(self) -> None:
        self.closed = True
        for connection in self.append_connections:
            connection.close()
        for pool in (self.writers, self.readers, self.registrars):
            pool.close()


def open_connection(url: str) -> PostgresqlConnection:
    """Return a connection. Raises `StoreUnavailable`, also if a start would be refused, and `psycopg.Error`."""
    try:
        return postgresql.connect(url)
    except CannotStart as error:
        raise StoreUnavailable(error.detail) from None


def append_one(rows: Rows, batch: Batch, now_ms: int) -> AppendResult:
    """Append a batch event by event. Raises `Refused` (`unknown_session`)."""
    stream = rows.stream(batch.key)
    if stream is None:
        raise Refused("unknown_session")
    producer, full = rows.producer(batch.key, batch.producer), rows.is_full(stream.project)
    return BatchAppend(rows, stream, producer, batch, now_ms, full).run()
