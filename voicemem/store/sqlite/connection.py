"""A connection to SQLite, as the store uses it (`voicemem.store.database`)."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import apsw

from voicemem.store.database import Row

LIST_PARAMETER = re.compile(r"\bin (:\w+)")
IN_LIST = r"in (select value from json_each(\1))"
LOCKS = re.compile(r"\s+for (?:no key )?(?:update|share)\b(?: of \w+)?(?: skip locked)?")
FUNCTIONS = (("greatest(", "max("), ("least(", "min("), ("strpos(", "instr("), ("md5(", "("))


@lru_cache(4096)
def to_sqlite(text: str) -> str:
    """Put what is written for both engines into SQLite's words."""
    for common, own in FUNCTIONS:
        text = text.replace(common, own)
    return LOCKS.sub("", LIST_PARAMETER.sub(IN_LIST, text))


def to_bindings(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: json.dumps(list(value)) if isinstance(value, (list, tuple, set)) else value
        for name, value in values.items()
    }


class SqliteConnection:
    __slots__ = ("raw", "streams")

    def __init__(self, raw: apsw.Connection, streams: Any = None) -> None:
        self.raw = raw
        self.streams = streams

    def hold_node(self, token: str) -> None:
        return

    def fence(self, token: str | None) -> None:
        self.streams.invalidate()

    def draw_key(self) -> int:
        return int(self.streams.keys.draw())

    def lock(self, name: str) -> None:
        return

    def row(self, query: str, **values: Any) -> Row | None:
        row: Row | None = self.raw.execute(to_sqlite(query), to_bindings(values)).fetchone()
        return row

    def rows(self, query: str, **values: Any) -> list[Row]:
        return self.raw.execute(to_sqlite(query), to_bindings(values)).fetchall()

    def one(self, query: str, **values: Any) -> Row:
        row = self.row(query, **values)
        assert row is not None
        return row

    def execute(self, statement: str, **values: Any) -> int:
        before = self.raw.total_changes()
        self.raw.execute(to_sqlite(statement), to_bindings(values)).fetchall()
        return self.raw.total_changes() - before

    def many(self, statement: str, values: Sequence[dict[str, Any]]) -> None:
        self.raw.executemany(to_sqlite(statement), [to_bindings(one) for one in values])


BEGIN, COMMIT, ROLLBACK = "begin immediate", "commit", "rollback"


@contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """A transaction of one connection that others may write beside: it has the file from its first look on."""
    connection.execute(BEGIN)
    try:
        yield
        connection.execute(COMMIT)
    finally:
        if connection.in_transaction:
            connection.execute(ROLLBACK)
