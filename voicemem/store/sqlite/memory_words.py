"""The words of memories on SQLite: an FTS5 table beside them.

`memory_words` keeps no texts (`content=''`), so what is taken out of it must be given again exactly as it was put in.
That follows from the row, from how words are made of a text, and from the store's `cursor_secret`; where one of the
last two has changed, `make_words` makes them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voicemem.search.passages import ABOUT_WEIGHT
from voicemem.search.words import WORDS_VERSION, QueryWord
from voicemem.store.database import Connection
from voicemem.store.memories import COLUMNS, NEWEST_FIRST, MemoryFullText
from voicemem.store.memory_rows import MemoryRow, row_of_values
from voicemem.store.scopes import Scope, query_terms, scope_terms

FIND = f"""
    select -bm25(memory_words, 0.0, 1.0, {ABOUT_WEIGHT}) as score, {COLUMNS}
    from memory_words cross join memories m on m.number = memory_words.rowid
    where memory_words match :match and {{conditions}} order by score desc, {NEWEST_FIRST} limit :limit
"""
"""A cross join, so that SQLite looks at the words first whatever the conditions are."""
SELECT_NUMBER = "select number from memories where stream = :stream and id = :id"
INSERT_WORDS = "insert into memory_words (rowid, scope, said, about) values (:number, :scope, :said, :about)"
DELETE_WORDS = """
    insert into memory_words (memory_words, rowid, scope, said, about)
    values ('delete', :number, :scope, :said, :about)
"""
CLEAR_WORDS = "insert into memory_words (memory_words) values ('delete-all')"
SELECT_BATCH = f"select number, {COLUMNS} from memories m where number > :after order by number limit :limit"
BATCH = 1_000
SELECT_WORDS = "select value from meta where name = 'memory_words'"
SAVE_WORDS = "insert or replace into meta values ('memory_words', :version)"
NOTE_REMOVED = "insert or replace into meta values ('removed', randomblob(8))"
"""That a text was removed, of which traces are still in the log."""


class SqliteMemoryWords(MemoryFullText):
    """The words of memories in FTS5."""

    def save(self, connection: Connection, row: MemoryRow, before: MemoryRow | None) -> None:
        found_by = None if row.removed_ms is not None else (row.scope, row.words)
        found_by_before = None if before is None or before.removed_ms is not None else (before.scope, before.words)
        if found_by == found_by_before:
            return
        (number,) = connection.one(SELECT_NUMBER, stream=row.key, id=row.id)
        if before is not None and found_by_before is not None:
            connection.execute(DELETE_WORDS, number=number, **self.words_of(before))
            connection.execute(NOTE_REMOVED)
        if found_by is not None:
            connection.execute(INSERT_WORDS, number=number, **self.words_of(row))

    def delete(self, connection: Connection, row: MemoryRow) -> None:
        if row.removed_ms is None:
            (number,) = connection.one(SELECT_NUMBER, stream=row.key, id=row.id)
            connection.execute(DELETE_WORDS, number=number, **self.words_of(row))

    def query(self, scope: Scope, words: Sequence[QueryWord], conditions: str) -> tuple[str, dict[str, Any]]:
        terms = " AND ".join(f'scope : "{term}"' for term in query_terms(scope, self.secret))
        either = " OR ".join(f'"{word.text}"{" *" if word.is_prefix else ""}' for word in words)
        return FIND.format(conditions=conditions), {"match": f"{terms} AND {{said about}} : ({either})"}

    def words_of(self, row: MemoryRow) -> dict[str, str]:
        said, about = row.words
        return {"scope": " ".join(scope_terms(row.scope, self.secret)), "said": said, "about": about}

    def make_words(self, connection: Connection) -> None:
        """Make the words of all memories again, unless they are those that this program makes with this secret."""
        version = WORDS_VERSION.to_bytes(4) + self.secret
        if connection.row(SELECT_WORDS) in (None, (version,)):
            return
        connection.execute(CLEAR_WORDS)
        after = 0
        while batch := connection.rows(SELECT_BATCH, after=after, limit=BATCH):
            for number, *values in batch:
                row = row_of_values(values)
                if row.removed_ms is None:
                    connection.execute(INSERT_WORDS, number=number, **self.words_of(row))
            after = batch[-1][0]
        connection.execute(SAVE_WORDS, version=version)
