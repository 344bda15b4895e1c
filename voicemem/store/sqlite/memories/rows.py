"""Memories as rows, and their words, in the writer's transaction.

`memory_words` keeps no texts (`content=''`), so what is taken out of it must be given again exactly as it was put in.
That follows from the row, from how words are made of a text, and from the store's `cursor_secret`; where one of the
last two has changed, `make_words` makes them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from voicemem.errors import Refused
from voicemem.search.words import WORDS_VERSION
from voicemem.store.ports.heard_index import scope_terms
from voicemem.store.ports.memories import STORED, MemoryRow, row_of_values, values_of

NAMES = ", ".join(STORED)
COLUMNS = ", ".join(f"m.{name}" for name in STORED)
"""As `row_of_values` takes them."""
IS_THERE = "exists (select 1 from streams where key = m.stream and state != 'erased')"
SELECT_IS_TAKEN = f"""
    select 1 from memories m where project = ? and id = ? and stream != ? and removed_ms is null and {IS_THERE}
"""
SELECT_IS_THERE = f"""
    select 1 from memories m where stream = ? and id = ? and position = ? and removed_ms is null and {IS_THERE}
"""
SELECT_STORED = f"select number, {COLUMNS} from memories m where stream = ? and id = ?"
SELECT_PORTION = f"select number, {COLUMNS} from memories m where stream = ? limit ?"
SELECT_BATCH = f"select number, {COLUMNS} from memories m where number > ? order by number limit ?"
INSERT = f"insert into memories ({NAMES}, event_ms) values ({', '.join('?' * 23)})"
UPDATE = f"""
    update memories set ({NAMES}, event_ms) = ({", ".join("?" * 23)}) where number = ?
"""
DELETE = "delete from memories where number = ?"
DELETE_VECTOR = "delete from memory_vectors where number = ?"
INSERT_WORDS = "insert into memory_words (rowid, scope, said, about) values (?, ?, ?, ?)"
DELETE_WORDS = "insert into memory_words (memory_words, rowid, scope, said, about) values ('delete', ?, ?, ?, ?)"
CLEAR_WORDS = "insert into memory_words (memory_words) values ('delete-all')"
INSERT_LINK = "insert or ignore into superseded (stream, by_id, old_id, project, created_ms) values (?, ?, ?, ?, ?)"
DELETE_LINKS = "delete from superseded where stream = ? and by_id = ?"
DELETE_LINK = f"{DELETE_LINKS} and old_id = ?"
WORDS = "memory_words"
SELECT_WORDS = "select value from meta where name = 'memory_words'"
SAVE_WORDS = "insert or replace into meta values ('memory_words', ?)"
BATCH = 1_000
NOTE_REMOVED = "insert or replace into meta values ('memories_removed', randomblob(8))"
"""That a text was removed, of which traces are still in the file."""
SELECT_REMOVED = "select value from meta where name = 'memories_removed'"
FORGET_REMOVED = "delete from meta where name = 'memories_removed' and value = ?"


def refuse_taken_ids(connection: apsw.Connection, project: str, key: int, rows: Sequence[MemoryRow]) -> None:
    """Raise `Refused` (`memory_exists`) when a memory of another stream has an id of these."""
    for row in rows:
        if row.removed_ms is None and connection.execute(SELECT_IS_TAKEN, (project, row.id, key)).fetchone():
            raise Refused("memory_exists")


def is_there(connection: apsw.Connection, row: MemoryRow) -> bool:
    """Whether a memory stands in its stream as it does in a row."""
    return bool(connection.execute(SELECT_IS_THERE, (row.key, row.id, row.position)).fetchall())


def save(connection: apsw.Connection, row: MemoryRow, secret: bytes) -> None:
    """Insert a memory with its words, or replace that of its stream and id."""
    stored = connection.execute(SELECT_STORED, (row.key, row.id)).fetchone()
    if stored is None:
        connection.execute(INSERT, values_of(row))
        add_words(connection, connection.last_insert_rowid(), row, secret)
        save_links(connection, row, ())
        return
    number, before = stored[0], row_of_values(stored[1:])
    if before.removed_ms is None:
        row = msgspec.structs.replace(row, last_accessed_ms=before.last_accessed_ms, access_count=before.access_count)
    connection.execute(UPDATE, (*values_of(row), number))
    if row.text != before.text:
        connection.execute(DELETE_VECTOR, (number,))
    if (row.scope, row.words, row.removed_ms is None) != (before.scope, before.words, before.removed_ms is None):
        delete_words(connection, number, before, secret)
        add_words(connection, number, row, secret)
        connection.execute(NOTE_REMOVED)
    save_links(connection, row, before.supersedes)


def save_links(connection: apsw.Connection, row: MemoryRow, before: Sequence[str]) -> None:
    """Note what a memory takes the place of, and what no longer."""
    for old in set(before) - set(row.supersedes):
        connection.execute(DELETE_LINK, (row.key, row.id, old))
    for old in row.supersedes:
        connection.execute(INSERT_LINK, (row.key, row.id, old, row.project, row.updated_ms))


def remove_portion(connection: apsw.Connection, key: int, secret: bytes, limit: int) -> bool:
    """Delete memories of a stream with their words, at most `limit`; whether there were any."""
    portion: list[tuple[Any, ...]] = connection.execute(SELECT_PORTION, (key, limit)).fetchall()
    for number, *values in portion:
        row = row_of_values(values)
        delete_words(connection, number, row, secret)
        connection.execute(DELETE_LINKS, (key, row.id))
        connection.execute(DELETE, (number,))
        connection.execute(DELETE_VECTOR, (number,))
    return bool(portion)


# Words


def add_words(connection: apsw.Connection, number: int, row: MemoryRow, secret: bytes) -> None:
    if row.removed_ms is None:
        connection.execute(INSERT_WORDS, (number, *words_of_row(row, secret)))


def delete_words(connection: apsw.Connection, number: int, row: MemoryRow, secret: bytes) -> None:
    if row.removed_ms is None:
        connection.execute(DELETE_WORDS, (number, *words_of_row(row, secret)))


def words_of_row(row: MemoryRow, secret: bytes) -> tuple[str, str, str]:
    return " ".join(scope_terms(row.scope, secret)), *row.words


def make_words(connection: apsw.Connection, secret: bytes) -> None:
    """Make the words of all memories again, unless they are those that this program makes with this secret."""
    wanted = WORDS_VERSION.to_bytes(4) + secret
    if connection.execute(SELECT_WORDS).get in (None, wanted):  # the schema writes an empty value
        return
    connection.execute(CLEAR_WORDS)
    batch: list[tuple[Any, ...]] = connection.execute(SELECT_BATCH, (0, BATCH)).fetchall()
    while batch:
        for number, *values in batch:
            add_words(connection, number, row_of_values(values), secret)
        batch = connection.execute(SELECT_BATCH, (batch[-1][0], BATCH)).fetchall()
    connection.execute(SAVE_WORDS, (wanted,))
