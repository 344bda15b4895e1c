"""One connection to PostgreSQL: its settings, what is refused of a server, and which errors mean what."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.array import ListBinaryDumper
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import BytesBinaryDumper

from voicemem.errors import CannotStart, StoreUnavailable

Row = tuple[Any, ...]
OLDEST_VERSION = 150_000
POOLED = re.compile(r"([?&])pooled=1(&|$)")
"""The part of a URL that says that there is a pooler in between, so that no statement is prepared."""
CONNECTION_DEFAULTS = {
    "application_name": "voicemem",
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
    "target_session_attrs": "read-write",
}
"""What the URL may say otherwise."""
SESSION_SETTINGS = {
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "2000",
    "lock_timeout": "1000",
    "statement_timeout": "0",
    "client_encoding": "UTF8",
    "jit": "off",
}
"""A statement that writes is never cancelled: with a synchronous standby its commit would be visible, yet not safe."""
SELECT_SETTINGS = """
    select current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
    current_setting('statement_timeout'), current_setting('idle_in_transaction_session_timeout'),
    pg_is_in_recovery() or current_setting('transaction_read_only') = 'on'
"""
DURABLE_COMMITS = ("on", "remote_apply")
RETRIED_STATES = frozenset({"40001", "40P01", "55P03"})
"""Serialization failure, deadlock, lock timeout: the transaction is rolled back, and may run again."""
LOST_STATES = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
"""The server ended the connection, or is starting."""


class Word(str):
    """A word of the service's own that goes into a column of text, such as a state; any other text goes in as bytes."""

    __slots__ = ()


class Fenced(Exception):
    """Another connection has taken this one's place, so nothing more may be written here."""


class NodeRetired(StoreUnavailable):
    """Another node has retired this one: it must register again before it can write."""

    def __init__(self) -> None:
        super().__init__("This node was retired by another one.")


class Session:
    """A connection with the few calls that the store makes. Texts are sent as bytes, and come back as bytes."""

    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self.connection = connection

    @property
    def is_lost(self) -> bool:
        return self.connection.closed or self.connection.broken

    def execute(self, query: str, values: Sequence[Any] = ()) -> psycopg.Cursor[Row]:
        sent = [value.encode() if type(value) is str else value for value in values]
        return self.connection.execute(query.encode(), sent, binary=True)

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        """All rows of a query."""
        return self.execute(query, values).fetchall()

    def row(self, query: str, values: Sequence[Any] = ()) -> Row | None:
        """The first row of a query; None when it has none."""
        return self.execute(query, values).fetchone()

    def one(self, query: str, values: Sequence[Any] = ()) -> Row:
        """The row of a query that always has one."""
        row = self.row(query, values)
        assert row is not None
        return row

    def change(self, query: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; how many rows it changed."""
        return self.execute(query, values).rowcount

    def close(self) -> None:
        self.connection.close()


def connect(url: str) -> Session:
    """Open a connection. Raises `psycopg.Error`, and `CannotStart` where an ack would prove nothing."""
    pooled = POOLED.search(url) is not None
    given = conninfo_to_dict(POOLED.sub(r"\1", url).rstrip("?&"))
    settings = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in SESSION_SETTINGS.items())
    options = f"{given.pop('options', '') or ''} {settings}".strip()
    parameters: dict[str, Any] = {**CONNECTION_DEFAULTS, **given, "options": options}
    connection = psycopg.connect(
        make_conninfo(**parameters),
        autocommit=True,
        cursor_factory=psycopg.RawCursor,
        prepare_threshold=None if pooled else 2,
    )
    connection.adapters.register_dumper(int, Int8BinaryDumper)
    connection.adapters.register_dumper(bytes, BytesBinaryDumper)
    connection.adapters.register_dumper(list, ListBinaryDumper)
    session = Session(connection)
    try:
        refuse_unsafe(session)
    except BaseException:
        session.close()
        raise
    return session


def refuse_unsafe(session: Session) -> None:
    """Raise `CannotStart` for a server, or settings, with which nothing could be acknowledged safely."""
    if session.connection.info.server_version < OLDEST_VERSION:
        raise CannotStart("PostgreSQL must be of version 15 or newer.")
    fsync, pages, commits, timeout, idle, read_only = session.one(SELECT_SETTINGS)
    if fsync != "on" or pages != "on":
        raise CannotStart(
            "PostgreSQL runs with fsync or full_page_writes off, so nothing could be acknowledged safely."
        )
    if commits not in DURABLE_COMMITS:
        raise CannotStart(
            f"PostgreSQL has synchronous_commit={commits} for this role, so nothing could be acknowledged safely;"
            " it must be on or remote_apply."
        )
    if timeout != "0":
        raise CannotStart(
            f"PostgreSQL has statement_timeout={timeout} for this connection; it must be 0, since a commit that is"
            " cancelled may be visible without being safe. Does a pooler drop the options of connections?"
        )
    if idle == "0":
        raise CannotStart("PostgreSQL ignores the options of this connection; a pooler must pass them on.")
    if read_only:
        raise CannotStart("PostgreSQL is read-only here: this is a standby, or a role that may not write.")


def is_retried(error: psycopg.Error) -> bool:
    """Whether the transaction was rolled back for the sake of another, and may run again."""
    return error.sqlstate in RETRIED_STATES


def is_lost(session: Session | None, error: psycopg.Error) -> bool:
    """Whether the connection is gone, so that the outcome of what was sent is unknown."""
    state = error.sqlstate or ""
    return session is None or session.is_lost or state in LOST_STATES or state.startswith("08")


def is_ours(error: psycopg.Error) -> bool:
    """Whether an error is a fault of the program or its data, not of the server: then it is passed on as it is."""
    return (
        isinstance(error, (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError))
        and error.sqlstate != "42501"
    )


def unavailable(error: psycopg.Error, verb: str) -> StoreUnavailable:
    """The error that callers get. It quotes nothing, since messages of the server may hold values."""
    return StoreUnavailable(f"The store cannot be {verb}: {why(error)}.")


def why(error: psycopg.Error) -> str:
    """A few words for the log and the operator."""
    known = {
        "53100": "the disk of PostgreSQL is full",
        "53200": "PostgreSQL is out of memory",
        "53300": "PostgreSQL accepts no more connections",
        "25006": "PostgreSQL is read-only here",
        "42501": "the role may not do this",
        "28P01": "the password is wrong",
        "28000": "the role may not log in",
        "3D000": "the database does not exist",
        "57P03": "PostgreSQL is starting or shutting down",
    }
    if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
        return "PostgreSQL cannot be reached"
    return known.get(error.sqlstate or "", f"PostgreSQL, {type(error).__name__}")
