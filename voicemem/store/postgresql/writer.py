"""The connections of a node: readers, and writers whose commits always have a known outcome.

A transaction is repeated if that is safe. Each one locks the row of its lane and leaves one row in `commit_markers`. So
when the connection is lost during the commit, a new one raises the fencing token of the lane, which waits for the old
transaction and keeps it from beginning late; then the row is there or it is not. Each transaction thereby writes to the
log of PostgreSQL, so that its commit waits for a synchronous standby even if it changed nothing else: its answer about
older commits is as safe as they are.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal, Protocol, TypeVar

import psycopg

from voicemem.errors import StoreUnavailable
from voicemem.store.database import ConnectionFailures, NodeRetired
from voicemem.store.postgresql.connection import Fenced, PostgresqlConnection, is_lost, is_ours, is_retried, unavailable
from voicemem.store.postgresql.rows import Rows, Shared
from voicemem.store.stream_changes import Conflict
from voicemem.store.upkeep import on_failure

ATTEMPTS = 12
PAUSE_S, MAX_PAUSE_S = 0.002, 0.1
UNKNOWN_S = 10.0
"""How long a node tries to find the outcome of a commit before that counts as unknown."""
KEPT_OUTCOMES = 256
LOST = "The store cannot be written: the connection to PostgreSQL was lost."
RETIRED = "The outcome of a commit is unknown: this node was retired meanwhile."
FAILED_OVER = "The store cannot be written: another server has taken over meanwhile."
UNKNOWN = "The outcome of a commit is unknown: PostgreSQL does not answer."
OPEN_LANE = """
    insert into lanes values (:token, :lane, 1)
    on conflict (token, lane) do update set fencing_token = lanes.fencing_token + 1 returning fencing_token
"""
OPEN_LANE_OF_NODE = """
    with alive as (select token from nodes where token = :node for share)
    insert into lanes select :token, :lane, 1, token from alive
    on conflict (token, lane) do update set fencing_token = lanes.fencing_token + 1, node = excluded.node
    returning fencing_token
"""
"""No lane is opened for a retired node: everything that it held has been freed, and must not come back."""
SELECT_PLACE = "select 1 from lanes where token = :token and lane = :lane and fencing_token = :fencing_token"
BEGIN_JOB = f"with held as ({SELECT_PLACE} for share) insert into commit_markers select :token, :lane, :job from held"
SELECT_OUTCOME = "select 1 from commit_markers where token = :token and lane = :lane and job = :job"
DELETE_OUTCOMES = "delete from commit_markers where token = :token and lane = :lane and job < :job"
T = TypeVar("T")


class Owner(Shared, Protocol):
    generation: int
    token: bytes
    node: str | None
    troubles: ConnectionFailures
    closed: bool

    def connect_for(self, what: Reader | Writer, verb: Literal["read", "written"]) -> PostgresqlConnection: ...

    def refuse_unready(self) -> None: ...


class Unreachable(Exception):
    """The connection was lost before the commit was sent: nothing was written."""


class Reader:
    """A read-only connection, used by one thread at a time. It connects at first use, and again after a loss."""

    verb: Literal["read", "written"] = "read"

    def __init__(self, database: Owner) -> None:
        self.database = database
        self.connection: PostgresqlConnection | None = None

    @property
    def is_in_trouble(self) -> bool:
        return self.database.troubles.has(self)

    def open(self) -> PostgresqlConnection:
        """Return the connection, opened if there is none. Raises `StoreUnavailable`, `Fenced`, `psycopg.Error`."""
        connection = self.connection
        if connection is None or connection.is_lost or connection.generation != self.database.generation:
            self.drop()
            connection = self.database.connect_for(self, self.verb)
            with on_failure(connection.close):
                self.begin(connection)
            self.connection = connection
        return connection

    def begin(self, connection: PostgresqlConnection) -> None:
        self.database.troubles.end(self)

    def drop(self) -> None:
        if self.connection is not None:
            with suppress(psycopg.Error):
                self.connection.close()
        self.connection = None

    def read(self, job: Callable[[PostgresqlConnection], T]) -> T:
        """Run a job; if the connection is lost meanwhile, run it once more on a new one. Raises `StoreUnavailable`."""
        for is_last in (False, True):
            connection: PostgresqlConnection | None = None
            try:
                connection = self.open()
                return job(connection)
            except psycopg.Error as error:
                if is_ours(error):
                    raise
                if is_last or connection is None or not is_lost(connection, error):
                    raise unavailable(error, "read") from None
        raise AssertionError("unreachable")


class Writer(Reader):
    """A writing connection, used by one thread at a time."""

    verb = "written"

    def __init__(self, database: Owner, lane: int, needs_node: bool = True) -> None:
        """With `needs_node` it writes only while the node of this process is alive, once there is one."""
        super().__init__(database)
        self.lane = lane
        self.needs_node = needs_node
        self.fencing_token = 0
        self.job = 0

    @property
    def place(self) -> dict[str, Any]:
        """The values by which a statement proves that it may still write: token, lane and fencing token."""
        return {"token": self.database.token, "lane": self.lane, "fencing_token": self.fencing_token}

    def begin(self, connection: PostgresqlConnection) -> None:
        """Raise the fencing token of the lane, which waits for the transaction of the last one. Raises `Fenced`."""
        node = self.database.node if self.needs_node else None
        row = connection.row(OPEN_LANE if node is None else OPEN_LANE_OF_NODE, **self.place, node=node)
        if row is None:
            raise Fenced
        (self.fencing_token,) = row

    def check_place(self, connection: PostgresqlConnection) -> None:
        """Drop the connection if it may not write any more; the next job opens another if the node still may."""
        if connection.row(SELECT_PLACE, **self.place) is None:
            self.drop()

    def failed(self, trouble: str) -> StoreUnavailable:
        """Return the error of a failed commit, which lasts until a commit succeeds on this connection."""
        self.database.troubles.begin(self, trouble)
        return StoreUnavailable(trouble)

    def run(self, job: Callable[[PostgresqlConnection], T], generation: int | None = None) -> T:
        """Run a job of a generation in a transaction; repeat it after a conflict. Raises `StoreUnavailable`."""
        reconnected = False
        for attempt in range(ATTEMPTS):
            if generation not in (None, self.database.generation):
                raise StoreUnavailable(FAILED_OVER)
            try:
                result = self.attempt(job)
            except (Unreachable, Fenced) as error:
                self.drop()
                if reconnected:
                    raise (NodeRetired() if isinstance(error, Fenced) else self.failed(LOST)) from None
                reconnected = True
            except Conflict:
                time.sleep(pause_s(attempt))
            except psycopg.Error as error:
                if is_ours(error):
                    raise
                if not is_retried(error):
                    raise self.failed(unavailable(error, "written").detail) from None
                time.sleep(pause_s(attempt))
            else:
                self.database.troubles.end(self)
                return result
        raise StoreUnavailable("The store cannot be written: others hold what is to be changed.")

    def attempt(self, job: Callable[[PostgresqlConnection], T]) -> T:
        connection = self.open()
        rows = connection.streams = Rows(connection, self.database)
        self.job += 1
        try:
            connection.execute("begin")
            if connection.execute(BEGIN_JOB, **self.place, job=self.job) != 1:
                raise Fenced
            if self.job % KEPT_OUTCOMES == 0:
                connection.execute(DELETE_OUTCOMES, **self.place, job=self.job)
            result = job(connection)
            rows.finish()
        except psycopg.errors.UniqueViolation:
            self.roll_back()
            raise Conflict from None  # a key that was drawn twice, or a name that another has just taken
        except psycopg.Error as error:
            if is_lost(connection, error):
                raise Unreachable from None
            self.roll_back()
            raise
        except BaseException:
            self.roll_back()
            raise
        self.commit(connection, self.job)
        if connection.generation == self.database.generation:
            rows.after_commit()
        return result

    def commit(self, connection: PostgresqlConnection, job: int) -> None:
        """Commit; if the connection is lost before the answer, find out whether the transaction was committed."""
        try:
            connection.execute("commit")
        except psycopg.Error as error:
            if not is_lost(connection, error):
                self.roll_back()
                raise
            if not self.was_committed(job):
                raise Unreachable from None

    def was_committed(self, job: int) -> bool:
        """Return whether a transaction whose connection was lost is on disk. Raises `StoreUnavailable` if unknown."""
        fencing_token, tokens = self.fencing_token, list[int]()

        def has_marker(connection: PostgresqlConnection) -> bool:
            tokens.append(self.fencing_token)
            return connection.row(SELECT_OUTCOME, **self.place, job=job) is not None

        try:
            is_there = self.ask(has_marker)
        except Fenced:
            raise StoreUnavailable(RETIRED) from None
        if min(tokens) <= fencing_token:  # a lane that was deleted begins again, without commit_markers
            raise StoreUnavailable(RETIRED)
        return is_there

    def ask(self, look: Callable[[PostgresqlConnection], T]) -> T:
        """Find out the outcome of the transaction on a new connection. Raises `Fenced`, `StoreUnavailable`.

        Its new fencing token waits for the old transaction, and fences it.
        """
        self.drop()
        deadline = time.monotonic() + UNKNOWN_S
        while True:
            try:
                return look(self.open())
            except (psycopg.Error, StoreUnavailable):
                self.drop()
                if time.monotonic() > deadline or self.database.closed:
                    raise self.failed(UNKNOWN) from None
                time.sleep(MAX_PAUSE_S)

    def roll_back(self) -> None:
        if self.connection is not None:
            try:
                self.connection.execute("rollback")
            except psycopg.Error:
                self.drop()


def pause_s(attempt: int) -> float:
    return float(min(PAUSE_S * 2**attempt, MAX_PAUSE_S))


C = TypeVar("C", bound=Reader)


class Pool(queue.LifoQueue[C]):
    """The idle connections of one kind, and a thread for each.

    It hands out the connection that was used last, and a failing one only if there is no other: a node that cannot open
    all of its connections works with those that it has.
    """

    queue: list[C]

    def __init__(self, name: str, connections: Sequence[C]) -> None:
        super().__init__()
        self.threads = ThreadPoolExecutor(len(connections), name)
        for connection in connections:
            self.put(connection)

    async def run(self, job: Callable[[C], T]) -> T:
        """Run a job on a thread, with a connection that no other job uses meanwhile."""

        def use() -> T:
            connection = self.get()
            try:
                return job(connection)
            finally:
                self.put(connection)

        return await asyncio.get_running_loop().run_in_executor(self.threads, use)

    async def try_again(self, trial: Callable[[C], object]) -> None:
        """Try each failing connection, until one fails again. Raises `StoreUnavailable`."""

        def try_one() -> None:
            if (connection := self.take_in_trouble()) is not None:
                try:
                    trial(connection)
                finally:
                    self.put(connection)

        for _ in range(self.qsize()):
            await asyncio.get_running_loop().run_in_executor(self.threads, try_one)

    def _get(self) -> C:
        working = (place for place in reversed(range(len(self.queue))) if not self.queue[place].is_in_trouble)
        return self.queue.pop(next(working, -1))

    def take_in_trouble(self) -> C | None:
        with self.mutex:
            for connection in self.queue:
                if connection.is_in_trouble:
                    self.queue.remove(connection)
                    return connection
        return None

    def close(self) -> None:
        self.threads.shutdown()
        with suppress(queue.Empty):
            while True:
                self.get_nowait().drop()
