"""The words of memories and of messages on PostgreSQL: a tsvector in each row.

PostgreSQL does not rank by how rare words are, so a query computes BM25 itself, over the texts of the scope alone.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from voicemem.search.passages import ABOUT_WEIGHT, BEFORE_WEIGHT, Passage, day_words, indexed_words
from voicemem.search.words import QueryWord
from voicemem.store.database import Connection, Database, Row
from voicemem.store.memories import COLUMNS, NEWEST_FIRST, MemoryFullText, MemoryRow, MemorySearch, row_of_values
from voicemem.store.scopes import QueryScope, Scope, query_terms, scope_terms
from voicemem.store.transcript_index import MAX_LOOKS, IndexedSession, MessageFullText
from voicemem.store.transcript_search import TranscriptQuery

T = TypeVar("T")
K1, B = 1.2, 0.75
"""The parameters of BM25, as FTS5 has them."""


def ranked(table: str, key: str, other_weight: float, totals: str, conditions: str) -> str:
    """Return the beginning of a query (`with …`): `scored` has the key of each row that was found, and its `score`.

    Its parameters are those of `ranked_values`. `table` has `words`, of weight A or of the other one, and `length`,
    their number; its rows `m` are found by `conditions`. `totals` selects the numbers of texts and of words in the
    scope.
    """
    return f"""
with query as materialized (
    select cast(:terms as tsquery) && to_tsquery('voicemem', cast(:either as text)) as query,
    tsvector_to_array(to_tsvector('voicemem', cast(:whole as text))) as lexemes,
    string_to_array(cast(:beginnings as text), ' ')
        || tsvector_to_array(to_tsvector('voicemem', cast(:beginnings as text))) as beginnings
), scope as materialized (
    select greatest(texts, 1) as texts, greatest(words, 1) as words from ({totals}) as t (texts, words)
), found as materialized (
    select {key}, m.length, m.words from query join {table} m on m.words @@ query where {conditions}
), hits as materialized (
    select {key}, f.length, l.lexeme, (
        select sum(case weight when 'A' then 1 else {other_weight} end) from unnest(l.weights) as weight
    ) as frequency
    from query, found f, unnest(f.words) as l
    where l.positions is not null and (l.lexeme = any(lexemes) or l.lexeme ^@ any(beginnings))
), rarities as materialized (
    select lexeme, ln(1 + (greatest(max(scope.texts), count(*)) - count(*) + 0.5) / (count(*) + 0.5)) as rarity
    from hits, scope group by lexeme
), scored as (
    select {key}, sum(rarity * frequency * {K1 + 1} / (frequency + {K1} * (
        1 - {B} + {B} * length * scope.texts / scope.words
    )))::float8 as score
    from hits join rarities using (lexeme), scope group by {key}
)
"""


def tsquery(terms: Sequence[tuple[str, ...]]) -> str:
    return " & ".join(f"({' | '.join(group)})" for group in terms)


def ranked_values(terms: Sequence[tuple[str, ...]], words: Sequence[QueryWord]) -> dict[str, str]:
    """Return the values of such a query: the terms of its scope, and the words, whole and as prefixes."""
    return {
        "terms": tsquery(terms),
        "either": " | ".join(f"'{word.text}'{':*' if word.is_prefix else ''}" for word in words),
        "whole": " ".join(word.text for word in words if not word.is_prefix),
        "beginnings": " ".join(word.text for word in words if word.is_prefix),
    }


WORDS = """
    setweight(to_tsvector('voicemem', cast(:own as text)), 'A') || to_tsvector('voicemem', cast(:other as text))
    || array_to_tsvector(string_to_array(cast(:scope as text), ' '))
"""
"""The words of a text itself, of its additions, and of its scope."""
TOTALS = "select count(*), sum(length) from memories where removed_ms is null"
"""The memories among which the rarity of words counts."""
FIND_MEMORIES = f"""
    {{ranked}} select score, {COLUMNS} from scored join memories m using (stream, id)
    order by score desc, {NEWEST_FIRST} limit :limit
"""
SELECT_BATCH = f"""
    select {COLUMNS} from memories m where (stream, id) > (:stream, :id) and removed_ms is null
    order by stream, id limit 500
"""
SAVE_WORDS = f"update memories set length = :length, words = {WORDS} where stream = :stream and id = :id"


def words_of(own: Sequence[str], other: Sequence[str], scope: Scope, secret: bytes) -> dict[str, Any]:
    """Return the values of `WORDS`, and their number of words."""
    terms = " ".join(scope_terms(scope, secret))
    return {"length": len(own) + len(other), "own": " ".join(own), "other": " ".join(other), "scope": terms}


class PostgresqlMemoryWords(MemoryFullText):
    columns: Mapping[str, str] = {"length": ":length", "words": WORDS}

    def values(self, row: MemoryRow) -> dict[str, Any]:
        """Return the words of a memory's text, of its topics and entities, and of its scope."""
        if row.removed_ms is not None:
            return {"length": 0, "own": "", "other": "", "scope": ""}
        said, about = row.words
        return words_of(said.split(), about.split(), row.scope, self.secret)

    def find(
        self, connection: Connection, search: MemorySearch, conditions: str, values: dict[str, Any], limit: int
    ) -> list[Row]:
        clauses, scope_values = search.scope.conditions(prefix="scope_")
        totals = " and ".join((TOTALS, *clauses))
        query = FIND_MEMORIES.format(ranked=ranked("memories", "stream, id", ABOUT_WEIGHT, totals, conditions))
        found_by = ranked_values(query_terms(search.scope, self.secret), search.words)
        return connection.rows(query, **values, **scope_values, **found_by, limit=limit)

    def make_words(self, connection: Connection) -> None:
        """Make the words of all memories, which a copy inserted without any."""
        place = {"stream": 0, "id": ""}
        while batch := [row_of_values(row) for row in connection.rows(SELECT_BATCH, **place)]:
            connection.many(SAVE_WORDS, [{"stream": r.key, "id": r.id, **self.values(r)} for r in batch])
            place = {"stream": batch[-1].key, "id": batch[-1].id}


SELECT_READABLE = "select key from streams where key in :keys and state <> 'erased' order by key for share"
"""The erasure of a session waits for these locks until this transaction is over; then it deletes what this wrote."""
FIND_MESSAGES = """
    {ranked}
    select m.stream, m.turn, m.number, m.position, m.role, m.said_ms, m.text, score
    from scored join transcript_messages m using (stream, turn, number)
    order by score desc, m.said_ms desc, m.stream desc, m.turn desc, m.number desc limit :limit offset :offset
"""
FIND_SESSIONS = """
    with found as materialized (
        select stream from transcript_messages
        where words @@ (cast(:terms as tsquery) && to_tsquery('voicemem', cast(:all as text))) limit :looks
    )
    select stream from (select distinct stream from found) s order by stream desc limit :limit
"""


class PostgresqlIndex:
    """A `voicemem.store.transcript_index.IndexDatabase`: the store's own database."""

    has_own_database = False
    resets = 0

    def __init__(self, database: Database) -> None:
        self.write = self.write_if_there = database.write
        self.read = database.scan

    async def write_readable(self, keys: Sequence[int], job: Callable[[Connection, Collection[int]], T]) -> T:
        def locked(connection: Connection) -> T:
            return job(connection, {key for (key,) in connection.rows(SELECT_READABLE, keys=list(keys))})

        return await self.write(locked)


class PostgresqlMessageWords(MessageFullText):
    columns: Mapping[str, str] = {"words": WORDS}

    def values(self, session: IndexedSession, passage: Passage) -> dict[str, Any]:
        """Return the words of a message and its day, those of the message before it, and those of its scope."""
        said, before, day = indexed_words(passage, day_words(session.started_ms))
        return words_of([*said, *day], before, session.scope, self.secret)

    def find(self, connection: Connection, query: TranscriptQuery) -> list[Row]:
        clauses, scope_values = query.scope.conditions()
        totals = "select sum(messages), sum(words) from transcript_sessions where "
        totals += " and ".join(clauses)
        said = "said_ms >= :since_ms and said_ms < :until_ms"
        start = ranked("transcript_messages", "stream, turn, number", BEFORE_WEIGHT, totals, said)
        values = scope_values | query.values | ranked_values(query_terms(query.scope, self.secret), query.words)
        return connection.rows(FIND_MESSAGES.format(ranked=start), **values)

    def find_sessions(
        self, connection: Connection, scope: QueryScope, words: Sequence[QueryWord], limit: int
    ) -> list[int]:
        values = {
            "terms": tsquery(query_terms(scope, self.secret)),
            "all": " & ".join(f"'{word.text}':{'*' if word.is_prefix else ''}A" for word in words),
        }
        rows = connection.rows(FIND_SESSIONS, looks=MAX_LOOKS, limit=limit, **values)
        return [key for (key,) in rows]
