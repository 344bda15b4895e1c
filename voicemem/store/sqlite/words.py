"""The words of memories and of messages on SQLite: FTS5 tables, `memory_words` beside the memories, and `words` in the
file of the index.

They keep no texts (`content=''`), so to delete a text, its words must be passed again exactly as they were inserted.
They follow from the row, from how words are made of a text, and from a secret of the store. If one of the last two has
changed, `make_words` makes the words of memories again, and the index is replaced. SQLite's option
`contentless_delete`, which needs no text, would leave the words of deleted texts in the file.

A text has each of its words twice, marked with its owner: the project, and in columns of their own the user. So the
cost of a user's search depends on the user's texts only, however many others there are.

FTS5's own `bm25` counts how rare a word is over the whole table, so that scores would reveal other projects' words. The
search looks up which texts of the scope have each word, and counts the words (`frequencies`) only of the texts with the
rarest ones: however many others there are, these are the best.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import log1p
from typing import Any, NamedTuple

import apsw

from voicemem.search.passages import ABOUT_WEIGHT, BEFORE_WEIGHT, Passage, day_words, indexed_words
from voicemem.search.words import WORDS_VERSION, QueryWord
from voicemem.store.database import Connection, Database, Row, columns
from voicemem.store.memories import COLUMNS, MemoryFullText, MemoryRow, MemorySearch, row_of_values
from voicemem.store.scopes import QueryScope, Scope, scope_term
from voicemem.store.transcript_index import MAX_LOOKS, PASSAGE_COLUMNS, IndexedSession, MessageFullText
from voicemem.store.transcript_search import TranscriptQuery

K1, B = 1.2, 0.75
"""The parameters of BM25, the same as on PostgreSQL."""
CANDIDATES = 150
"""How many texts with the rarest words of a query have their frequencies read; the others come after them."""
FREQUENCIES = "frequencies"
CONSONANTS = str.maketrans("0123456789abcdef", "bcdfghjklmnpqrst")
"""A mark has no vowels and no digits, so that its word is stemmed as it would be alone."""
MARK_LENGTH = 20


def mark_of(kind: str, project: str, value: str, secret: bytes) -> str:
    """Return the beginning of each word of a project's (`p`) or a user's (`u`) texts."""
    return scope_term(kind, project, value, secret)[1 : MARK_LENGTH + 1].translate(CONSONANTS)


def narrower_terms(scope: Scope | QueryScope, secret: bytes) -> list[str]:
    """Return the terms of those parts of a scope that are not marks: its namespace and its session."""
    parts = [("n", scope.namespace), ("s", scope.session_id)]
    return [scope_term(kind, scope.project, value, secret) for kind, value in parts if value is not None]


def marked(scope: Scope, secret: bytes, **texts: Sequence[str]) -> dict[str, str]:
    """Return the values of the columns of a text: the terms of its scope, and its words by column, with each mark."""
    values = {"scope": " ".join(narrower_terms(scope, secret))}
    marks = {"": mark_of("p", scope.project, "", secret), "own_": ""}
    if scope.user_id is not None:
        marks["own_"] = mark_of("u", scope.project, scope.user_id, secret)
    for column, mark in marks.items():
        for name, words in texts.items():
            values[column + name] = " ".join([mark + word for word in words]) if mark else ""
    return values


def frequencies(row: apsw.FTS5ExtensionApi, *numbers: Any) -> bytes:
    """Return the number of words of a row, then the weighted count of each word of the query.

    `numbers` are how many leading phrases are of the scope, how many are of each word, and the weights of the columns
    after the scope's; further columns have the same words with other marks.
    """
    first, each, weights = numbers[0], numbers[1], numbers[2:]
    counts = array("d", [sum([row.column_size(column) for column in range(1, len(weights) + 1)])])
    for start in range(first, row.phrase_count, each):
        often = 0.0
        for phrase in range(start, start + each):
            for column in row.phrase_columns(phrase):
                often += weights[(column - 1) % len(weights)] * len(row.phrase_column_offsets(phrase, column))
        counts.append(often)
    return counts.tobytes()


class Hit(NamedTuple):
    """A row that a query found; of equal scores the one with the larger `order` comes first."""

    score: float
    order: Row
    number: int


def ranked(
    by_word: Sequence[Sequence[Row]], texts: int, count: int, frequencies_of: Callable[[Sequence[int]], list[Row]]
) -> list[Hit]:
    """Return the best `count` hits by BM25 among `texts` texts, or as many as there are.

    `by_word` has the numbers of the rows with each word; `frequencies_of` returns, for some of these, the rows that may
    be found: a number, its order, and frequencies.
    """
    rarities = [log1p((max(texts, len(rows)) - len(rows) + 0.5) / (len(rows) + 0.5)) for rows in by_word]
    weights: dict[int, float] = defaultdict(float)
    for rarity, rows in zip(rarities, by_word, strict=True):
        for (number,) in rows:
            weights[number] += rarity
    numbers = sorted(weights, key=lambda number: (weights[number], number), reverse=True)
    hits, first, portion = list[Hit](), 0, CANDIDATES
    while first < len(numbers) and len(hits) < count:
        more = sorted(hits_of(frequencies_of(numbers[first : first + portion]), rarities), reverse=True)
        if hits:
            lowest = hits[-1].score
            more = [hit._replace(score=min(hit.score, lowest)) for hit in more]
        hits += more
        first, portion = first + portion, 4 * portion
    return hits[:count]


def hits_of(rows: Sequence[Row], rarities: Sequence[float]) -> Iterator[Hit]:
    counted = [array("d", row[-1]) for row in rows]
    mean = max(sum(counts[0] for counts in counted) / max(len(counted), 1), 1.0)
    for row, (length, *frequency) in zip(rows, counted, strict=True):
        damping = K1 * (1 - B + B * length / mean)
        terms = zip(rarities, frequency, strict=True)
        score = sum(rarity * often * (K1 + 1) / (often + damping) for rarity, often in terms if often)
        yield Hit(score, row[1:-1], row[0])


FIND_MEMORIES = f"""
    select m.number, m.created_ms, m.id, {FREQUENCIES}(memory_words, :first, :each, 1.0, {ABOUT_WEIGHT})
    from memory_words cross join memories m on m.number = memory_words.rowid
    where memory_words match :match and +memory_words.rowid in :numbers and {{conditions}}
"""
"""A cross join, so that SQLite reads the words first, whatever the conditions are. With `+` it does so once."""
FIND_WORD = "select rowid from {table} where {table} match :match"
COUNT_MEMORIES = "select count(*) from memories where removed_ms is null"
SELECT_MEMORIES = f"select number, {COLUMNS} from memories m where number in :numbers"
SELECT_NUMBER = "select number from memories where stream = :stream and id = :id"
WORDS = ("scope", "said", "about", "own_said", "own_about")
INSERT_WORDS = f"insert into memory_words (rowid, {columns(WORDS)}) values (:number, {columns(WORDS, ':')})"
DELETE_WORDS = f"""
    insert into memory_words (memory_words, rowid, {columns(WORDS)}) values ('delete', :number, {columns(WORDS, ":")})
"""
CLEAR_WORDS = "insert into memory_words (memory_words) values ('delete-all')"
SELECT_BATCH = f"select number, {COLUMNS} from memories m where number > :after order by number limit :limit"
BATCH = 1_000
SELECT_WORDS = "select value from meta where name = 'memory_words'"
SAVE_WORDS = "insert or replace into meta values ('memory_words', :version)"
NOTE_REMOVED = "insert or replace into meta values ('removed', randomblob(8))"
"""The mark that a text was removed whose traces are still in the log."""


class SqliteMemoryWords(MemoryFullText):
    def save(self, connection: Connection, row: MemoryRow, before: MemoryRow | None) -> None:
        found_by = None if row.removed_ms is not None else (row.scope, row.words)
        old_index_entry = None if before is None or before.removed_ms is not None else (before.scope, before.words)
        if found_by == old_index_entry:
            return
        (number,) = connection.one(SELECT_NUMBER, stream=row.key, id=row.id)
        if before is not None and old_index_entry is not None:
            connection.execute(DELETE_WORDS, number=number, **self.words_of(before))
            connection.execute(NOTE_REMOVED)
        if found_by is not None:
            connection.execute(INSERT_WORDS, number=number, **self.words_of(row))

    def delete(self, connection: Connection, row: MemoryRow) -> None:
        if row.removed_ms is None:
            (number,) = connection.one(SELECT_NUMBER, stream=row.key, id=row.id)
            connection.execute(DELETE_WORDS, number=number, **self.words_of(row))

    def find(
        self, connection: Connection, search: MemorySearch, conditions: str, values: dict[str, Any], limit: int
    ) -> list[Row]:
        clauses, whose = search.scope._replace(namespace=None).conditions()
        (texts,) = connection.one(" and ".join((COUNT_MEMORIES, *clauses)), **whose)
        words = ScopeWords(connection, "memory_words", search.scope, self.secret)
        hits = words.ranked(search.words, texts, limit, FIND_MEMORIES.format(conditions=conditions), values)
        rows = {number: row for number, *row in connection.rows(SELECT_MEMORIES, numbers=[hit.number for hit in hits])}
        return [(hit.score, *rows[hit.number]) for hit in hits]

    def words_of(self, row: MemoryRow) -> dict[str, str]:
        said, about = row.words
        return marked(row.scope, self.secret, said=said.split(), about=about.split())

    def make_words(self, connection: Connection) -> None:
        """Make the words of all memories again, unless this program made them with this secret."""
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


MESSAGE_WORDS = ("scope", "said", "before", "day", "own_said", "own_before", "own_day")
INDEX_VERSION = 5_000 + WORDS_VERSION
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
    speaker text not null, length integer not null, unique (stream, turn, number)
) strict;
create table transcript_vectors (
    stream integer not null, turn integer not null, number integer not null, said_ms integer not null,
    embedder integer not null, vector blob, primary key (stream, turn, number)
) strict;
create virtual table words using fts5 ({columns(MESSAGE_WORDS)}, content='', tokenize='porter ascii');
insert into words (words, rank) values ('secure-delete', 1);
pragma user_version = {INDEX_VERSION};
commit;
"""
SELECT_IDS = """
    select turn, number, id from transcript_messages
    where stream = :key and turn in :turns and number >= :first and number <= :last
"""
ADD = f"insert into words (rowid, {columns(MESSAGE_WORDS)}) values (:id, {columns(MESSAGE_WORDS, ':')})"
"""Without a select: FTS5 would write a segment of its index for each such statement."""
SELECT_REMOVED = f"select id, {PASSAGE_COLUMNS} from transcript_messages where stream = :key and {{where}}"
REMOVE = f"""
    insert into words (words, rowid, {columns(MESSAGE_WORDS)}) values ('delete', :id, {columns(MESSAGE_WORDS, ":")})
"""
CLEAR = "insert into words (words) values ('delete-all')"
FIND = f"""
    select id, said_ms, id, {FREQUENCIES}(words, :first, :each, 1.0, {BEFORE_WEIGHT}, 1.0)
    from words join transcript_messages on id = words.rowid
    where words match :match and +words.rowid in :numbers and said_ms >= :since_ms and said_ms < :until_ms
"""
COUNT_MESSAGES = "select coalesce(sum(messages), 0) from transcript_sessions where "
SELECT_FOUND = """
    select id, stream, turn, number, position, role, said_ms, text from transcript_messages where id in :ids
"""
FIND_SESSIONS = """
    select stream from words join transcript_messages on id = words.rowid where words match :match
    order by words.rowid desc limit :looks
"""


class SqliteMessageWords(MessageFullText):
    """The words of messages in FTS5, which counts them itself."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.opened_with = super().secret

    @property
    def secret(self) -> bytes:
        """The secret of the index file, which another incarnation does not change before the next start."""
        return self.opened_with

    def words_of(self, session: IndexedSession, passage: Passage) -> dict[str, str]:
        said, before, day = indexed_words(passage, day_words(session.started_ms))
        return marked(session.scope, self.secret, said=said, before=before, day=day)

    def add(self, connection: Connection, session: IndexedSession, passages: Sequence[Passage]) -> None:
        turns, numbers = {one.turn_id for one in passages}, [one.number for one in passages]
        where = {"turns": turns, "first": min(numbers), "last": max(numbers)}
        ids = {(turn, number): id for turn, number, id in connection.rows(SELECT_IDS, key=session.key, **where)}
        values = ({"id": ids[one.turn_id, one.number], **self.words_of(session, one)} for one in passages)
        connection.many(ADD, values)

    def remove(self, connection: Connection, session: IndexedSession, where: str, **values: Any) -> None:
        rows = connection.rows(SELECT_REMOVED.format(where=where), key=session.key, **values)
        connection.many(REMOVE, ({"id": row[0], **self.words_of(session, Passage(*row[1:]))} for row in rows))

    def clear(self, connection: Connection) -> None:
        connection.execute(CLEAR)

    def find(self, connection: Connection, query: TranscriptQuery) -> list[Row]:
        page, (clauses, whose) = query.values, query.scope.conditions()
        limit, offset = page.pop("limit"), page.pop("offset")
        (texts,) = connection.one(COUNT_MESSAGES + " and ".join(clauses), **whose)
        words = ScopeWords(connection, "words", query.scope, self.secret)
        hits = words.ranked(query.words, texts, offset + limit, FIND, page)[offset:]
        rows = {id: row for id, *row in connection.rows(SELECT_FOUND, ids=[hit.number for hit in hits])}
        return [(*rows[hit.number], hit.score) for hit in hits]

    def find_sessions(
        self, connection: Connection, scope: QueryScope, words: Sequence[QueryWord], limit: int
    ) -> list[int]:
        match = ScopeWords(connection, "words", scope, self.secret).match(words, " AND ", "{said own_said} : ")
        rows = connection.rows(FIND_SESSIONS, match=match, looks=MAX_LOOKS)
        return list(dict.fromkeys(key for (key,) in rows))[:limit]


class ScopeWords:
    """Looks up words in the texts of a scope, in a table of FTS5; no text of another scope is read."""

    def __init__(self, connection: Connection, table: str, scope: QueryScope, secret: bytes) -> None:
        self.connection = connection
        self.table = table
        whose = [("u", user_id) for user_id in scope.user_ids] or [("p", "")]
        self.marks = [mark_of(kind, scope.project, value, secret) for kind, value in whose]
        self.terms = narrower_terms(scope, secret)

    def match(self, words: Sequence[QueryWord], operator: str = " OR ", columns: str = "") -> str:
        expression = [f'scope : "{term}"' for term in self.terms]
        return " AND ".join([*expression, f"{columns}({operator.join(map(self.with_marks, words))})"])

    def with_marks(self, word: QueryWord) -> str:
        end = " *" if word.is_prefix else ""
        phrases = [f'"{mark}{word.text}"{end}' for mark in self.marks]
        return f"({' OR '.join(phrases)})"

    def ranked(
        self, words: Sequence[QueryWord], texts: int, count: int, query: str, values: dict[str, Any]
    ) -> list[Hit]:
        """Return the best `count` hits, as `ranked` finds them by a query."""
        find = FIND_WORD.format(table=self.table)
        by_word = [self.connection.rows(find, match=self.match([word])) for word in words]
        values = {**values, "match": self.match(words), "first": len(self.terms), "each": len(self.marks)}
        return ranked(by_word, texts, count, lambda numbers: self.connection.rows(query, numbers=numbers, **values))
