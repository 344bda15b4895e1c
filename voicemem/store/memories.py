"""The memories of a store, each in the journal of a stream and in a row for searches."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from voicemem.errors import Refused
from voicemem.protocol.memories import normalised, time_ms
from voicemem.search.passages import MemoryWords, memory_words
from voicemem.search.words import QueryWord
from voicemem.store.database import Connection, Database, Port, columns, reads, scans, writes
from voicemem.store.memory_filters import IS_THERE, TAG_END, AnyOf, Conditions, MemoryFilter, scope_in, with_linked
from voicemem.store.outbox import enqueue_memories
from voicemem.store.scopes import LAST_MS, QueryScope, Scope, list_of_two
from voicemem.store.stream_changes import find
from voicemem.store.streams import SESSION_KIND, USER_KIND, Stream

MAX_ROWS = 20
"""Memories in one write: the words of each are indexed in its transaction, and others wait for that."""
IDS = msgspec.json.Decoder(tuple[str, ...])


class MemoryRow(Struct, frozen=True, kw_only=True):
    """A memory as it is stored. Times are Unix ms."""

    key: int
    """The stream whose journal has it."""
    position: int
    """The position of the last event about it."""
    id: str
    project: str
    namespace: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    kind: str
    text: str
    said_ms: int | None = None
    created_ms: int
    updated_ms: int
    event_at: str | None = None
    """When it happened: an ISO day or instant."""
    expires_ms: int | None = None
    pinned: bool = False
    removed_ms: int | None = None
    """When it was removed; a removed memory stays as a row without content (`tombstone`)."""
    last_accessed_ms: int | None = None
    access_count: int = 0
    topics: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()
    details: bytes = b"{}"
    """JSON that is only passed on."""
    supersedes: tuple[str, ...] = ()
    """The ids of older memories of the project that this one supersedes, as long as it is there."""
    superseded_by: str | None = None
    """The first existing memory that supersedes it; not stored, but derived from `supersedes`."""
    superseded_ms: int | None = None

    @property
    def scope(self) -> Scope:
        return Scope(self.project, self.namespace, self.user_id, self.session_id)

    @property
    def words(self) -> MemoryWords:
        event_ms = event_ms_of(self.event_at)
        return memory_words(self.text, (*self.topics, *self.entities), self.said_ms if event_ms is None else event_ms)


class ReplacedMemory(NamedTuple):
    """A memory whose id moves to another stream: its current row, and the event that removes it from its own stream."""

    row: MemoryRow
    payload: bytes


def tombstone(row: MemoryRow, position: int, now_ms: int) -> MemoryRow:
    """Return the row that stays of a memory that the event at a position removes: one without content."""
    return replace(
        row, position=position, updated_ms=now_ms, removed_ms=now_ms, text="", topics=(), entities=(), supersedes=(),
        details=b"{}", superseded_by=None, superseded_ms=None, expires_ms=None,
    )  # fmt: skip


def event_ms_of(event_at: str | None) -> int | None:
    """Return an ISO day or instant in Unix ms, in UTC where it names no zone; None for what is neither."""
    with suppress(ValueError):
        return None if event_at is None else time_ms(event_at)
    return None


def text_digest_of(scope: Scope, text: str) -> int:
    """Return a digest that is equal for texts of one owner that say the same."""
    said = msgspec.json.encode((*scope.owner, normalised(text)))
    return int.from_bytes(blake2b(said, digest_size=8).digest(), signed=True)


def check_rows(rows: Sequence[MemoryRow]) -> None:
    """Raise `ValueError` for rows that cannot be written."""
    if len(rows) > MAX_ROWS:
        raise ValueError(f"At most {MAX_ROWS} memories can be written at once.")
    if len({row.id for row in rows}) < len(rows):
        raise ValueError("A memory can be written only once at a time.")
    if any(TAG_END in tag for row in rows for tag in (*row.topics, *row.entities)):
        raise ValueError("A topic or an entity has no line break.")


def pack_tags(tags: Sequence[str]) -> str:
    return f"{TAG_END}{TAG_END.join(tags)}{TAG_END}" if tags else ""


def unpack_tags(packed: str) -> tuple[str, ...]:
    return tuple(packed[1:-1].split(TAG_END)) if packed else ()


STORED = ("stream", *MemoryRow.__struct_fields__[1:-2])
"""The columns of a memory, in every engine: its fields, except derived ones."""


def values_of(row: MemoryRow) -> dict[str, Any]:
    """Return the values of `SAVED`: `event_ms` is `event_at`, comparable."""
    return asdict(row) | {
        "stream": row.key,
        "topics": pack_tags(row.topics),
        "entities": pack_tags(row.entities),
        "supersedes": msgspec.json.encode(row.supersedes),
        "event_ms": event_ms_of(row.event_at),
        "text_digest": text_digest_of(row.scope, row.text),
    }


def row_of_values(values: Sequence[Any]) -> MemoryRow:
    row = dict(zip(MemoryRow.__struct_fields__, values, strict=False))
    row["pinned"] = bool(row["pinned"])
    row["topics"], row["entities"] = map(unpack_tags, (row["topics"], row["entities"]))
    row["supersedes"] = IDS.decode(row["supersedes"])
    return MemoryRow(**row)


TOUCH_AGAIN_MS = 60_000
"""The access time of a memory is updated at most once in this time."""
COLUMNS = columns(STORED, "m.")
NEWEST_FIRST = "m.created_ms desc, m.id desc"
LIST = f"select {COLUMNS} from memories m where {{conditions}} order by {NEWEST_FIRST} limit :limit"
LIST_SAME = f"""
    with m as materialized (select * from memories where text_digest = :digest and removed_ms is null)
    select {COLUMNS} from m where {{conditions}} order by {NEWEST_FIRST} limit :limit
"""
"""Materialised, so that the index of texts is used, which finds hardly any other rows."""
IS_AFTER = "(m.created_ms, m.id) < (:after_ms, :after_id)"
FIND_BY_ID = f"select {COLUMNS} from memories m where project = :project and id in :ids and {IS_THERE}"
FIND_OWNERLESS = f"""
    select distinct s.key, s.project, s.id from memories m join streams s on s.key = m.stream
    where m.removed_ms is null and m.user_id is null and s.user_id is not null and s.kind = '{SESSION_KIND}'
"""
FIND_EXPIRED = f"""
    select {COLUMNS} from memories m where expires_ms <= :now_ms and removed_ms is null and {IS_THERE}
    order by expires_ms limit :limit
"""
LIST_OF_STREAM = f"""
    select {COLUMNS} from memories m where stream = :key and id > :after and removed_ms is null and {IS_THERE}
    order by id limit :limit
"""
SELECT_LINKS = """
    select s.old_id, s.by_id, s.created_ms from superseded s
    join streams t on t.key = s.stream and t.state <> 'erased'
    where s.project = :project and s.old_id in :ids and s.created_ms <= :as_of_ms
    order by s.created_ms desc, s.by_id desc
"""
IS_TO_TOUCH = f"""
    project = :project and id in :ids and removed_ms is null and {IS_THERE}
    and coalesce(last_accessed_ms, 0) <= :before_ms
"""
SELECT_TO_TOUCH = f"select 1 from memories m where {IS_TO_TOUCH}"
TOUCH = f"update memories as m set last_accessed_ms = :now_ms, access_count = access_count + 1 where {IS_TO_TOUCH}"
SELECT_TAKEN = f"""
    select m.stream, m.id, {IS_THERE} from memories m
    where project = :project and id in :ids and removed_ms is null and stream <> :key
"""
SELECT_IS_THERE = f"""
    select 1 from memories m
    where m.stream = :key and m.id = :id and m.position = :position and m.removed_ms is null and {IS_THERE}
"""
SELECT_STORED = f"select {COLUMNS} from memories m where stream = :stream and id = :id"
SELECT_PORTION = f"select {COLUMNS} from memories m where stream = :key limit :limit"
ACCESSED = ("last_accessed_ms", "access_count")
"""Columns that stay as they are stored, unless the memory was removed."""
SAVED = (*STORED, "event_ms", "text_digest")
REPLACED = [name for name in SAVED if name not in ("stream", "id", *ACCESSED)]
SAVE = "insert into memories ({columns}) values ({values}) on conflict (stream, id) do update set {changes}"
DELETE = "delete from memories where stream = :stream and id = :id"
DELETE_TOMBSTONE = f"{DELETE} and removed_ms is not null"
DELETE_VECTOR = "delete from memory_vectors where stream = :stream and id = :id"
"""Run after the row is saved: whoever stores the vector of a text locks its row until then."""
INSERT_LINK = """
    insert into superseded (stream, by_id, old_id, project, created_ms)
    values (:stream, :id, :old, :project, :now_ms) on conflict do nothing
"""
DELETE_LINKS = "delete from superseded where stream = :stream and by_id = :id"
DELETE_LINK = f"{DELETE_LINKS} and old_id = :old"
MOVE = "update {} set stream = :user where stream = :key and {} = :id"
MOVES = (("memories", "id"), ("superseded", "by_id"), ("memory_vectors", "id"))
SELECT_IS_EXPIRED = "select 1 from retention where stream = :key and expires_ms <= :now_ms"


class MemorySearch(NamedTuple):
    """The words that memories are searched for, and the scope that is part of the query of the index."""

    scope: QueryScope
    words: Sequence[QueryWord]


class LeadingMemories(NamedTuple):
    """Memories that matter most: pinned ones, the best by words, those of one kind; and the newest of all."""

    pinned: list[MemoryRow]
    by_words: list[MemoryRow]
    preferred: list[MemoryRow]
    newest: list[MemoryRow]


class MemoryFullText(ABC):
    """The full-text search of an engine over memories: words are in their rows, or in a table of their own."""

    columns: Mapping[str, str] = {}
    """The columns of `memories` that only this engine has, and the SQL of their values."""

    def __init__(self, secret: bytes) -> None:
        self.secret = secret
        """Makes the terms of scopes."""

    def values(self, row: MemoryRow) -> dict[str, Any]:
        return {}

    def save(self, connection: Connection, row: MemoryRow, before: MemoryRow | None) -> None:
        """Index the words of a memory that was saved, in place of those of its previous row."""
        return

    def delete(self, connection: Connection, row: MemoryRow) -> None:
        """Remove the words of a memory whose row is about to be deleted."""
        return

    @abstractmethod
    def find(
        self, connection: Connection, search: MemorySearch, conditions: str, values: dict[str, Any], limit: int
    ) -> list[tuple[Any, ...]]:
        """The score and the columns of the memories `m` with any of the words for which conditions hold, best first.

        `values` are those of the conditions. How rare words are counts in the scope alone.
        """


class Memories(Port):
    """Memories, each in the journal of a stream and in a row for searches.

    A row is content of its stream: once that is erased, nothing reads the row, and it is deleted with the rest. The
    memories that it superseded are current again then.
    """

    def __init__(self, database: Database, words: MemoryFullText) -> None:
        super().__init__(database)
        self.words = words
        kept = "{0} = case when memories.removed_ms is null then memories.{0} else excluded.{0} end"
        changes = [f"{name} = excluded.{name}" for name in (*REPLACED, *words.columns)]
        self.save_statement = SAVE.format(
            columns=columns((*SAVED, *words.columns)),
            values=", ".join((columns(SAVED, ":"), *words.columns.values())),
            changes=", ".join((*changes, *map(kept.format, ACCESSED))),
        )

    @writes
    def write_memories(
        self,
        connection: Connection,
        key: int,
        payloads: Sequence[bytes],
        expected: int,
        rows: Sequence[MemoryRow],
        now_ms: int,
        replaced: Sequence[ReplacedMemory] = (),
    ) -> Stream | None:
        """Journal events of the server's own from position `expected` + 1 on, and insert or replace rows, in one step.

        None, with nothing changed, when that position is taken. A row replaces the one of the same id in this stream;
        when that was accessed last stays what is stored, unless it was removed. They are found by their words once this
        returns. Memories of other streams that they replace are removed in the same step; None too when one of these
        has changed. At most `MAX_ROWS` rows. Raises `Refused` (`unknown_session`; `memory_exists` when a memory of
        another stream of the project has the id, and is not removed).
        """
        check_rows(rows)
        changes = connection.streams
        stream = find(changes, key)
        if stream.position != expected or not all(is_there(connection, row.key, row) for row, _ in replaced):
            return None
        if payloads and any(row.removed_ms is None for row in rows):
            changes.admit_bytes(stream.project)
        left_over = refuse_taken_ids(connection, stream.project, key, rows, replaced)
        for row, payload in replaced:
            before = find(changes, row.key)
            changes.append_server_event(before, now_ms, payload)
            changes.save_stream(before)
            self.save(connection, tombstone(row, before.position, now_ms))
        for row in left_over:
            self.delete(connection, row)
        for payload in payloads:
            changes.append_server_event(stream, now_ms, payload)
        if payloads:
            changes.save_stream(stream)
        for row in rows:
            self.save(connection, replace(row, key=key, project=stream.project))
        if payloads:
            enqueue_memories(connection, stream, list(dict.fromkeys(row.id for row in rows)), now_ms)
        return stream

    @reads
    def find_memories(self, connection: Connection, project: str, ids: Sequence[str]) -> list[MemoryRow]:
        """Return the memories with these ids, in any order; removed ones too, unless another memory has the id."""
        rows = list(map(row_of_values, connection.rows(FIND_BY_ID, project=project, ids=list(ids))))
        rows.sort(key=lambda row: (row.removed_ms is None, row.updated_ms, row.key))  # all but one were removed
        return with_newer(connection, project, list({row.id: row for row in rows}.values()))

    @scans
    def list_memories(self, connection: Connection, query: MemoryFilter) -> list[MemoryRow]:
        """Return memories by `created_ms` and id, the newest first."""
        return newest_rows(connection, with_linked(connection, query))

    @reads
    def list_same(self, connection: Connection, query: MemoryFilter, owner: Scope, text: str) -> list[MemoryRow]:
        """Return an owner's memories that say the same as a text and match the filter, the newest first."""
        conditions, digest = Conditions(query), text_digest_of(owner, text)
        sql, values = LIST_SAME.format(conditions=conditions.sql), conditions.values
        rows = connection.rows(sql, digest=digest, limit=query.limit, **values)
        return [row for row in map(row_of_values, rows) if normalised(row.text) == normalised(text)]

    @scans
    def find_memories_by_words(
        self, connection: Connection, query: MemoryFilter, words: Sequence[QueryWord], limit: int
    ) -> list[tuple[MemoryRow, float]]:
        """Return memories with any of the words, and their scores, the best first; of equal ones the newest first.

        The project, and a namespace, user or session that is alone in its condition, are part of the query itself.
        `after` and the filter's own limit are ignored.
        """
        return self.rows_by_words(connection, with_linked(connection, query), words, limit) if words else []

    @scans
    def find_leading(
        self, connection: Connection, query: MemoryFilter, kind: str, words: Sequence[QueryWord] = (), most: int = 0
    ) -> LeadingMemories:
        """Find the most relevant of the memories for which all conditions hold, in one read, since calls wait."""
        query = with_linked(connection, query)
        by_words = self.rows_by_words(connection, query, words, most) if words else []
        pinned = preferred = newest = newest_rows(connection, query)
        if len(newest) == query.limit:
            kinds = AnyOf((kind,) if isinstance(query.kinds, AnyOf) and kind in query.kinds.values else ())
            pinned = newest_rows(connection, replace(query, pinned=True))
            preferred = newest_rows(connection, replace(query, kinds=kinds))
        relevant = [row for row in pinned if row.pinned], [row for row, _ in by_words]
        return LeadingMemories(*relevant, [row for row in preferred if row.kind == kind], newest)

    @scans
    def find_ownerless(self, connection: Connection) -> dict[int, tuple[str, str]]:
        """Find sessions with a user whose memories have none yet: by key, their projects and ids."""
        return {key: (project, id) for key, project, id in connection.rows(FIND_OWNERLESS)}

    async def find_expired_memories(self, now_ms: int, limit: int) -> list[MemoryRow]:
        """Return memories of all projects whose `expires_ms` is over, the earliest first, without removed ones."""
        return [row_of_values(row) for row in await self.database.rows(FIND_EXPIRED, now_ms=now_ms, limit=limit)]

    async def touch_memories(self, project: str, ids: Sequence[str], now_ms: int) -> None:
        """Record that memories were accessed, each at most once in `TOUCH_AGAIN_MS`."""
        values = {"project": project, "ids": list(ids), "before_ms": now_ms - TOUCH_AGAIN_MS}
        if await self.database.rows(f"{SELECT_TO_TOUCH} limit 1", **values):  # else nothing needs to be committed
            await self.database.execute(TOUCH, now_ms=now_ms, **values)

    # Memories that outlive their session

    async def list_memories_of(self, key: int, after: str, limit: int) -> list[MemoryRow]:
        """Return the memories in the journal of a stream by id, those above `after`, without removed ones."""
        rows = await self.database.rows(LIST_OF_STREAM, key=key, after=after, limit=limit)
        return [row_of_values(row) for row in rows]

    @writes
    def move_memories(
        self,
        connection: Connection,
        key: int,
        user_id: str,
        payloads: Sequence[bytes],
        rows: Sequence[MemoryRow],
        now_ms: int,
    ) -> bool:
        """Move memories of a session whose `ttl_seconds` are over into the stream of a user, in one step.

        The user's stream is of the session's project, and created if missing. Each row replaces that of its id in the
        session, and gets the position of its payload, a server event in the user's journal. False, with nothing
        changed, unless the session is due to be erased, and each memory is at the position in its row. At most
        `MAX_ROWS` rows.
        """
        check_rows(rows)
        changes = connection.streams
        session = changes.stream(key)
        if session is None or connection.row(SELECT_IS_EXPIRED, key=key, now_ms=now_ms) is None:
            return False
        if not all(is_there(connection, key, row) for row in rows):
            return False
        user = changes.find_by_name(session.project, USER_KIND, user_id)
        user = user or changes.add_user(session.project, user_id, now_ms)
        for payload, row in zip(payloads, rows, strict=True):
            changes.append_server_event(user, now_ms, payload)
            connection.execute(DELETE_TOMBSTONE, stream=user.key, id=row.id)
            for table, column in MOVES:
                connection.execute(MOVE.format(table, column), user=user.key, key=key, id=row.id)
            self.save(connection, replace(row, key=user.key, project=user.project, position=user.position))
        changes.save_stream(user)
        return True

    # In a transaction

    def rows_by_words(
        self, connection: Connection, query: MemoryFilter, words: Sequence[QueryWord], limit: int
    ) -> list[tuple[MemoryRow, float]]:
        conditions, search = Conditions(query), MemorySearch(scope_in(query), words)
        hits = self.words.find(connection, search, conditions.sql, conditions.values, limit)
        rows = [row_of_values(row[1:]) for row in hits]
        if query.with_superseded:
            rows = with_newer(connection, query.project, rows, query.as_of_ms)
        return [(row, float(score)) for row, (score, *_) in zip(rows, hits, strict=True)]

    def delete_portion(self, connection: Connection, key: int, limit: int) -> bool:
        """Delete memories of a stream, at most `limit`; return whether there were any."""
        portion = [row_of_values(row) for row in connection.rows(SELECT_PORTION, key=key, limit=limit)]
        for row in portion:
            self.delete(connection, row)
        return bool(portion)

    def save(self, connection: Connection, row: MemoryRow) -> None:
        before = load(connection, row.key, row.id)
        connection.execute(self.save_statement, **values_of(row), **self.words.values(row))
        if before is not None and row.text != before.text:
            connection.execute(DELETE_VECTOR, stream=row.key, id=row.id)
        self.words.save(connection, row, before)
        links = {"stream": row.key, "id": row.id}
        for old in set(before.supersedes if before else ()) - set(row.supersedes):
            connection.execute(DELETE_LINK, old=old, **links)
        for old in row.supersedes:
            connection.execute(INSERT_LINK, old=old, project=row.project, now_ms=row.updated_ms, **links)

    def delete(self, connection: Connection, row: MemoryRow) -> None:
        self.words.delete(connection, row)
        for statement in (DELETE_LINKS, DELETE_VECTOR, DELETE):
            connection.execute(statement, stream=row.key, id=row.id)


def listing_of(conditions: Conditions) -> str:
    query, users = LIST.format(conditions=conditions.sql), conditions.users
    return query if users is None else list_of_two(query, *users, "created_ms desc, id desc", ":limit")


def newest_rows(connection: Connection, query: MemoryFilter) -> list[MemoryRow]:
    conditions = Conditions(query)
    values = {**conditions.values, "limit": query.limit}
    if query.after is not None:
        values["after_ms"], values["after_id"] = query.after
        conditions.clauses.append(IS_AFTER)
    rows = [row_of_values(row) for row in connection.rows(listing_of(conditions), **values)]
    return with_newer(connection, query.project, rows, query.as_of_ms) if query.with_superseded else rows


def load(connection: Connection, key: int, memory_id: str) -> MemoryRow | None:
    row = connection.row(SELECT_STORED, stream=key, id=memory_id)
    return None if row is None else row_of_values(row)


def is_there(connection: Connection, key: int, row: MemoryRow) -> bool:
    return connection.row(SELECT_IS_THERE, key=key, id=row.id, position=row.position) is not None


def refuse_taken_ids(
    connection: Connection, project: str, key: int, rows: Sequence[MemoryRow], replaced: Sequence[ReplacedMemory]
) -> list[MemoryRow]:
    """Raise `Refused` (`memory_exists`) when a memory of another stream has an id of these, and is not replaced.

    Return the rows of erased streams with these ids: they are going to be deleted, but still in the way.
    """
    ids = [row.id for row in rows if row.removed_ms is None]
    taken = connection.rows(SELECT_TAKEN, project=project, ids=ids, key=key) if ids else []
    places = {(row.key, row.id) for row, _ in replaced}
    if any(is_there and (stream, memory_id) not in places for stream, memory_id, is_there in taken):
        raise Refused("memory_exists")
    loaded = (load(connection, stream, memory_id) for stream, memory_id, is_there in taken if not is_there)
    return [row for row in loaded if row is not None]


def with_newer(
    connection: Connection, project: str, rows: list[MemoryRow], as_of_ms: int | None = None
) -> list[MemoryRow]:
    """Return the rows, each with the first memory that superseded it by that time."""
    if not rows:
        return rows
    values = {"project": project, "ids": [row.id for row in rows]}
    links = connection.rows(SELECT_LINKS, as_of_ms=LAST_MS if as_of_ms is None else as_of_ms, **values)
    newer = {old: (by, made_ms) for old, by, made_ms in links}
    return [
        replace(row, superseded_by=newer[row.id][0], superseded_ms=newer[row.id][1]) if row.id in newer else row
        for row in rows
    ]
