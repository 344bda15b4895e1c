"""The words of memories on PostgreSQL: a tsvector in each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from voicemem.search.passages import ABOUT_WEIGHT
from voicemem.search.words import QueryWord
from voicemem.store.database import Connection
from voicemem.store.memories import COLUMNS, NEWEST_FIRST, MemoryFullText
from voicemem.store.memory_rows import MemoryRow, row_of_values
from voicemem.store.postgresql.ranking import ranked, ranked_values
from voicemem.store.scopes import Scope, query_terms, scope_terms

WORDS = """
    setweight(to_tsvector('voicemem', cast(:said as text)), 'A') || to_tsvector('voicemem', cast(:about as text))
    || array_to_tsvector(string_to_array(cast(:scope as text), ' '))
"""
TOTALS = "select count(*), sum(length) from memories where removed_ms is null"
"""The memories among which the rarity of words counts."""
FIND = f"""
    {{ranked}} select score, {COLUMNS} from scored join memories m using (stream, id)
    order by score desc, {NEWEST_FIRST} limit :limit
"""
SELECT_BATCH = f"""
    select {COLUMNS} from memories m where (stream, id) > (:stream, :id) and removed_ms is null
    order by stream, id limit 500
"""
SAVE_WORDS = f"update memories set length = :length, words = {WORDS} where stream = :stream and id = :id"


class PostgresqlMemoryWords(MemoryFullText):
    """The words of memories, as a tsvector in each row."""

    columns: Mapping[str, str] = {"length": ":length", "words": WORDS}

    def values(self, row: MemoryRow) -> dict[str, Any]:
        """How many words a memory has, those that it says, those it is about, and those of its scope."""
        if row.removed_ms is not None:
            return {"length": 0, "said": "", "about": "", "scope": ""}
        said, about = row.words
        scope = " ".join(scope_terms(row.scope, self.secret))
        return {"length": len(said.split()) + len(about.split()), "said": said, "about": about, "scope": scope}

    def query(self, scope: Scope, words: Sequence[QueryWord], conditions: str) -> tuple[str, dict[str, Any]]:
        given = {f"scope_{name}": part for name, part in scope._asdict().items() if part is not None}
        totals = " and ".join((TOTALS, *(f"{name.removeprefix('scope_')} = :{name}" for name in given)))
        query = FIND.format(ranked=ranked("memories", "stream, id", ABOUT_WEIGHT, totals, conditions))
        return query, given | ranked_values(query_terms(scope, self.secret), words)

    def make_words(self, connection: Connection) -> None:
        """Make the words of all memories, which a copy inserted without any."""
        place = {"stream": 0, "id": ""}
        while batch := [row_of_values(row) for row in connection.rows(SELECT_BATCH, **place)]:
            connection.many(SAVE_WORDS, [{"stream": r.key, "id": r.id, **self.values(r)} for r in batch])
            place = {"stream": batch[-1].key, "id": batch[-1].id}
