"""The connections of a node that read, and those that write, whose outcome is always known.

A transaction runs again where it may. Each one holds the row of its lane and leaves one row in `commit_markers`. So
when the connection is lost during the commit, a new one raises the fencing token of the lane, which waits for the old
transaction and keeps it from beginning late; then the row is there or it is not. Each transaction thereby writes to the
log of PostgreSQL, so that its commit waits for a synchronous standby even if it changed nothing else: what it answers
of older commits is as safe as they are.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, Protocol, TypeVar

import psycopg

from voicemem.errors import StoreUnavailable
from voicemem.store.database import NodeRetired
from voicemem.store.postgresql.connection import (
    Fenced,
    Session,
    is_lost,
    is_ours,
    is_retried,
    unavailable,
)
from voicemem.store.postgresql.rows import Rows, Shared
from voicemem.store.stream_rows import Conflict
from voicemem.store.troubles import Troubles


class Connection(Protocol):
    """A connection as far as it matters here."""

    @property
    def is_in_trouble(self) -> bool: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=Connection)


class Idle(queue.LifoQueue[C]):
    """Hands out the one that was used last, and one in trouble only where there is no other.

    So a node that cannot open all of its connections goes on with those that it has.
    """

    queue: list[C]

    def _get(self) -> C:
        working = (place for place in reversed(range(len(self.queue))) if not self.queue[place].is_in_trouble)
        return self.queue.pop(next(working, -1))

    def take_in_trouble(self) -> C | None:
        """One that is in trouble; None where none of the idle ones is."""
        with self.mutex:
            for connection in self.queue:
                if connection.is_in_trouble:
                    self.queue.remove(connection)
                    return connection
        return None

    def close(self) -> None:
        """Close all of them."""
        with suppress(queue.Empty):
            while True:
                self.get_nowait().close()


T = TypeVar("T")


class Reader:
    """One connection that only reads, on one thread at a time. It connects when it is first used, and when lost."""

    def __init__(self, database: Owner) -> None:
        self.database = database
        self.session: Session | None = None

    @property
    def is_in_trouble(self) -> bool:
        """Whether it got no connection when it last tried."""
        return self.database.troubles.has(self)

    def open(self) -> Session:
        """The connection, a new one where there is none. Raises `StoreUnavailable`, `psycopg.Error`."""
        session = self.session
        if session is None or session.is_lost or session.generation != self.database.generation:
            self.close()
            self.session = session = self.database.connect_for(self, "read")
            self.database.troubles.end(self)
        return session

    def run(self, job: Callable[[Session], T]) -> T:
        """Run a job, once more on a new connection where it was lost meanwhile. Raises `StoreUnavailable`."""
        for is_last in (False, True):
            session: Session | None = None
            try:
                session = self.open()
                return job(session)
            except psycopg.Error as error:
                if is_ours(error):
                    raise
                if is_last or session is None or not is_lost(session, error):
                    raise unavailable(error, "read") from None
        raise AssertionError("unreachable")

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
        self.session = None


ATTEMPTS = 12
"""How often a transaction is tried that others are in the way of."""
PAUSE_S, MAX_PAUSE_S = 0.002, 0.1
UNKNOWN_S = 10.0
"""How long the outcome of a commit is asked for before it counts as unknown."""
KEPT_OUTCOMES = 256
LOST = "The store cannot be written: the connection to PostgreSQL was lost."
RETIRED = "The outcome of a commit is unknown: this node was retired meanwhile."
FAILED_OVER = "The store cannot be written: another server has taken over meanwhile."
UNKNOWN = "The outcome of a commit is unknown: PostgreSQL does not answer."
OPEN_LANE = """
    insert into lanes values ($1, $2, 1)
    on conflict (token, lane) do update set fencing_token = lanes.fencing_token + 1 returning fencing_token
"""
OPEN_LANE_OF_NODE = """
    with alive as (select token from nodes where token = $3 for share)
    insert into lanes select $1, $2, 1, token from alive
    on conflict (token, lane) do update set fencing_token = lanes.fencing_token + 1, node = excluded.node
    returning fencing_token
"""
"""Of a node that was retired no lane is opened: what it holds has been freed, and must not come back."""
BEGIN_JOB = """
    with held as (select 1 from lanes where token = $1 and lane = $2 and fencing_token = $3 for share)
    insert into commit_markers select $1, $2, $4 from held
"""
SELECT_PLACE = "select 1 from lanes where token = $1 and lane = $2 and fencing_token = $3"
SELECT_OUTCOME = "select 1 from commit_markers where token = $1 and lane = $2 and job = $3"
DELETE_OUTCOMES = "delete from commit_markers where token = $1 and lane = $2 and job < $3"


class Owner(Shared, Protocol):
    """The database that a writer is of."""

    generation: int
    token: bytes
    node: str | None
    troubles: Troubles
    closed: bool

    def connect_for(self, what: Reader | Writer, verb: Literal["read", "written"]) -> Session: ...

    def refuse_unready(self) -> None: ...


class Unreachable(Exception):
    """The connection was lost before the commit was sent: nothing was written."""


class Writer:
    """One connection that writes, on one thread at a time. It connects when it is first used, and again when lost."""

    def __init__(self, database: Owner, lane: int, needs_node: bool = True) -> None:
        """With `needs_node` it writes only while the node lives that this process is, once it is one."""
        self.database = database
        self.lane = lane
        self.needs_node = needs_node
        self.session: Session | None = None
        self.fencing_token = 0
        self.job = 0

    @property
    def place(self) -> tuple[bytes, int, int]:
        """What a statement names to show that it may still write: token, lane and fencing_token."""
        return self.database.token, self.lane, self.fencing_token

    def open(self) -> Session:
        """The connection, a new one where there is none. Raises `StoreUnavailable`, `Fenced`, `psycopg.Error`."""
        if self.session is not None and self.session.generation != self.database.generation:
            self.drop()
        if self.session is None or self.session.is_lost:
            session = self.database.connect_for(self, "written")
            try:
                self.fencing_token = self.open_lane(session)
            except BaseException:
                session.close()
                raise
            self.session = session
        return self.session

    def open_lane(self, session: Session) -> int:
        """Begin the next fencing_token of the lane, which waits for a transaction of the last one. Raises `Fenced`."""
        node = self.database.node if self.needs_node else None
        place = self.database.token, self.lane
        query, values = (OPEN_LANE, place) if node is None else (OPEN_LANE_OF_NODE, (*place, node))
        row = session.row(query, values)
        if row is None:
            raise Fenced
        return int(row[0])

    def check_place(self, session: Session) -> None:
        """Give the connection up if it may not write any more, so that a new one is opened where that is allowed."""
        if session.row(SELECT_PLACE, self.place) is None:
            self.drop()

    def failed(self, trouble: str) -> StoreUnavailable:
        """The error of a commit that failed, which is remembered until one comes through on this connection."""
        self.database.troubles.begin(self, trouble)
        return StoreUnavailable(trouble)

    def succeeded(self) -> None:
        """A commit came through."""
        self.database.troubles.end(self)

    @property
    def is_in_trouble(self) -> bool:
        """Whether its last commit failed, or it got no connection when it last tried."""
        return self.database.troubles.has(self)

    def drop(self) -> None:
        """Give the connection up."""
        if self.session is not None:
            with suppress(psycopg.Error):
                self.session.close()
        self.session = None

    def close(self) -> None:
        self.drop()

    def run(self, job: Callable[[Rows], T], generation: int | None = None) -> T:
        """Run a job in a transaction, again where others were in its way. Raises `StoreUnavailable`.

        A job was made by what was known in a generation; after a failover it may write what no longer holds.
        """
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
                self.succeeded()
                return result
        raise StoreUnavailable("The store cannot be written: others hold what is to be changed.")

    def attempt(self, job: Callable[[Rows], T]) -> T:
        session = self.open()
        rows = Rows(session, self.database)
        self.job += 1
        try:
            session.execute("begin")
            if session.change(BEGIN_JOB, (*self.place, self.job)) != 1:
                raise Fenced
            if self.job % KEPT_OUTCOMES == 0:
                session.execute(DELETE_OUTCOMES, (*self.place[:2], self.job))
            result = job(rows)
            rows.finish()
        except psycopg.errors.UniqueViolation:
            self.roll_back()
            raise Conflict from None  # a key that was drawn twice, or a name that another has just taken
        except psycopg.Error as error:
            if is_lost(session, error):
                raise Unreachable from None
            self.roll_back()
            raise
        except BaseException:
            self.roll_back()
            raise
        self.commit(session, self.job)
        if session.generation == self.database.generation:
            rows.after_commit()
        return result

    def commit(self, session: Session, job: int) -> None:
        """Commit, and find out what became of it where the answer does not come."""
        try:
            session.execute("commit")
        except psycopg.Error as error:
            if not is_lost(session, error):
                self.roll_back()
                raise
            self.drop()
            if not self.was_committed(job):
                raise Unreachable from None

    def was_committed(self, job: int) -> bool:
        """Whether a transaction whose connection was lost is on disk.

        Raises `StoreUnavailable` if nobody answers, or if this node was retired, and its commit_markers forgotten.
        """
        deadline, fencing_token, is_same_lane = time.monotonic() + UNKNOWN_S, self.fencing_token, True
        while True:
            try:
                session = self.open()  # its new fencing_token waits for the old transaction, and fences it
                is_same_lane = (
                    is_same_lane and self.fencing_token > fencing_token
                )  # one that was deleted begins anew, without commit_markers
                found = session.row(SELECT_OUTCOME, (*self.place[:2], job)) is not None
                break
            except Fenced:
                raise StoreUnavailable(RETIRED) from None
            except (psycopg.Error, StoreUnavailable):
                self.drop()
                if time.monotonic() > deadline or self.database.closed:
                    raise self.failed(UNKNOWN) from None
                time.sleep(MAX_PAUSE_S)
        if not is_same_lane:
            raise StoreUnavailable(RETIRED)
        return found

    def roll_back(self) -> None:
        if self.session is not None:
            try:
                self.session.execute("rollback")
            except psycopg.Error:
                self.drop()


def pause_s(attempt: int) -> float:
    """How long to wait before the next attempt, in seconds."""
    return float(min(PAUSE_S * 2**attempt, MAX_PAUSE_S))
