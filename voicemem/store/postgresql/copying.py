"""A PostgreSQL database as an end of a copy; the methods are documented in `voicemem.store.ports.copying`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import psycopg

from voicemem.errors import CannotStart
from voicemem.store.copied_tables import (
    ARCHIVES,
    ATTEMPTS,
    DELIVERIES,
    ENDPOINTS,
    FLAG,
    KEY,
    KIND,
    STREAMS,
    TABLES,
    CopiedTable,
    Row,
    config_of,
)
from voicemem.store.keys import EPOCH_MS, RANDOM_BITS
from voicemem.store.ports.copying import COPYING, MOVED, CopyFailed, Volume
from voicemem.store.postgresql.connection import PostgresqlConnection, Session, connect, why
from voicemem.store.postgresql.driver import SELECT_NOW, reason
from voicemem.store.postgresql.memory_words import PostgresqlMemoryWords
from voicemem.store.postgresql.nodes import SELECT_LOST_NODES, retire
from voicemem.store.postgresql.schema import (
    LOCK_META,
    SAVE_META,
    SELECT_META,
    SELECT_TABLES,
    add_partitions,
    check_version,
    migrate,
)
from voicemem.store.stream_rows import POSITION as JOURNAL_END
from voicemem.store.stream_rows import label_digest
from voicemem.store.streams import SESSION_KIND

DERIVED = ("name", "user_id", "channel")
"""Columns of streams that repeat the configuration."""
FETCHED_ROWS, FETCHED_ARCHIVES = 500, 4
"""What is held of a result at a time."""
STREAMS_AT_ONCE = 256
"""Sessions whose rows are read by one query, which sorts them."""
NOT_ERASED = """(t.stream is null or not exists (
    select 1 from streams s where s.key = t.stream and s.state = 'erased'
))"""
CONTENT = {
    ENDPOINTS.name: NOT_ERASED,
    DELIVERIES.name: NOT_ERASED,
    ATTEMPTS.name: f"exists (select 1 from deliveries x where x.key = t.delivery and {NOT_ERASED.replace('t.', 'x.')})",
}
"""Which rows of a table are copied; of those that are not here, all."""
SELECT_STREAM_KEYS = "select key from streams where state != 'erased' and key >= $1 order by key"
INSERT_HEADS = "insert into stream_locks select key, 1 from unnest($1::bigint[]) as k (key)"
INSERT_LABELS = """
    insert into labels select stream, digest from unnest($1::bigint[], $2::bytea[]) as l (stream, digest)
"""
SHORT_PLANS = """
    set enable_seqscan = off; set enable_hashjoin = off; set enable_mergejoin = off;
    set idle_in_transaction_session_timeout = 0
"""
"""Without them the planner may read the whole journal for a few sessions, since it cannot know that there are few."""
SELECT_TYPES = """
    select attname::text, atttypid::regtype::text from pg_attribute
    where attrelid = $1::text::regclass and attnum > 0 and not attisdropped
"""
numbers = count(1)


def begin_reading(session: Session) -> None:
    """Begin a transaction that sees one state of the database for as long as it takes."""
    session.connection.execute(SHORT_PLANS.encode(), prepare=False)
    session.execute("begin isolation level repeatable read")


def read(session: Session, table: CopiedTable, after: Row | None, stream: int | None) -> Iterator[Row]:
    """The rows of a table; see `voicemem.store.ports.copying.CopyEnd.read`."""
    if table.key[0] == "stream":
        yield from read_of_streams(session, table, after, stream)
        return
    behind, values = condition(table, after, 1)
    content = CONTENT.get(table.name, "true")
    query = f"select {columns(table)} from {table.name} t where {behind} and {content} order by {keys(table)}"
    yield from scan(session, query, values, FETCHED_ROWS)


def read_of_streams(session: Session, table: CopiedTable, after: Row | None, stream: int | None) -> Iterator[Row]:
    """The same for a table with content of streams: the rows of some sessions after those of others."""
    behind, values = condition(table, after, 2)
    query = f"""
        select {columns(table)} from unnest($1::bigint[]) as wanted (key)
        join {table.name} t on t.stream = wanted.key
        where {behind} order by {keys(table)}
    """
    size = FETCHED_ARCHIVES if table is ARCHIVES else FETCHED_ROWS
    if stream is not None:
        yield from scan(session, query, [[stream], *values], size)
        return
    wanted: list[int] = []
    for (key,) in scan(session, SELECT_STREAM_KEYS, [after[0] if after else 0], STREAMS_AT_ONCE):
        wanted.append(key)
        if len(wanted) == STREAMS_AT_ONCE:
            yield from scan(session, query, [wanted, *values], size)
            wanted = []
    if wanted:
        yield from scan(session, query, [wanted, *values], size)


def columns(table: CopiedTable) -> str:
    return ", ".join(f"t.{name}" for name in table.columns)


def keys(table: CopiedTable) -> str:
    return ", ".join(f"t.{name}" for name in table.key)


def condition(table: CopiedTable, after: Row | None, first: int) -> tuple[str, list[Any]]:
    """What holds for rows behind a key, whose values have numbers from `first` on."""
    if after is None:
        return "true", []
    marks = ", ".join(f"${number}" for number in range(first, first + len(after)))
    return f"({keys(table)}) > ({marks})", list(after)


def scan(session: Session, query: str, values: Sequence[Any], size: int) -> Iterator[Row]:
    """The rows of a query, of which `size` are held at a time."""
    name = f"copied_{next(numbers)}"
    session.execute(f"declare {name} no scroll cursor for {query}", values)
    try:
        while rows := session.rows(f"fetch forward {size} from {name}"):
            yield from rows
    finally:
        with suppress(psycopg.Error):
            session.execute(f"close {name}")


def insert(session: Session, table: CopiedTable, rows: Sequence[Row]) -> None:
    """Insert rows of a table, and what this engine repeats of them."""
    names = list(table.columns)
    flags = [index for index, kind in enumerate(table.columns.values()) if kind == FLAG]
    inserted = [*names, *(DERIVED if table is STREAMS else ())]
    types = column_types(session, table.name)
    statement = f"copy {table.name} ({', '.join(inserted)}) from stdin (format binary)"
    with session.connection.cursor() as cursor, cursor.copy(statement.encode()) as copying:
        copying.set_types([types[name] for name in inserted])
        for row in rows:
            values = list(row)
            for index in flags:
                values[index] = bool(values[index])
            if table is STREAMS:
                config = config_of(row)
                values += [config.get(name) for name in DERIVED]
            copying.write_row(values)
    if table is STREAMS:
        insert_repeated(session, rows)


def column_types(session: Session, table: str) -> dict[str, str]:
    """The type of each column, by which its values are sent."""
    return dict(session.rows(SELECT_TYPES, (table,)))


def insert_repeated(session: Session, rows: Sequence[Row]) -> None:
    """What finds streams by labels, and the rows that appends lock."""
    session.execute(INSERT_HEADS, ([row[KEY] for row in rows],))
    labels: list[Row] = []
    for row in rows:
        if row[KIND] != SESSION_KIND:
            continue
        config = config_of(row)
        labels += [(row[KEY], label_digest(*label)) for label in (config.get("labels") or {}).items()]
    insert_columns(session, INSERT_LABELS, labels)


def insert_columns(session: Session, statement: str, rows: Sequence[Row]) -> None:
    if rows:
        session.execute(statement, [list(column) for column in zip(*rows, strict=True)])


FIRST_TIMED_KEY = 1 << 40
"""Lower keys were given by a file, which counts; a key of this engine begins with the time, and is higher."""
PARTITION_OF_COUNTED = f"""
    create table if not exists journal_copied partition of journal for values from (minvalue) to ({FIRST_TIMED_KEY})
"""
SELECT_LIVING_NODE = "select 1 from nodes where expires_ms > $1 limit 1"
SELECT_ANY_NODE = "select 1 from nodes limit 1"
HOLD_NODES = "select 1 from meta where name = 'schema' for share"
"""Keeps nodes from starting until the end of the transaction."""
TAKE_TARGET = "select pg_try_advisory_lock(hashtextextended('voicemem copy ' || current_schema(), 0))"
TAKING_S, PAUSE_S = 10.0, 0.2
"""How long the server may take to end the connection of a copy that was killed."""
DELETE_META = "delete from meta where name = $1"
MEASURE = f"""
    select count(*) filter (where s.kind = 'session'),
    count(*) filter (where s.state = 'running' and s.kind = 'session'), count(*) filter (where s.kind = 'user'),
    coalesce(sum({JOURNAL_END}), 0)::bigint, (select count(*) from keys), (select count(*) from endpoints),
    (select count(*) from deliveries where due_ms is not null), (select count(*) from attempts),
    (select coalesce(sum(epoch), 0)::bigint from producers), (select coalesce(min(key), 0) from streams),
    (select coalesce(max(key), 0) from streams)
    from streams s where s.state != 'erased'
"""
SELECT_IS_EMPTY = f"select not ({' or '.join(f'exists (select 1 from {one.name})' for one in TABLES)})"
ANALYZE = f"analyze {', '.join(one.name for one in TABLES)}"
"""The tables of the copy only: those of the server are none of a role's business."""
COUNT_BYTES = """
    insert into stored_bytes select s.project, sum(r.size) from (
        select stream, octet_length(payload) as size from journal
        union all select stream, octet_length(runs) from archives
    ) r join streams s on s.key = r.stream group by s.project
    on conflict (project) do update set bytes = excluded.bytes
"""
AGAIN = "Run the same command again to go on."


class PostgresqlCopy:
    """A database that no node serves; a target gets the schema where it has none, unless it is only looked at."""

    def __init__(self, url: str, is_target: bool, only_look: bool) -> None:
        """Connect. Raises `CannotStart`."""
        self.url = url
        self.reader: Session | None = None
        try:
            self.session = connect(url)
        except psycopg.Error as error:
            raise CannotStart(f"PostgreSQL cannot be used: {reason(error)}") from None
        try:
            with telling():
                if is_target and not only_look:
                    self.take_target()
                if check_version(self.session, exactly=True):
                    self.refuse_nodes(only_look)
                elif not is_target:
                    raise CannotStart("The database is empty: there is nothing to copy.")
                if not is_target:
                    self.hold_source(only_look)
        except CopyFailed as error:
            self.close()
            raise CannotStart(str(error)) from None
        except BaseException:
            self.close()
            raise

    def take_target(self) -> None:
        """Keep other copies out, and make the schema."""
        deadline = time.monotonic() + TAKING_S
        while not self.session.one(TAKE_TARGET)[0]:
            if time.monotonic() > deadline:
                raise CannotStart("Another voicemem copy writes this database.")
            time.sleep(PAUSE_S)
        migrate(self.session, upgrade=False)
        add_partitions(self.session, *self.session.one(SELECT_NOW))

    def refuse_nodes(self, only_look: bool) -> None:
        """Raise `CannotStart` while a node serves the database; lost ones are retired, so that none comes back."""
        with self.transaction():
            now_ms = self.refuse_living()
            for (token,) in () if only_look else self.session.rows(SELECT_LOST_NODES, (now_ms,)):
                retire(self.session, token, now_ms)

    def refuse_living(self) -> int:
        """The time; no node starts until the end of the transaction. Raises `CannotStart`."""
        self.session.execute(LOCK_META)
        (now_ms,) = self.session.one(SELECT_NOW)
        if self.session.row(SELECT_LIVING_NODE, (now_ms,)) is not None:
            raise CannotStart("A node serves this database; voicemem nodes lists them. Stop them all for the copy.")
        return int(now_ms)

    def hold_source(self, only_look: bool) -> None:
        """Begin to read; unless it is only a look, no node starts until the copy ends."""
        self.reader = connect(self.url)
        begin_reading(self.reader)
        if not only_look:
            self.reader.execute(HOLD_NODES)
            if self.session.row(SELECT_ANY_NODE) is not None:
                raise CannotStart("A node has just begun to serve this database; stop it for the copy.")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.session.execute("begin")
        try:
            yield
        except BaseException:
            if not self.session.is_lost:
                self.session.execute("rollback")
            raise
        self.session.execute("commit")

    @property
    def values(self) -> Mapping[str, bytes]:
        return dict(self.session.rows(SELECT_META)) if self.session.rows(SELECT_TABLES) else {}

    @property
    def is_empty(self) -> bool:
        return not self.session.rows(SELECT_TABLES) or bool(self.session.one(SELECT_IS_EMPTY)[0])

    def measure(self) -> Volume:
        with telling():
            return Volume(*self.session.one(MEASURE))

    def read(self, table: CopiedTable, after: Row | None = None, stream: int | None = None) -> Iterator[Row]:
        with telling():
            if self.reader is None:
                self.reader = connect(self.url)
                begin_reading(self.reader)
            yield from read(self.reader, table, after, stream)

    def hand_over(self, moved: bytes) -> None:
        with telling():
            self.session.execute(SAVE_META, (MOVED, moved))

    def prepare(self, volume: Volume, mark: bytes) -> None:
        with telling():
            with self.transaction():
                self.refuse_living()
                self.session.execute(SAVE_META, (COPYING, mark))
            if 0 < volume.first_key < FIRST_TIMED_KEY:
                self.session.execute(PARTITION_OF_COUNTED)
            if volume.last_key >= FIRST_TIMED_KEY:
                self.add_past_partitions(max(volume.first_key, FIRST_TIMED_KEY))

    def add_past_partitions(self, first: int) -> None:
        """Make the partitions of the months from that of a key on; those of the present are there."""
        (now_ms,) = self.session.one(SELECT_NOW)
        add_partitions(self.session, now_ms, (first >> RANDOM_BITS) + EPOCH_MS, FIRST_TIMED_KEY)

    def add(self, table: CopiedTable, rows: Sequence[Row], mark: bytes) -> None:
        with telling(), self.transaction():
            insert(self.session, table, rows)
            self.session.execute(SAVE_META, (COPYING, mark))

    def finish(self, values: Mapping[str, bytes]) -> None:
        self.end_reading()
        with telling():
            self.session.execute(ANALYZE)
            with self.transaction():
                self.session.execute(COUNT_BYTES)
                for name, value in values.items():
                    self.session.execute(SAVE_META, (name, value))
                PostgresqlMemoryWords(values["cursor_secret"]).make_words(PostgresqlConnection(self.session))
                self.session.execute(DELETE_META, (COPYING,))

    def end_reading(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.reader = None

    def close(self) -> None:
        self.end_reading()
        self.session.close()


@contextmanager
def telling() -> Iterator[None]:
    """Raise `CopyFailed` for what PostgreSQL does not do."""
    try:
        yield
    except psycopg.Error as error:
        raise CopyFailed(f"The copy was cut off: {why(error)}. {AGAIN}") from None
