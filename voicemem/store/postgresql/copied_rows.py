"""How rows of a copy are read from a PostgreSQL database and written into one (`voicemem.store.copied_tables`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import psycopg

from voicemem.store.copied_tables import (
    ARCHIVES,
    ATTEMPTS,
    DELIVERIES,
    ENDPOINTS,
    FLAG,
    KEY,
    KIND,
    STREAMS,
    CopiedTable,
    Row,
    config_of,
)
from voicemem.store.postgresql.database.connection import Session
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
