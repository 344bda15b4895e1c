"""Memories as rows, with their words, in a transaction that writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from voicemem.errors import Refused
from voicemem.store.ports.heard_index import scope_terms
from voicemem.store.ports.memories import IDS, STORED, MemoryRow, row_of_values, values_of
from voicemem.store.postgresql.database.connection import Row, Session

ACCESSED = ("last_accessed_ms", "access_count")
"""What stays as it is stored, unless the memory was removed."""
NUMBERS = ("stream", "position", "said_ms", "created_ms", "updated_ms", "expires_ms", "removed_ms", *ACCESSED)
ENCODED = ("details", "supersedes")
TYPES = {
    name: "boolean" if name == "pinned" else "bigint" if name in NUMBERS else "bytea" if name in ENCODED else "text"
    for name in STORED
}
"""The columns of a memory, and the types in which they are sent."""
COLUMNS = ", ".join(f"m.{name}" for name in TYPES)
"""As `to_row` takes them."""
IS_THERE = "exists (select 1 from streams t where t.key = m.stream and t.state <> 'erased')"
SELECT_TAKEN = f"""
    select m.stream, m.id, {IS_THERE} from memories m
    where project = $1 and id = any($2::text[]) and removed_ms is null and stream <> $3
"""
SELECT_IS_THERE = f"""
    select 1 from memories m
    where m.stream = $1 and m.id = $2 and m.position = $3 and m.removed_ms is null and {IS_THERE}
"""
DELETE_LEFT_OVER = "delete from memories where stream = $1 and id = $2"
WORDS = """
    case when removed_ms is null then setweight(to_tsvector('voicemem', said), 'A')
    || to_tsvector('voicemem', about)
    || array_to_tsvector(string_to_array(scope, ' ')) else '' end
"""
ARRAYS = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(TYPES.values(), 1))
KEPT_UNLESS_REMOVED = "{0} = case when memories.removed_ms is null then memories.{0} else excluded.{0} end"
REPLACED = [name for name in TYPES if name not in ("stream", "id", *ACCESSED)]
SAVE = f"""
    insert into memories ({", ".join(TYPES)}, event_ms, length, words)
    select {", ".join(TYPES)}, event_ms, length, {WORDS}
    from unnest({ARRAYS}, $23::bigint[], $24::bigint[], $25::text[], $26::text[], $27::text[])
    as given ({", ".join(TYPES)}, event_ms, length, said, about, scope)
    on conflict (stream, id) do update
    set {", ".join(f"{name} = excluded.{name}" for name in (*REPLACED, "event_ms", "length", "words"))},
    {", ".join(KEPT_UNLESS_REMOVED.format(name) for name in ACCESSED)}
"""
DELETE_VECTORS = """
    delete from memory_vectors v using memories m
    where v.stream = $1 and v.id = any($2::text[])
    and m.stream = v.stream and m.id = v.id and v.digest <> sha256(convert_to(m.text, 'UTF8'))
"""
"""After the rows are saved: whoever keeps the vector of a text holds its row until then."""
SELECT_SUPERSEDES = "select id, supersedes from memories where stream = $1 and id = any($2::text[])"
INSERT_LINKS = """
    insert into superseded (stream, by_id, old_id, project, created_ms)
    select $1, by_id, old_id, $2, created_ms
    from unnest($3::text[], $4::text[], $5::bigint[]) as given (by_id, old_id, created_ms) on conflict do nothing
"""
DELETE_LINKS = """
    delete from superseded s using unnest($2::text[], $3::text[]) as given (by_id, old_id)
    where stream = $1 and s.by_id = given.by_id and s.old_id = given.old_id
"""
SELECT_BATCH = f"""
    select {COLUMNS} from memories m where (stream, id) > ($1, $2) and removed_ms is null
    order by stream, id limit 500
"""
SAVE_WORDS = f"""
    update memories m set length = given.length, words = {WORDS.replace("removed_ms", "m.removed_ms")}
    from unnest($1::bigint[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[])
    as given (stream, id, length, said, about, scope)
    where m.stream = given.stream and m.id = given.id
"""


def refuse_taken_ids(session: Session, project: str, key: int, rows: Sequence[MemoryRow]) -> None:
    """Raise `Refused` (`memory_exists`) when a memory of another stream has an id of these.

    What an erased stream has of these ids is content that is going to be deleted; that is done now.
    """
    ids = [row.id for row in rows if row.removed_ms is None]
    taken = session.rows(SELECT_TAKEN, (project, ids, key)) if ids else []
    if any(is_there for _, _, is_there in taken):
        raise Refused("memory_exists")
    for stream, memory_id, _ in taken:
        session.execute(DELETE_LEFT_OVER, (stream, memory_id))


def is_there(session: Session, row: MemoryRow) -> bool:
    """Whether a memory stands in its stream as it does in a row."""
    return session.row(SELECT_IS_THERE, (row.key, row.id, row.position)) is not None


def save(session: Session, key: int, project: str, rows: Sequence[MemoryRow], secret: bytes) -> None:
    """Insert memories with their words, or replace those of the stream with their ids."""
    if not rows:
        return
    ids = [row.id for row in rows]
    before = {id: IDS.decode(old) for id, old in session.rows(SELECT_SUPERSEDES, (key, ids))}
    session.execute(SAVE, columns_of((*values_of(row), *words_of_row(row, secret)) for row in rows))
    session.execute(DELETE_VECTORS, (key, ids))
    gone = [(row.id, old) for row in rows for old in set(before.get(row.id, ())) - set(row.supersedes)]
    made = [(row.id, old, row.updated_ms) for row in rows for old in row.supersedes]
    if gone:
        session.execute(DELETE_LINKS, (key, *columns_of(gone)))
    if made:
        session.execute(INSERT_LINKS, (key, project, *columns_of(made)))


def make_words(session: Session, secret: bytes) -> None:
    """Make the words of all memories, which were inserted without any."""
    place: tuple[Any, ...] = (0, "")
    while batch := [to_row(values) for values in session.rows(SELECT_BATCH, place)]:
        session.execute(SAVE_WORDS, columns_of((row.key, row.id, *words_of_row(row, secret)) for row in batch))
        place = (batch[-1].key, batch[-1].id)


def columns_of(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """The values of some rows, by column."""
    return [list(column) for column in zip(*rows, strict=True)]


def words_of_row(row: MemoryRow, secret: bytes) -> tuple[int, str, str, str]:
    """How many words a memory has, those that it says, those it is about, and those of its scope."""
    said, about = row.words
    return len(said.split()) + len(about.split()), said, about, " ".join(scope_terms(row.scope, secret))


def to_row(values: Row) -> MemoryRow:
    """The memory of a row of `COLUMNS`."""
    return row_of_values(values)
