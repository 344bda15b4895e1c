"""PostgreSQL's side of the seam (`voicemem.store.database`): the connections of this process, and how jobs run on them.

psycopg's connections block, so each belongs to one thread at a time. There are three kinds: those on which
appends go (`append_connections`), those of other transactions, and those that only read.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal, TypeVar

import psycopg

from voicemem.config.service import shown_store
from voicemem.errors import CannotStart, Refused, StoreUnavailable
from voicemem.store import database
from voicemem.store.admission import AppendResult, Batch
from voicemem.store.batch_append import BatchAppend
from voicemem.store.copying import why_not_served
from voicemem.store.keys import KeySource
from voicemem.store.memory_budget import MemoryBudget
from voicemem.store.postgresql.append_connections import AppendConnection
from voicemem.store.postgresql.connection import (
    APPEND_CONNECTIONS,
    READERS,
    WRITERS,
    PostgresqlConnection,
    Server,
    Session,
    connect,
    find_server,
    parse_options,
    refusal_of,
    unavailable,
    why,
)
from voicemem.store.postgresql.rows import CachedVersions, Rows, StoredBytes, add_bytes
from voicemem.store.postgresql.schema import (
    COMPARED_VERSIONS,
    DISPLACED,
    LOCK_META,
    OLD_PRIMARY,
    Lineage,
    Upkeep,
    adopt,
    check_version,
    ensure_partitions,
    identity_of,
    migrate,
    misses_any,
    note_server,
    renew_incarnation,
)
from voicemem.store.postgresql.writer import Idle, Reader, Writer
from voicemem.store.records import Quotas
from voicemem.store.troubles import Troubles
from voicemem.store.upkeep import no_store

T = TypeVar("T")
CLOSED = "The store was closed."
JOIN_LANES = """
    with alive as (select token from nodes where token = $1 for share)
    update lanes set node = alive.token from alive where lanes.token = $2
"""
SELECT_NOW = "select (extract(epoch from clock_timestamp()) * 1000)::bigint"


class Database:
    """One PostgreSQL database. A job is a function of the rows of its transaction, or of a session that reads."""

    def __init__(self, url: str, budget: MemoryBudget | None = None, upgrade: bool = False, make: bool = True) -> None:
        """Connect, and `make` the schema in an empty database; with `upgrade` also bring an older one to this version.

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
        _, self.is_pooled, self.trusted = parse_options(url)
        self.generation = 1
        """Raised by `settle`: connections and cached_versions of before are given up."""
        self.displaced = False
        """Whether nothing is read or written until `settle`, since the store may not be what it was."""
        self.troubles = Troubles()
        self.closed = False
        try:
            session = connect(url)
            try:
                if not make and not check_version(session, upgrade):
                    raise CannotStart(no_store(shown_store(url)))
                (self.version_before, self.identity), self.server = migrate(session, upgrade), session.server
                (now_ms,) = session.one(SELECT_NOW)
                ensure_partitions(session, now_ms)
            finally:
                session.close()
        except psycopg.Error as error:
            raise CannotStart(f"PostgreSQL cannot be used: {reason(error)}") from None
        self.keys = KeySource(now_ms, time.monotonic)
        self.upkeep = Upkeep()
        self.cached_versions = CachedVersions(budget or MemoryBudget())
        self.append_connections = [
            AppendConnection(Writer(self, number), self.cached_versions) for number in range(APPEND_CONNECTIONS)
        ]
        self.idle_writers: Idle[Writer] = Idle()
        for number in range(APPEND_CONNECTIONS, APPEND_CONNECTIONS + WRITERS):
            self.idle_writers.put(Writer(self, number))
        self.registrar = Writer(self, APPEND_CONNECTIONS + WRITERS, needs_node=False)
        self.registering = threading.Lock()
        self.writing = ThreadPoolExecutor(WRITERS, "voicemem-writer")
        self.readers = ThreadPoolExecutor(READERS, "voicemem-reader")
        self.idle_readers: Idle[Reader] = Idle()
        for _ in range(READERS):
            self.idle_readers.put(Reader(self))

    def refuse_unready(self) -> None:
        """Raise `StoreUnavailable` while nothing may be read or written."""
        if self.closed or self.displaced:
            raise StoreUnavailable(CLOSED if self.closed else DISPLACED)

    def connect(self) -> Session:
        """A new connection, to the server that this process works with. Raises `StoreUnavailable`, `psycopg.Error`.

        Where the store may not be what it was, a node does nothing more until it has settled that (`settle`).
        """
        generation = self.generation
        session = open_session(self.url)
        try:
            session.generation = generation
            self.compare(session)
            if session.generation != self.generation:
                raise StoreUnavailable(DISPLACED)  # it was settled meanwhile: its caller knows the old store
        except BaseException:
            session.close()
            raise
        return session

    def connect_for(self, what: Reader | Writer, verb: Literal["read", "written"]) -> Session:
        """The same for a connection that is kept, and in trouble if it does not come about."""
        try:
            return self.connect()
        except (psycopg.Error, StoreUnavailable) as error:
            told = error if isinstance(error, StoreUnavailable) else unavailable(error, verb)
            self.troubles.begin(what, told.detail)
            raise

    def compare(self, session: Session) -> None:
        """Raise `StoreUnavailable` where a connection leads to another server, or to one that lacks anything."""
        self.refuse_old_primary(session)
        if session.server == self.server and not misses_any(session, self.cached_versions, COMPARED_VERSIONS):
            return
        if self.node is None:  # no other has to know
            self.follow(session.server, identity_of(session))
            session.generation = self.generation
            return
        self.displaced = True
        self.troubles.begin(DISPLACED, DISPLACED)
        raise StoreUnavailable(DISPLACED)

    def compare_again(self, session: Session) -> None:
        """Compare a connection to a pooler, behind which another server may answer by now."""
        if self.is_pooled:
            session.server = find_server(session)
            self.compare(session)

    def refuse_old_primary(self, session: Session) -> None:
        if session.server is not None and self.server is not None and self.server.is_after(session.server):
            raise StoreUnavailable(OLD_PRIMARY)

    def settle(self, free_everything: Callable[[Session], None]) -> None:
        """Go on with the server that answers now, under a new incarnation if anything may be missing.

        Then `free_everything` frees what all nodes held. The caller ends `displaced` with `go_on`.
        Raises `StoreUnavailable`.
        """
        try:
            session = open_session(self.url)
            try:
                self.refuse_old_primary(session)
                lineage = Lineage(session.server, self.trusted, misses_any(session, self.cached_versions))
                session.execute("begin")
                session.execute(LOCK_META)
                if not adopt(session, lineage):
                    free_everything(session)
                identity = identity_of(session)
                session.execute("commit")
                self.follow(session.server, identity)
            finally:
                session.close()
        except psycopg.Error as error:
            raise unavailable(error, "written") from None

    def go_on(self) -> None:
        """Read and write again."""
        self.displaced = False
        self.troubles.end(DISPLACED)

    def follow(self, server: Server | None, identity: dict[str, bytes]) -> None:
        """Forget all that is known of the store, and start over."""
        self.server, self.identity = server, identity
        self.generation += 1
        self.cached_versions.clear()

    async def write(self, job: Callable[[Rows], T]) -> T:
        """Run a job in a transaction of its own, and return its result after the commit.

        A job that raises a `VoicememError` must do so before it writes. A job may run more than once. Raises
        `StoreUnavailable`.
        """
        self.refuse_unready()
        return await asyncio.get_running_loop().run_in_executor(self.writing, self.run_write, job, self.generation)

    def run_write(self, job: Callable[[Rows], T], generation: int) -> T:
        writer = self.idle_writers.get()
        try:
            return writer.run(job, generation)
        finally:
            self.idle_writers.put(writer)

    async def save_stored_bytes(self) -> None:
        """Add to the projects' bytes what this process has counted. Raises `StoreUnavailable`."""
        counted = self.stored_bytes.take()
        if counted:
            try:
                self.stored_bytes.note(await self.register(lambda rows: add_bytes(rows.session, counted)))
            except StoreUnavailable:
                self.stored_bytes.give_back(counted)
                raise

    async def keep_partitions(self) -> None:
        """Once a day, make the journal's partitions of the months that have come into sight."""
        if self.upkeep.is_due:
            with suppress(psycopg.Error, StoreUnavailable):  # it is away; there are partitions for a year
                await asyncio.to_thread(self.upkeep.run, self.connect, self.keys.now_ms())

    async def register(self, job: Callable[[Rows], T]) -> T:
        """Run a job as `write` does, also while this process is not a node. Raises `StoreUnavailable`."""
        return await asyncio.get_running_loop().run_in_executor(self.writing, self.run_register, job)

    def run_register(self, job: Callable[[Rows], T]) -> T:
        with self.registering:
            return self.registrar.run(job)

    async def read(self, job: Callable[[Session], T]) -> T:
        """Run a job that only reads. It sees everything that was committed before."""
        self.refuse_unready()
        return await asyncio.get_running_loop().run_in_executor(self.readers, self.run_read, job)

    def run_read(self, job: Callable[[Session], T]) -> T:
        reader = self.idle_readers.get()
        try:
            return reader.run(job)
        finally:
            self.idle_readers.put(reader)

    async def try_again(self, trial: Callable[[Rows], None]) -> None:
        """Try the connections that are in trouble and not in use, which otherwise might stay so for want of work.

        The first that fails again ends it, since so would the others. Raises `StoreUnavailable`.
        """
        self.refuse_unready()
        loop = asyncio.get_running_loop()
        for connection in self.append_connections:
            await connection.try_again(trial)
        if self.registrar.is_in_trouble:
            await self.register(trial)
        for _ in range(WRITERS):
            await loop.run_in_executor(self.writing, self.try_writer, trial)
        for _ in range(READERS):
            await loop.run_in_executor(self.readers, self.try_reader)

    def try_writer(self, trial: Callable[[Rows], None]) -> None:
        if (writer := self.idle_writers.take_in_trouble()) is not None:
            try:
                writer.run(trial)
            finally:
                self.idle_writers.put(writer)

    def try_reader(self) -> None:
        if (reader := self.idle_readers.take_in_trouble()) is not None:
            try:
                reader.run(lambda session: None)
            finally:
                self.idle_readers.put(reader)

    def close(self) -> None:
        """Finish the jobs that were begun, and close all connections."""
        self.closed = True
        for connection in self.append_connections:
            connection.close()
        self.writing.shutdown()
        self.readers.shutdown()
        self.idle_writers.close()
        self.idle_readers.close()
        self.registrar.close()


def open_session(url: str) -> Session:
    """A connection. Raises `StoreUnavailable`, also where a start would be refused, and `psycopg.Error`."""
    try:
        return connect(url)
    except CannotStart as error:
        raise StoreUnavailable(error.detail) from None


def reason(error: psycopg.Error) -> str:
    """What a start says to the operator: libpq's own sentence where no connection came about."""
    if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        known = refusal_of(str(error))
        return f"{known}." if known is not None else lines[0] if lines else "no connection"
    return f"{why(error)}."


class PostgresqlDatabase(database.Database):
    """A `voicemem.store.database.Database` on one PostgreSQL database."""

    engine = "postgresql"
    is_exclusive = False

    def __init__(self, database: Database) -> None:
        self.database = database

    async def write(self, job: Callable[[PostgresqlConnection], T]) -> T:
        return await self.database.write(lambda rows: job(PostgresqlConnection(rows.session, rows)))

    async def read(self, job: Callable[[PostgresqlConnection], T]) -> T:
        return await self.database.read(lambda session: job(PostgresqlConnection(session)))

    @property
    def is_displaced(self) -> bool:
        return self.database.displaced

    async def settle(self, free: Callable[[PostgresqlConnection], None]) -> None:
        # Not one of the threads of jobs: these wait for this, to find out what became of their commits.
        await asyncio.to_thread(self.database.settle, lambda session: free(PostgresqlConnection(session)))
        self.database.go_on()  # on the loop, so that nothing is read before the caller has returned

    def adopt(self, connection: Any) -> bool:
        session = connection.session
        session.execute(LOCK_META)
        if reason := why_not_served(identity_of(session)):
            raise StoreUnavailable(reason)  # it was moved while this node was away
        return adopt(session, Lineage(session.server, self.database.trusted, is_missing=False))

    def renew_incarnation(self, connection: Any) -> None:
        session = connection.session
        session.execute(LOCK_META)
        renew_incarnation(session)
        note_server(session, session.server)

    async def register_node(self, token: str, job: Callable[[PostgresqlConnection], None]) -> None:
        def register(rows: Rows) -> dict[str, bytes]:
            job(PostgresqlConnection(rows.session, rows))
            return identity_of(rows.session)

        self.database.identity = await self.database.register(register)
        self.database.node = token  # from now on lanes are opened for it
        await self.database.register(lambda rows: rows.session.execute(JOIN_LANES, (token, self.database.token)))
        self.database.cached_versions.clear()

    async def try_again(self, job: Callable[[PostgresqlConnection], None]) -> None:
        with suppress(StoreUnavailable):  # that some connections do not work stops no one from using the others
            await self.database.try_again(lambda rows: job(PostgresqlConnection(rows.session, rows)))

    async def keep_up(self) -> None:
        await self.database.save_stored_bytes()
        await self.database.keep_partitions()

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

    @property
    def identity(self) -> dict[str, bytes]:  # type: ignore[override]
        return self.database.identity


def append_one(rows: Rows, batch: Batch, now_ms: int) -> AppendResult:
    """Append a batch event by event. Raises `Refused` (`unknown_session`)."""
    stream = rows.stream(batch.key)
    if stream is None:
        raise Refused("unknown_session")
    producer, full = rows.producer(batch.key, batch.producer), rows.is_full(stream.project)
    return BatchAppend(rows, stream, producer, batch, now_ms, full).run()
