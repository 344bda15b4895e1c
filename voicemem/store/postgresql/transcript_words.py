"""The transcript index on PostgreSQL: tables of the database, and its own text search.

How rare words are counts over the messages of the scope alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from voicemem.search.passages import BEFORE_WEIGHT, Passage, day_words, indexed_words
from voicemem.search.words import QueryWord
from voicemem.store.database import Connection, Database, Row
from voicemem.store.postgresql.ranking import ranked, ranked_values
from voicemem.store.scopes import Scope, query_terms, scope_terms
from voicemem.store.transcript_index import MAX_LOOKS, IndexedSession, MessageFullText, TranscriptQuery

T = TypeVar("T")
SELECT_READABLE = "select key from streams where key in :keys and state <> 'erased' order by key for share"
"""What erases a session waits until this transaction is over, and then deletes what it wrote."""
WORDS = """
    setweight(to_tsvector('voicemem', cast(:own_words as text)), 'A')
    || to_tsvector('voicemem', cast(:other_words as text))
    || array_to_tsvector(string_to_array(cast(:scope as text), ' '))
"""
FIND = """
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

    is_apart = False
    resets = 0

    def __init__(self, database: Database) -> None:
        self.write = self.write_if_there = database.write
        self.read = database.scan

    async def write_readable(self, keys: Sequence[int], job: Callable[[Connection, Collection[int]], T]) -> T:
        def locked(connection: Connection) -> T:
            return job(connection, {key for (key,) in connection.rows(SELECT_READABLE, keys=list(keys))})

        return await self.write(locked)


class PostgresqlMessageWords(MessageFullText):
    """The words of messages, as a tsvector in each row."""

    columns: Mapping[str, str] = {"words": WORDS}

    def __init__(self, database: Database) -> None:
        self.database = database

    @property
    def secret(self) -> bytes:
        """Makes the terms of scopes."""
        return self.database.identity["incarnation"]

    def values(self, session: IndexedSession, passage: Passage) -> dict[str, Any]:
        """The words of a message and its day, those of the message before it, and those of its scope."""
        said, before, day = indexed_words(passage, day_words(session.started_ms))
        return {
            "length": len(said) + len(before) + len(day),
            "own_words": " ".join([*said, *day]),
            "other_words": " ".join(before),
            "scope": " ".join(scope_terms(session.scope, self.secret)),
        }

    def find(self, connection: Connection, query: TranscriptQuery) -> list[Row]:
        given = query.scope.given
        totals = "select sum(messages), sum(words) from transcript_sessions where "
        totals += " and ".join(f"{name} = :{name}" for name in given)
        said = "said_ms >= :since_ms and said_ms < :until_ms"
        start = ranked("transcript_messages", "stream, turn, number", BEFORE_WEIGHT, totals, said)
        values = given | query.values | ranked_values(query_terms(query.scope, self.secret), query.words)
        return connection.rows(FIND.format(ranked=start), **values)

    def find_sessions(self, connection: Connection, scope: Scope, words: Sequence[QueryWord], limit: int) -> list[int]:
        values = {
            "terms": " & ".join(query_terms(scope, self.secret)),
            "all": " & ".join(f"'{word.text}':{'*' if word.is_prefix else ''}A" for word in words),
        }
        rows = connection.rows(FIND_SESSIONS, looks=MAX_LOOKS, limit=limit, **values)
        return [key for (key,) in rows]
