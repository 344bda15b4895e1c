"""One connection to PostgreSQL: its settings, which servers are refused, and the meaning of errors."""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Format
from psycopg.types.array import ListBinaryDumper
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import BytesBinaryDumper, StrBinaryDumper, StrDumperUnknown

from voicemem.errors import CannotStart, StoreUnavailable
from voicemem.store.database import Connection, Row
from voicemem.store.upkeep import on_failure

OLDEST_VERSION = 150_000
TRANSACTION_TIMEOUT_VERSION = 170_000
"""Older servers would refuse a connection that names that setting."""
OWN_OPTION = re.compile(r"([?&])(pooled|failover)=([^&]*)(&|$)")
OWN_VALUES = {"pooled": "1", "failover": "trusted"}
UNKNOWN_OPTION = re.compile(r'invalid URI query parameter: "(\w+)"')
CONNECTION_DEFAULTS = {
    "application_name": "voicemem",
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
    "target_session_attrs": "read-write",
}
SESSION_SETTINGS = {
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "2000",
    "lock_timeout": "1000",
    "statement_timeout": "0",
    "idle_session_timeout": "0",
    "client_encoding": "UTF8",
    "jit": "off",
}
"""A statement that writes is never cancelled: with a synchronous standby its commit would be visible, yet not safe."""
SELECT_SETTINGS = """
    select current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
    current_setting('statement_timeout'), coalesce(current_setting('transaction_timeout', true), '0'),
    current_setting('idle_in_transaction_session_timeout'),
    pg_is_in_recovery() or current_setting('transaction_read_only') = 'on'
"""
SELECT_SERVER = """
    select system_identifier::text || ' ' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
    from pg_control_system()
"""
"""`pg_control_checkpoint` would name the old timeline for a while after a promotion."""
APPEND_CONNECTIONS, WRITERS, READERS, REGISTRARS = 2, 3, 4, 1
"""The connections of a node: for appends, for other transactions, for reads, and to register."""
CUT_WAIT = "SyncRepWaitForLSN"
"""The server's function that warns that a commit did not wait for its standby: it is visible, but not safe. The code of
the warning is not specific, and its words may be in another language."""
DURABLE_COMMITS = ("on", "remote_apply")
TOO_MANY = (
    "PostgreSQL accepts no more connections; a node needs up to"
    f" {APPEND_CONNECTIONS + WRITERS + READERS + REGISTRARS}, of max_connections and of the limits of the role and the"
    " database"
)
DISK_FULL = "the disk of PostgreSQL is full"
NO_RIGHT = (
    "the role may not do this; it must be allowed to connect to the database, and to use, and create tables in, a"
    " schema of its own"
)
NO_SCHEMA = "there is no schema that the role may use; create one for it, of its own name or in its search_path"
PREPARED_ELSEWHERE = ("42P05", "26000")
"""A statement that another connection prepared, or that is prepared on another one."""
SHARED = "its connections are shared by a pooler in transaction mode; add pooled=1 to the URL"
NO_PARTITION = "23514"
"""A check violation: the schema checks nothing else."""
REFUSALS = (
    ("too many clients|too many connections|remaining connection slots", TOO_MANY),
    (
        "session is read-only|hot standby",
        "only a standby answers, which is read-only; name the host of the primary, or all hosts",
    ),
    ("permission denied for database", NO_RIGHT),
    ("No space left on device", DISK_FULL),
)
"""Messages of libpq when it cannot connect, and their meaning."""
RETRIED_STATES = frozenset({"40001", "40P01", "55P03"})
"""Serialization failure, deadlock, lock timeout: the transaction is rolled back, and may run again."""
LOST_STATES = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})


BIGINT, BIGINTS, LENGTH = 20, 1016, (8).to_bytes(4)
"""The types of a number and of an array of numbers, and the length of a number as it is sent."""


class TextDumper(StrDumperUnknown):
    """Sends texts, with U+FFFD for each U+0000: PostgreSQL refuses it, and a text of an LLM may have one."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(obj.replace("\0", "\ufffd") if "\0" in obj else obj)


class TextInArrayDumper(StrBinaryDumper):
    """Sends texts in arrays, with U+FFFD for each U+0000 too."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(obj.replace("\0", "\ufffd") if "\0" in obj else obj)


class NumbersDumper(Dumper):
    """Sends a column of numbers in one step: psycopg packs each by itself, and a commit may have ten thousand."""

    format, oid = Format.BINARY, BIGINTS

    def dump(self, obj: Any) -> Buffer:
        count = len(obj)
        halves = array("i", struct.pack(f"!{count}q", *obj))
        words = array("i", LENGTH * 3 * count)  # of each number its length, then its two halves
        words[1::3], words[2::3] = halves[::2], halves[1::2]
        return struct.pack("!5i", 1, 0, BIGINT, count, 1) + words.tobytes()


class Options(NamedTuple):
    """Options of a URL: libpq's, whether a pooler is in between (then nothing is prepared), and whether only
    synchronous standbys are promoted."""

    parameters: dict[str, Any]
    pooled: bool
    trusted: bool


class Server(NamedTuple):
    """The identity of a server: its system, which its copies share, and its timeline, which a promotion raises."""

    system: str
    timeline: int

    @property
    def text(self) -> str:
        return f"{self.system} {self.timeline:08X}"

    @staticmethod
    def parse(text: bytes) -> Server:
        system, timeline = text.decode().split()
        return Server(system, int(timeline, 16))

    def is_after(self, other: Server) -> bool:
        return self.system == other.system and self.timeline > other.timeline


class Fenced(Exception):
    """Another connection has taken this one's place, so nothing more may be written here."""


FENCE = "delete from lanes where {held}"
"""Waits for commits under way on these lanes, and keeps out later ones."""
FORGET_MARKERS = "delete from commit_markers o where not exists (select 1 from lanes l where l.token = o.token)"
LOCK_STREAMS = "select 1 from stream_locks where stream in ({streams}) order by stream for no key update"
RAISE_VERSIONS = "update stream_locks set version = version + 1 where stream in ({streams})"
LOCK = "select pg_advisory_xact_lock(hashtextextended(current_schema() || ' ' || :name, 0))"
PARTS = re.compile(r"('(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|::\w+)|\b(not in|in) :(\w+)|:(\w+)")
"""Text that is left alone (literals, quoted names, comments, casts), a list parameter, and any other parameter."""


class Statement(NamedTuple):
    text: bytes
    names: tuple[str, ...]

    def values(self, values: dict[str, Any]) -> list[Any]:
        return [values[name] for name in self.names]


@lru_cache(4096)
def to_postgresql(text: str) -> Statement:
    names: list[str] = []

    def number(name: str) -> str:
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    def replace(part: re.Match[str]) -> str:
        kept, operator, listed, name = part.groups()
        if kept is not None:
            return str(kept)
        if operator is None:
            return number(name)
        return f"= any({number(listed)})" if operator == "in" else f"<> all({number(listed)})"

    replaced = PARTS.sub(replace, text)
    return Statement(replaced.encode(), tuple(names))


class PostgresqlConnection(Connection):
    """A connection to PostgreSQL."""

    def __init__(self, raw: psycopg.Connection[Row]) -> None:
        self.raw = raw
        self.server: Server | None = None
        """The server that it is connected to; None if that does not identify itself."""
        self.generation = 0
        """The generation of this process's knowledge of the store (`PostgresqlDatabase.generation`)."""
        self.wait_was_cut = False
        raw.add_notice_handler(self.notice)

    def notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.source_function == CUT_WAIT:
            self.wait_was_cut = True

    @property
    def is_lost(self) -> bool:
        return self.raw.closed or self.raw.broken

    def send(self, query: str, values: dict[str, Any], before: bytes = b"") -> psycopg.Cursor[Row]:
        statement = to_postgresql(query)
        cursor = self.raw.execute(before + statement.text, statement.values(values), binary=True)
        if self.wait_was_cut:  # it was cancelled: whether it committed is asked on another connection
            self.raw.close()
            raise psycopg.OperationalError("a commit did not wait for its standby")
        return cursor

    def execute(self, statement: str, **values: Any) -> int:
        return self.send(statement, values).rowcount

    def many(self, statement: str, values: Iterable[dict[str, Any]]) -> None:
        numbered = to_postgresql(statement)
        if rows := [numbered.values(one) for one in values]:
            with self.raw.cursor() as cursor:
                cursor.executemany(numbered.text, rows)

    def hold_node(self, token: str) -> None:
        self.streams.hold_node(token)

    def fence(self, token: str | None) -> None:
        held, streams = "node is not null", "select key from streams where state = 'running'"
        if token is not None:
            held, streams = "node = :node", "select stream from producers where node = :node"
        self.execute(FENCE.format(held=held), node=token)
        self.execute(FORGET_MARKERS)
        for statement in (LOCK_STREAMS, RAISE_VERSIONS):
            self.execute(statement.format(streams=streams), node=token)

    def lock(self, name: str) -> None:
        self.execute(LOCK, name=name)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("begin")
        try:
            yield
        except BaseException:
            if not self.is_lost:
                self.execute("rollback")
            raise
        self.execute("commit")

    def close(self) -> None:
        self.raw.close()


def connect(url: str) -> PostgresqlConnection:
    """Open a connection. Raises `psycopg.Error`, and `CannotStart` for a server whose commits are not safe."""
    libpq, pooled, _ = parse_options(url)
    settings = " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in SESSION_SETTINGS.items())
    options = f"{libpq.pop('options', '') or ''} {settings}".strip()
    parameters: dict[str, Any] = {**CONNECTION_DEFAULTS, **libpq, "options": options}
    raw = psycopg.connect(
        make_conninfo(**parameters),
        autocommit=True,
        cursor_factory=psycopg.RawCursor,
        prepare_threshold=None if pooled else 2,
    )
    raw.adapters.register_dumper(int, Int8BinaryDumper)
    raw.adapters.register_dumper(str, TextInArrayDumper)
    raw.adapters.register_dumper(str, TextDumper)
    raw.adapters.register_dumper(bytes, BytesBinaryDumper)
    raw.adapters.register_dumper(list, ListBinaryDumper)
    raw.adapters.register_dumper(array, NumbersDumper)
    connection = PostgresqlConnection(raw)
    with on_failure(connection.close):
        if raw.info.server_version >= TRANSACTION_TIMEOUT_VERSION and not pooled:
            connection.execute("set transaction_timeout = 0")
        refuse_unsafe(connection)
        connection.server = find_server(connection)
    return connection


def parse_options(url: str) -> Options:
    """Take a URL apart. Raises `CannotStart`."""
    own: dict[str, str] = {}
    while (match := OWN_OPTION.search(url)) is not None:
        _, name, value, _ = match.groups()
        if value != OWN_VALUES[name]:
            raise CannotStart(f"The option {name} of a PostgreSQL URL can only be {name}={OWN_VALUES[name]}.")
        own[name] = value
        url = OWN_OPTION.sub(r"\1", url, count=1)
    try:
        options = conninfo_to_dict(url.rstrip("?&"))
    except psycopg.ProgrammingError as error:
        unknown = UNKNOWN_OPTION.search(str(error))
        raise CannotStart(
            f"The PostgreSQL URL has the option {unknown[1]}, which libpq does not know."
            if unknown is not None
            else "The PostgreSQL URL cannot be read; write postgresql://ROLE@HOST:PORT/DATABASE?OPTION=VALUE."
        ) from None
    return Options(options, "pooled" in own, "failover" in own)


def find_server(connection: PostgresqlConnection) -> Server | None:
    """Find the server that a connection leads to; None where the engine cannot say."""
    try:
        (text,) = connection.one(SELECT_SERVER)
    except (psycopg.NotSupportedError, psycopg.ProgrammingError):
        return None
    return Server.parse(text.encode())


def refuse_unsafe(connection: PostgresqlConnection) -> None:
    """Raise `CannotStart` for a server or settings that let nothing be acknowledged safely."""
    if connection.raw.info.server_version < OLDEST_VERSION:
        raise CannotStart("PostgreSQL must be of version 15 or newer.")
    fsync, pages, commits, statement, transaction, idle, read_only = connection.one(SELECT_SETTINGS)
    if fsync != "on" or pages != "on":
        raise CannotStart(
            "PostgreSQL runs with fsync or full_page_writes off, so nothing could be acknowledged safely."
        )
    if commits not in DURABLE_COMMITS:
        raise CannotStart(
            f"PostgreSQL has synchronous_commit={commits} for this role, so nothing could be acknowledged safely;"
            " it must be on or remote_apply."
        )
    for name, timeout in (("statement_timeout", statement), ("transaction_timeout", transaction)):
        if timeout != "0":
            raise CannotStart(
                f"PostgreSQL has {name}={timeout} for this connection; it must be 0, since a commit that is"
                " cancelled may be visible without being safe. Does a pooler drop the options of connections?"
            )
    if idle == "0":
        raise CannotStart("PostgreSQL ignores the options of this connection; a pooler must pass them on.")
    if read_only:
        raise CannotStart("PostgreSQL is read-only here: this is a standby, or a role that may not write.")


def refusal_of(message: str) -> str | None:
    """Return why a server accepts no connection, for the operator; None if the library's words are as good.

    libpq gives no code for that, only a sentence, which may be in another language.
    """
    return next((words for said, words in REFUSALS if re.search(said, message)), None)


def is_retried(error: psycopg.Error) -> bool:
    return error.sqlstate in RETRIED_STATES


def is_lost(connection: PostgresqlConnection | None, error: psycopg.Error) -> bool:
    """Return whether the connection is lost, so that the outcome of the statements sent is unknown."""
    state = error.sqlstate or ""
    return connection is None or connection.is_lost or state in LOST_STATES or state.startswith("08")


def is_ours(error: psycopg.Error) -> bool:
    """Return whether an error is the program's or its data's fault, not the server's: then it is passed on as it is."""
    return isinstance(
        error, (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError)
    ) and error.sqlstate not in ("42501", NO_PARTITION, *PREPARED_ELSEWHERE)


def unavailable(error: psycopg.Error, verb: str) -> StoreUnavailable:
    """Return the error for callers. It quotes nothing, since messages of the server may hold values."""
    return StoreUnavailable(f"The store cannot be {verb}: {why(error)}.")


def why(error: psycopg.Error) -> str:
    known = {
        "53100": DISK_FULL,
        "53200": "PostgreSQL is out of memory",
        "53300": TOO_MANY,
        "25006": "PostgreSQL is read-only here",
        "3F000": NO_SCHEMA,
        "42501": NO_RIGHT,
        "28P01": "the password is wrong",
        "28000": "the role may not log in",
        "55P03": "another transaction holds a table for too long (pg_stat_activity and pg_locks tell which); nothing"
        " was changed, so try again once it has ended",
        NO_PARTITION: "the journal has no partition of the month in which the session was created; attach it again, or"
        " make that of this month with voicemem migrate",
        "3D000": "the database does not exist",
        "57P03": "PostgreSQL is starting or shutting down",
        **dict.fromkeys(PREPARED_ELSEWHERE, SHARED),
    }
    if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
        return refusal_of(str(error)) or "PostgreSQL cannot be reached"
    return known.get(error.sqlstate or "", f"PostgreSQL, {type(error).__name__}")


def reason(error: psycopg.Error) -> str:
    """Return the reason for the operator: libpq's own sentence where no connection came about."""
    if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        known = refusal_of(str(error))
        return f"{known}." if known is not None else lines[0] if lines else "no connection"
    return f"{why(error)}."
