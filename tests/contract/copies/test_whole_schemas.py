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
OF_ONE_ENGINE = {"sqlite": {("memories", "number")}, "postgresql": {("memories", "length"), ("memories", "words")}}
"""Columns that the copy has no use for: they are made again from others."""
COPIED = {table.name for table in TABLES}
SELECT_COLUMNS = """
    select table_name, column_name from information_schema.columns
    where table_schema = 'public' and table_name !~ '^journal_'
"""
SELECT_COLUMNS_OF_FILE = """
    select t.name, c.name from sqlite_schema t join pragma_table_info(t.name) c where t.type = 'table'
"""


async def columns_of_file() -> set[tuple[str, str]]:
    store = InMemoryStore()
    columns = set(store.database.writer.execute(SELECT_COLUMNS_OF_FILE))
    await store.close_store()
    return columns


async def test_every_table_of_a_file_is_copied_or_known_to_stay() -> None:
    """What is new in the schema has to be decided about."""
    assert COPIED == {table for table, _ in await columns_of_file()} - STAY_OF_SQLITE


@pytest.mark.postgresql
async def test_every_table_of_a_database_is_copied_with_all_columns_or_known_to_stay(tmp_path: Path) -> None:
    """The same for PostgreSQL; and no column of one engine lacks on the other, which would not be copied."""
    with database_of(tmp_path) as name:
        columns = {(str(table), str(column)) for table, column in server().execute(SELECT_COLUMNS, name)}
    assert COPIED == {table for table, _ in columns} - STAY_OF_POSTGRESQL
    ours = {(table, column) for table, column in await columns_of_file() if table in COPIED}
    theirs = {(table, column) for table, column in columns if table in COPIED}
    assert OF_ONE_ENGINE == {"sqlite": ours - theirs, "postgresql": theirs - ours}
