"""The tables of the index, and how the messages of a session are put in and taken out.

`words` keeps no texts of its own (`content=''`), so what is taken out of it must be given again exactly as it was put
in; `messages` has it. SQLite's option `contentless_delete`, which needs no text, would leave the words of a deleted
message in the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import apsw

from voicemem.search.passages import BEFORE_WEIGHT, Passage, day_words, indexed_words
from voicemem.search.words import WORDS_VERSION, QueryWord
from voicemem.store.ports.heard_index import (
    MAX_HEARD_LOOKS,
    FoundMessage,
    HeardMessages,
    HeardQuery,
    HeardScope,
    asked_terms,
    scope_terms,
)

INDEX_VERSION = 2_000 + WORDS_VERSION
"""An index of another version is made again."""
SCHEMA = f"""
begin;
create table meta (name text primary key, value blob not null) strict;
create table sessions (
    key integer primary key, position integer not null, scope text not null, day text not null,
    project integer not null, namespace integer, user integer, session integer not null
) strict;
create index sessions_by_project on sessions (project);
create index sessions_by_namespace on sessions (namespace) where namespace is not null;
create index sessions_by_user on sessions (user) where user is not null;
create index sessions_by_session on sessions (session);
create table messages (
    id integer primary key, session integer not null, turn integer not null, number integer not null,
    position integer not null, role text not null, said_ms integer not null, text text not null, before text not null
) strict;
create unique index messages_by_place on messages (session, turn, number);
create table vectors (
    id integer primary key, session integer not null, said_ms integer not null, embedder integer not null, vector blob
) strict;
create index vectors_by_session on vectors (session, embedder);
create virtual table words using fts5 (scope, said, before, day, content='', tokenize='porter ascii');
insert into words (words, rank) values ('secure-delete', 1);
pragma user_version = {INDEX_VERSION};
commit;
"""
SELECT_SESSION = "select position, scope, day from sessions where key = ?"
SELECT_POSITIONS = "select key, position from sessions where key in (select value from json_each(?))"
SAVE_SESSION = "insert or replace into sessions values (?, ?, ?, ?, ?, ?, ?, ?)"
DELETE_SESSION = "delete from sessions where key = ?"
MESSAGE_COLUMNS = "turn, number, position, role, said_ms, text, before"
SELECT_TURN = f"select id, {MESSAGE_COLUMNS} from messages where session = ? and turn = ?"
SELECT_TURNS = "select distinct turn from messages where session = ?"
SELECT_PORTION = f"select id, {MESSAGE_COLUMNS} from messages where session = ? limit ?"
INSERT_MESSAGE = f"insert into messages (session, {MESSAGE_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?)"
DELETE_MESSAGE = "delete from messages where id = ?"
DELETE_VECTOR = "delete from vectors where id = ?"
INSERT_WORDS = "insert into words (rowid, scope, said, before, day) values (?, ?, ?, ?, ?)"
DELETE_WORDS = "insert into words (words, rowid, scope, said, before, day) values ('delete', ?, ?, ?, ?, ?)"
FIND = f"""
    select session, turn, number, position, role, said_ms, text, -bm25(words, 0.0, 1.0, {BEFORE_WEIGHT}, 1.0) as score
    from words join messages on id = words.rowid
    where words match ? and said_ms >= ? and said_ms < ? order by score desc, said_ms desc, id desc limit ? offset ?
"""
FIND_SESSIONS = """
    select session from words join messages on id = words.rowid where words match ?
    order by words.rowid desc limit ?
"""
PORTION = 20
"""Messages that are deleted in one transaction: each takes milliseconds, since its words are overwritten."""


def index_session(connection: apsw.Connection, update: HeardMessages, secret: bytes) -> bool:
    """Put an update into the index; False when everything of its session is needed instead."""
    scope, day = " ".join(scope_terms(update.scope, secret)), day_words(update.started_ms)
    known = connection.execute(SELECT_SESSION, (update.key,)).fetchone()
    position = None if known is None else known[0]
    if not update.is_news(position):
        return True
    is_same = known is not None and known[1:] == (scope, day)
    if not update.goes_on_from(position, is_same):
        return False
    if known is not None and not is_same:
        remove_session(connection, update.key)
    turns = set(update.turns)
    if known is not None and update.since is None:
        turns.update(turn for (turn,) in connection.execute(SELECT_TURNS, (update.key,)))
    for turn in sorted(turns):
        replace_turn(connection, update.key, turn, update.turns.get(turn, ()), scope, day)
    numbers = scope_numbers(update.scope, secret)
    connection.execute(SAVE_SESSION, (update.key, update.position, scope, day, *(numbers.get(kind) for kind in "pnus")))
    return True


def scope_numbers(scope: HeardScope, secret: bytes) -> dict[str, int]:
    """One number for each part of a scope that is given, by the first letter of its name."""
    return {term[0]: int(term[1:17], 16) - 2**63 for term in scope_terms(scope, secret)}


def replace_turn(
    connection: apsw.Connection, key: int, turn: int, passages: Sequence[Passage], scope: str, day: str
) -> None:
    """Make the rows of a turn these passages; those that did not change are left alone."""
    wanted = {passage.number: passage for passage in passages}
    for id, stored in stored_passages(connection, SELECT_TURN, (key, turn)):
        if wanted.get(stored.number) == stored:
            del wanted[stored.number]
        else:
            remove_message(connection, id, stored, scope, day)
    for passage in wanted.values():
        add_message(connection, key, passage, scope, day)


def stored_passages(connection: apsw.Connection, query: str, values: tuple[int, ...]) -> list[tuple[int, Passage]]:
    rows: list[tuple[Any, ...]] = connection.execute(query, values).fetchall()
    return [(row[0], Passage(*row[1:])) for row in rows]


def add_message(connection: apsw.Connection, key: int, passage: Passage, scope: str, day: str) -> None:
    values = passage.turn_id, passage.number, passage.position, passage.role, passage.said_ms
    connection.execute(INSERT_MESSAGE, (key, *values, passage.text, passage.before))
    connection.execute(INSERT_WORDS, (connection.last_insert_rowid(), scope, *word_columns(passage, day)))


def remove_message(connection: apsw.Connection, id: int, passage: Passage, scope: str, day: str) -> None:
    connection.execute(DELETE_WORDS, (id, scope, *word_columns(passage, day)))
    connection.execute(DELETE_MESSAGE, (id,))
    connection.execute(DELETE_VECTOR, (id,))


def word_columns(passage: Passage, day: str) -> tuple[str, ...]:
    """What a message is found by, as one text for each column."""
    return tuple(" ".join(words) for words in indexed_words(passage, day))


def remove_session(connection: apsw.Connection, key: int, limit: int = -1) -> bool:
    """Take messages of a session out of the index, at most `limit`; whether there were any."""
    session = connection.execute(SELECT_SESSION, (key,)).fetchone()
    if session is None:
        return False
    _, scope, day = session
    rows = stored_passages(connection, SELECT_PORTION, (key, limit))
    for id, passage in rows:
        remove_message(connection, id, passage, scope, day)
    if limit < 0 or len(rows) < limit:
        connection.execute(DELETE_SESSION, (key,))
    return True


def positions_of(connection: apsw.Connection, keys: Iterable[int]) -> dict[int, int]:
    """Up to where these sessions are indexed, of those that are."""
    return dict(connection.execute(SELECT_POSITIONS, (json.dumps(list(keys)),)))


def find(connection: apsw.Connection, wanted: HeardQuery, secret: bytes) -> list[FoundMessage]:
    if not wanted.words:
        return []
    values = match_expression(wanted, secret), *wanted.said_between, wanted.limit, wanted.offset
    return [FoundMessage(*row) for row in connection.execute(FIND, values)]


def find_sessions(
    connection: apsw.Connection, scope: HeardScope, words: Sequence[QueryWord], limit: int, secret: bytes
) -> list[int]:
    if not words:
        return []
    found: dict[int, None] = {}
    asked = f"{scope_expression(scope, secret)} AND said : ({' AND '.join(map(word_expression, words))})"
    for (key,) in connection.execute(FIND_SESSIONS, (asked, MAX_HEARD_LOOKS)):
        if len(found) == limit:
            break
        found[key] = None
    return list(found)


def match_expression(wanted: HeardQuery, secret: bytes) -> str:
    """The query in the language of FTS5. The scope is part of it, so that nothing outside is looked at."""
    words = " OR ".join(map(word_expression, wanted.words))
    return f"{scope_expression(wanted.scope, secret)} AND {{said before day}} : ({words})"


def scope_expression(scope: HeardScope, secret: bytes) -> str:
    return " AND ".join(f'scope : "{term}"' for term in asked_terms(scope, secret))


def word_expression(word: QueryWord) -> str:
    return f'"{word.text}"{" *" if word.is_prefix else ""}'
