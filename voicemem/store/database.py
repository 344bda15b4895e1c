"""The seam between the store and its engines: a few verbs on a connection, and the verbs that run jobs on connections.

A class of the store (`Outbox`, `Directory`, ...) is written once, over one SQL text per operation. The text is standard
SQL that SQLite and PostgreSQL both run, with named parameters (`:key`). Where the two differ, it is written in
PostgreSQL's dialect, and SQLite's driver translates:

- `x in :keys` and `x not in :keys`, where the value is a list of numbers or of texts;
- `greatest(a, b)`, `least(a, b)` `strpos(text, part)`, and `md5(name)` in an index of names, which may be too long;
- `for update`, `for no key update`, `for share`, with or without `skip locked`, or `of` a table, at the end of a
  select: SQLite has one writer, and leaves them out.

Texts are `str`, blobs are `bytes` and numbers are `int` on both engines. A flag goes in as `bool`; SQLite gives it back
as 0 or 1, so read it with `bool(...)`. Write `cast(:value as text)` where the type of a value is not clear, as in
`:value is null`.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from voicemem.errors import StoreUnavailable
from voicemem.store.append_rules import AppendResult, Batch
from voicemem.store.streams import Stream

T = TypeVar("T")
P = ParamSpec("P")
Row = tuple[Any, ...]


class Check(NamedTuple, Generic[T]):
    """The result of a check of some streams, by key: those that are behind with some work."""

    behind: Sequence[T]
    looked_at: int
    through_key: int | None
    """The key to continue after; None when there are no more."""


def checked(rows: Sequence[Row], limit: int, behind: Sequence[T]) -> Check[T]:
    """Return the result of a check of streams; each row begins with a key, and there are at most `limit`."""
    return Check(behind, len(rows), rows[-1][0] if len(rows) == limit else None)


def columns(names: Iterable[str], prefix: str = "") -> str:
    """Columns as a list in SQL; `prefix` is that of their table, or `:` for parameters of their names."""
    return ", ".join(f"{prefix}{name}" for name in names)


def assign(names: Iterable[str]) -> str:
    """Return the assignments of parameters to columns of their names."""
    return ", ".join(f"{name} = :{name}" for name in names)


def insert(table: str, names: Collection[str]) -> str:
    """Return the statement that inserts a row of parameters that are called as the columns."""
    return f"insert into {table} ({columns(names)}) values ({columns(names, ':')})"


def upsert(table: str, key: Collection[str], names: Iterable[str]) -> str:
    """Return the statement that inserts a row or replaces the one that has its key; `names` are the other columns."""
    names = list(names)
    changes = ", ".join(f"{name} = excluded.{name}" for name in names)
    return f"{insert(table, [*key, *names])} on conflict ({columns(key)}) do update set {changes}"


SELECT_META = "select name, value from meta"
SAVE_META = upsert("meta", ["name"], ["value"])
DELETE_META = "delete from meta where name = :name"


class NodeRetired(StoreUnavailable):
    """Another node has retired this one: it must register again before it can write."""

    def __init__(self) -> None:
        super().__init__("This node was retired by another one.")


class Connection(ABC):
    """A connection during one job. Queries and statements are prepared once per text, so keep texts constant."""

    __slots__ = ()
    streams: Any
    """The streams, producers and journals of this transaction (`StreamRows`), for jobs that write."""

    @abstractmethod
    def send(self, query: str, values: dict[str, Any]) -> Any:
        """Run a query or a statement, and return the driver's cursor."""

    def row(self, query: str, **values: Any) -> Row | None:
        """Return the first row of a query; None when it has none. Also for statements that return a row."""
        row: Row | None = self.send(query, values).fetchone()
        return row

    def rows(self, query: str, **values: Any) -> list[Row]:
        """Return all rows of a query, or of a statement with `returning`."""
        rows: list[Row] = self.send(query, values).fetchall()
        return rows

    def one(self, query: str, **values: Any) -> Row:
        """Return the row of a query that always has one."""
        row: Row = self.send(query, values).fetchone()
        assert row is not None
        return row

    @abstractmethod
    def execute(self, statement: str, **values: Any) -> int:
        """Run a statement that changes rows, and return how many."""

    @abstractmethod
    def many(self, statement: str, values: Iterable[dict[str, Any]]) -> None:
        """Run a statement once for each of these values."""

    def hold_node(self, token: str) -> None:
        """Keep a node for which something is written from being retired before the commit.

        Raises `NodeRetired` if it was. A database that only one process serves has nothing to do here.
        """
        return

    @abstractmethod
    def fence(self, token: str | None) -> None:
        """Keep a node that was just deleted (None: every node) from committing, and wait for its commits under way.

        What is cached of its streams is not valid from then on.
        """

    def draw_key(self) -> int:
        """Return a new key for an endpoint or a delivery: a number that rises with time and is never used twice.

        Two nodes may draw the same one at the same moment. The insert then fails and the job runs again, so draw it
        inside the job.
        """
        return int(self.streams.keys.draw())

    def lock(self, name: str) -> None:
        """Hold a named lock until the end of the transaction. Later statements see what its last holder committed."""
        return


class Database(ABC):
    """A database of one engine: runs jobs, which are functions of a connection, on its threads."""

    engine: str
    """`sqlite` or `postgresql`, for the few differences in SQL."""
    is_exclusive: bool
    """True where no other process has the store."""
    identity: dict[str, bytes]
    """The rows of `meta`."""
    commit_shards = 1
    """The appends that may be under way at once: one in each commit shard, which does not wait for the others."""

    @abstractmethod
    async def write(self, job: Callable[[Connection], T]) -> T:
        """Run a job in one transaction, and return its result after the commit is on disk.

        A job that raises a `VoicememError` must do so before it writes. A job may run more than once: PostgreSQL
        repeats a transaction that conflicted with others, SQLite one that failed because of another job in it.
        Raises `StoreUnavailable`.
        """

    @abstractmethod
    async def read(self, job: Callable[[Connection], T]) -> T:
        """Run a job that only reads. It sees everything that was committed before. Raises `StoreUnavailable`."""

    async def read_inline(self, job: Callable[[Connection], T]) -> T:
        """Read a row or two; SQLite does so on the calling thread, since a switch of threads would take longer."""
        return await self.read(job)

    async def scan(self, job: Callable[[Connection], T]) -> T:
        """Run a job that reads many rows: other reads do not wait for it."""
        return await self.read(job)

    async def rows(self, query: str, **values: Any) -> list[Row]:
        return await self.read(lambda connection: connection.rows(query, **values))

    async def row(self, query: str, **values: Any) -> Row | None:
        """Read the first row of a query that an index leads to; None when it has none."""
        return await self.read_inline(lambda connection: connection.row(query, **values))

    async def find(self, make: Callable[..., T], query: str, **values: Any) -> T | None:
        """Return `make` of the columns of that row; None if there is none."""
        row = await self.row(query, **values)
        return None if row is None else make(*row)

    async def count(self, query: str, **values: Any) -> int:
        """Return the number that a query counts over many rows."""
        return int((await self.scan(lambda connection: connection.one(query, **values)))[0])

    async def execute(self, statement: str, **values: Any) -> int:
        """Run one statement in a transaction, and return how many rows it changed."""
        return await self.write(lambda connection: connection.execute(statement, **values))

    # Appends: each engine has its own way

    @abstractmethod
    async def append(self, batches: Sequence[Batch], now_ms: int) -> list[AppendResult]:
        """See `Journal.append`."""

    async def try_append(self, batches: Sequence[Batch], now_ms: int) -> Sequence[AppendResult | None]:
        """See `Journal.try_append`."""
        return await self.append(batches, now_ms)

    find_kept_stream: Callable[[str, str, str], Stream | None] = staticmethod(lambda project, kind, name: None)
    """Finds the committed stream of a project, kind and name if it is cached, without a query; for any thread."""

    # Nodes

    @property
    def is_displaced(self) -> bool:
        """See `Nodes.is_displaced`."""
        return False

    async def settle(self, free: Callable[[Connection], None]) -> None:
        """See `Nodes.settle`; `free` frees what all nodes held if the store is another incarnation."""
        return

    def adopt(self, connection: Any) -> bool:
        """Begin to work with the server that answers; return False if it may lack events that the previous one had.

        Then the store is another incarnation. Of two nodes that begin at once, one waits for the other.
        """
        return True

    @abstractmethod
    def renew_incarnation(self, connection: Any) -> None:
        """Make the store another incarnation."""

    @abstractmethod
    async def register_node(self, token: str, job: Callable[[Connection], None]) -> None:
        """Run a job as `write` does, even if this process is not a node, and work as this node from then on."""

    @abstractmethod
    async def try_again(self, job: Callable[[Connection], None]) -> None:
        """Try the failing connections. Raises `StoreRuined` if this process has lost the store."""

    async def keep_up(self) -> None:
        """Do what each heartbeat of a node does for the engine."""
        return


class Port:
    def __init__(self, database: Database) -> None:
        self.database = database


S = TypeVar("S", bound=Port)


class Runs(Protocol):
    """Makes a method a job that a verb of `Database` runs; callers omit the connection, and await the result."""

    def __call__(
        self, job: Callable[Concatenate[S, Connection, P], T], /
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]: ...


def runs_by(verb: str) -> Runs:
    def decorate(
        job: Callable[Concatenate[S, Connection, P], T],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        @wraps(job)
        async def run(self: S, /, *args: P.args, **values: P.kwargs) -> T:
            result: T = await getattr(self.database, verb)(lambda connection: job(self, connection, *args, **values))
            return result

        return run

    return decorate


writes, reads, reads_inline, scans = map(runs_by, ("write", "read", "read_inline", "scan"))


# What the drivers share: group commit, troubles of connections, keys

J = TypeVar("J")
CLOSED = "The store was closed."


class Queued(NamedTuple):
    """A job, the future that gets its result, and the future's loop."""

    job: Any
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class GroupCommit(Generic[J]):
    """A thread that commits all waiting jobs together: while one commit is on its way to the disk, others queue up.

    So throughput grows with load, and a lone job never waits for others. `commit` gets jobs and returns the result of
    each, an exception where it failed.
    """

    def __init__(
        self, name: str, commit: Callable[[list[J]], list[Any]], most: int, size: Callable[[J], int] = lambda job: 1
    ) -> None:
        """At most jobs of the size `most` are done together: it bounds how long a commit takes."""
        self.commit = commit
        self.most = most
        self.size = size
        self.is_busy = False
        self.jobs: queue.SimpleQueue[Queued | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.work, name=name, daemon=True)
        self.thread.start()

    async def run(self, job: J) -> Any:
        """Return the result of a job once its commit is on disk."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self.jobs.put(Queued(job, future, loop))
        return await future

    def close(self) -> None:
        """Finish the jobs that wait, and end the thread."""
        self.jobs.put(None)
        self.thread.join()
        while not self.jobs.empty():  # jobs that were queued while it closed
            if (late := self.jobs.get()) is not None:
                deliver([late], [StoreUnavailable(CLOSED)])

    def work(self) -> None:
        last, more = False, None
        while not last and (first := self.jobs.get()) is not None:
            together, size = [first], self.size(first.job)
            while size < self.most and not last and not self.jobs.empty():
                more = self.jobs.get()
                last = more is None
                if more is not None:
                    together.append(more)
                    size += self.size(more.job)
            self.is_busy = True
            deliver(together, self.commit([queued.job for queued in together]))
            self.is_busy = False
            first, more, together = None, None, []  # while it waits, the thread holds no finished jobs


def deliver(together: list[Queued], results: list[Any]) -> None:
    """Give each job its result, with one wake-up of each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for queued, result in zip(together, results, strict=True):
        by_loop.setdefault(queued.loop, []).append((queued.future, result))
    for loop, pairs in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed, and nothing waits in it
            loop.call_soon_threadsafe(set_results, pairs)


def set_results(pairs: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in pairs:
        if future.done():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


LOG = logging.getLogger("voicemem.store")
BEGUN = "The store is in trouble: %s"
OVER = "The store is out of trouble after %.1f s"
"""One such pair of lines covers the failures of all connections: each outage is in the log once."""


class ConnectionFailures:
    """The failures of a store's connections, each on its own: one that works says nothing about the others.

    The log says when they begin, and when they are over. For any thread.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reasons: dict[Hashable, str] = {}
        """By what has failed; the newest last."""
        self.since = 0.0
        """When the first of these began, by the monotonic clock."""

    def begin(self, what: Hashable, reason: str) -> None:
        with self.lock:
            if not self.reasons:
                self.since = time.monotonic()
                LOG.warning(BEGUN, reason)
            self.reasons.pop(what, None)
            self.reasons[what] = reason

    def end(self, what: Hashable) -> None:
        if what not in self.reasons:  # nearly always, and after every commit
            return
        with self.lock:
            if self.reasons.pop(what, None) is not None and not self.reasons:
                LOG.warning(OVER, time.monotonic() - self.since)

    def has(self, what: Hashable) -> bool:
        return what in self.reasons

    @property
    def reason(self) -> str | None:
        """The newest reason; None if nothing has failed."""
        with self.lock:
            return next(reversed(self.reasons.values()), None)


EPOCH_MS = 1_735_689_600_000
"""The start of 2025: 41 bits of milliseconds last until 2094."""
RANDOM_BITS = 12


class KeySource:
    """Draws keys of streams, endpoints and deliveries: numbers of 53 bits that begin with the time, without a sequence.

    They rise with the database's time, also within one millisecond; safe for threads. Two nodes may draw the same key
    at the same time, so a job that inserts one must be ready to draw another.
    """

    def __init__(self, now_ms: int, monotonic: Callable[[], float]) -> None:
        self.offset_ms = now_ms - monotonic() * 1000
        self.monotonic = monotonic
        self.last = 0
        self.lock = threading.Lock()

    def now_ms(self) -> int:
        """Return the database's time, by the offset that was measured when it was opened."""
        return int(self.offset_ms + self.monotonic() * 1000)

    def draw(self) -> int:
        with self.lock:
            drawn = first_key(self.now_ms()) + secrets.randbelow(1 << RANDOM_BITS)
            self.last = max(self.last + 1, drawn)
            return self.last


def first_key(ms: int) -> int:
    """Return the lowest key of a time in Unix ms."""
    return (ms - EPOCH_MS) << RANDOM_BITS
