"""A connection to PostgreSQL, as the store uses it (`voicemem.store.database`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from voicemem.store.database import Row
from voicemem.store.postgresql.database.connection import Session

LOCK = "select pg_advisory_xact_lock(hashtextextended(current_schema() || ' ' || $1, 0))"
PARTS = re.compile(r"('(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|::\w+)|\b(not in|in) :(\w+)|:(\w+)")
"""What is left alone (literals, quoted names, comments, casts), a list parameter, and any other parameter."""


class Statement(NamedTuple):
    """A text with numbered parameters, and which named one each of them is."""

    text: bytes
    names: tuple[str, ...]

    def values(self, values: dict[str, Any]) -> list[Any]:
        return [values[name] for name in self.names]


@lru_cache(4096)
def to_postgresql(text: str) -> Statement:
    """Number the parameters of a text."""
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


class PostgresqlConnection:
    """A `voicemem.store.database.Connection` on PostgreSQL."""

    __slots__ = ("rows_of_job", "session")

    def __init__(self, session: Session, rows_of_job: Any = None) -> None:
        self.session = session
        self.rows_of_job = rows_of_job

    def hold_node(self, token: str) -> None:
        self.streams.hold_node(token)

    def draw_key(self) -> int:
        return int(self.streams.shared.keys.draw())

    def lock(self, name: str) -> None:
        self.session.execute(LOCK, (name,))

    @property
    def streams(self) -> Any:
        assert self.rows_of_job is not None, "a job that only reads"
        return self.rows_of_job

    def row(self, query: str, **values: Any) -> Row | None:
        statement = to_postgresql(query)
        return self.session.send(statement.text, statement.values(values)).fetchone()

    def rows(self, query: str, **values: Any) -> list[Row]:
        statement = to_postgresql(query)
        return self.session.send(statement.text, statement.values(values)).fetchall()

    def one(self, query: str, **values: Any) -> Row:
        row = self.row(query, **values)
        assert row is not None
        return row

    def execute(self, statement: str, **values: Any) -> int:
        numbered = to_postgresql(statement)
        return self.session.send(numbered.text, numbered.values(values)).rowcount

    def many(self, statement: str, values: Sequence[dict[str, Any]]) -> None:
        numbered = to_postgresql(statement)
        self.session.send_many(numbered.text, [numbered.values(one) for one in values])
