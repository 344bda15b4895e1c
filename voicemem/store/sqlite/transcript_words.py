"""The words of messages on SQLite: an FTS5 table in the file of the index.

`words` keeps no texts of its own (`content=''`), so what is taken out of it must be given again exactly as it was put
in; `transcript_messages` has it. SQLite's option `contentless_delete`, which needs no text, would leave the words of a
deleted message in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voicemem.search.passages import BEFORE_WEIGHT, Passage, day_words, indexed_words
from voicemem.search.words import WORDS_VERSION, QueryWord
from voicemem.store.database import Connection, Row
from voicemem.store.scopes import Scope, query_terms, scope_terms
from voicemem.store.transcript_index import (
    MAX_LOOKS,
    PASSAGE_COLUMNS,
    IndexedSession,
    MessageFullText,
    TranscriptQuery,
)

INDEX_VERSION = 3_000 + WORDS_VERSION
"""An index of another version is made again."""
SCHEMA = f"""
begin;
create table meta (name text primary key, value blob not null) strict;
create table transcript_sessions (
    stream integer primary key, position integer not null, project text not null, namespace text, user_id text,
    session_id text not null, started_ms integer not null, messages integer not null, words integer not null
) strict;
create index transcript_sessions_by_project on transcript_sessions (project);
create index transcript_sessions_by_namespace on transcript_sessions (project, namespace) where namespace is not null;
create index transcript_sessions_by_user on transcript_sessions (project, user_id) where user_id is not null;
create index transcript_sessions_by_id on transcript_sessions (project, session_id);
create table transcript_messages (
    id integer primary key, stream integer not null, turn integer not null, number integer not null,
    position integer not null, role text not null, said_ms integer not null, text text not null, before text not null,
    length integer not null, unique (stream, turn, number)
) strict;
create table transcript_vectors (
    stream integer not null, turn integer not null, number integer not null, said_ms integer not null,
    embedder integer not null, vector blob, primary key (stream, turn, number)
) strict;
create virtual table words using fts5 (scope, said, before, day, content='', tokenize='porter ascii');
insert into words (words, rank) values ('secure-delete', 1);
pragma user_version = {INDEX_VERSION};
commit;
"""
SELECT_IDS = "select turn, number, id from transcript_messages where stream = :key and turn in :turns"
ADD = "insert into words (rowid, scope, said, before, day) values (:id, :scope, :said, :before, :day)"
"""Without a select: FTS5 would write a segment of its index for each such statement."""
SELECT_REMOVED = f"select id, {PASSAGE_COLUMNS} from transcript_messages where stream = :key and {{where}}"
REMOVE = """
    insert into words (words, rowid, scope, said, before, day) values ('delete', :id, :scope, :said, :before, :day)
"""
CLEAR = "insert into words (words) values ('delete-all')"
FIND = f"""
    select stream, turn, number, position, role, said_ms, text, -bm25(words, 0.0, 1.0, {BEFORE_WEIGHT}, 1.0) as score
    from words join transcript_messages on id = words.rowid
    where words match :match and said_ms >= :since_ms and said_ms < :until_ms
    order by score desc, said_ms desc, id desc limit :limit offset :offset
"""
FIND_SESSIONS = """
    select stream from words join transcript_messages on id = words.rowid where words match :match
    order by words.rowid desc limit :looks
"""


class SqliteMessageWords(MessageFullText):
    """The words of messages in FTS5, which counts them for itself. `secret` makes the terms of scopes."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret

    def words_of(self, session: IndexedSession, passage: Passage) -> dict[str, str]:
        """What a message is found by, as one text for each column."""
        said, before, day = (" ".join(words) for words in indexed_words(passage, day_words(session.started_ms)))
        scope = " ".join(scope_terms(session.scope, self.secret))
        return {"scope": scope, "said": said, "before": before, "day": day}

    def add(self, connection: Connection, session: IndexedSession, passages: Sequence[Passage]) -> None:
        turns = list({one.turn_id for one in passages})
        ids = {(turn, number): id for turn, number, id in connection.rows(SELECT_IDS, key=session.key, turns=turns)}
        values = ({"id": ids[one.turn_id, one.number], **self.words_of(session, one)} for one in passages)
        connection.many(ADD, list(values))

    def remove(self, connection: Connection, session: IndexedSession, where: str, **values: Any) -> None:
        rows = connection.rows(SELECT_REMOVED.format(where=where), key=session.key, **values)
        connection.many(REMOVE, [{"id": row[0], **self.words_of(session, Passage(*row[1:]))} for row in rows])

    def clear(self, connection: Connection) -> None:
        connection.execute(CLEAR)

    def find(self, connection: Connection, query: TranscriptQuery) -> list[Row]:
        """The messages with any of the words. The scope is part of the expression that FTS5 looks up."""
        words = " OR ".join(map(word_expression, query.words))
        match = f"{self.scope_expression(query.scope)} AND {{said before day}} : ({words})"
        return connection.rows(FIND, match=match, **query.values)

    def find_sessions(self, connection: Connection, scope: Scope, words: Sequence[QueryWord], limit: int) -> list[int]:
        match = f"{self.scope_expression(scope)} AND said : ({' AND '.join(map(word_expression, words))})"
        rows = connection.rows(FIND_SESSIONS, match=match, looks=MAX_LOOKS)
        return list(dict.fromkeys(key for (key,) in rows))[:limit]

    def scope_expression(self, scope: Scope) -> str:
        return " AND ".join(f'scope : "{term}"' for term in query_terms(scope, self.secret))


def word_expression(word: QueryWord) -> str:
    return f'"{word.text}"{" *" if word.is_prefix else ""}'
