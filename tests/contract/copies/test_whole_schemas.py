"""No table and no column can be added that copies forget."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.postgresql import database_of, server
from voicemem.store.copying import TABLES
from voicemem.store.sqlite.store import InMemoryStore

STAY = {"memory_vectors", "extracted", "meta", "nodes", "observations", "replies", "snapshots", "spent_tokens"}
"""Tables of which rows are not copied; of `meta`, two values are."""
WORDS = {f"memory_words{part}" for part in ("", "_config", "_data", "_docsize", "_idx")}
STAY_OF_SQLITE = {*STAY, *WORDS, "claims", "stored_bytes", "sqlite_sequence"}
STAY_OF_POSTGRESQL = {
    *STAY,
    "claims",
    "stream_locks",
    "transcript_messages",
    "transcript_sessions",
    "transcript_vectors",
    "labels",
    "lanes",
    "commit_markers",
    "stored_bytes",
}
LEFT_OUT = {
    "streams": {"name", "user_id", "channel"},
    "memories": {"number", "length", "words"},
}
"""Columns that are made again from others."""
COPIED = {table.name: set(table.columns) for table in TABLES}
SELECT_COLUMNS = """
    select table_name, column_name from information_schema.columns
    where table_schema = 'public' and table_name !~ '^journal_'
"""


def copied_columns(columns: list[tuple[str, str]], stay: set[str]) -> dict[str, set[str]]:
    """The columns of each table that a copy must know."""
    found: dict[str, set[str]] = {}
    for table, column in columns:
        if table not in stay and column not in LEFT_OUT.get(table, ()):
            found.setdefault(table, set()).add(column)
    return found


async def test_every_table_of_a_file_is_copied_or_known_to_stay() -> None:
    """What is new in the schema has to be decided about."""
    store = InMemoryStore()
    tables = [name for (name,) in store.database.writer.execute("select name from sqlite_schema where type = 'table'")]
    columns = [
        (table, column)
        for table in tables
        for (_, column, *_) in store.database.writer.execute(f"pragma table_info({table})")
    ]
    await store.close_store()
    assert COPIED == copied_columns(columns, STAY_OF_SQLITE)


@pytest.mark.postgresql
def test_every_table_of_a_database_is_copied_or_known_to_stay(tmp_path: Path) -> None:
    """The same for PostgreSQL."""
    with database_of(tmp_path) as name:
        columns = [(str(table), str(column)) for table, column in server().execute(SELECT_COLUMNS, name)]
    assert COPIED == copied_columns(columns, STAY_OF_POSTGRESQL)
