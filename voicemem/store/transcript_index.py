"""The transcript index: the messages of all sessions, found by their words.

It can be deleted: the journals give the same again. SQLite has it in a file of its own, PostgreSQL in tables of the
database. Full-text search and its ranking are the engine's own (`MessageFullText`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from voicemem.protocol.types import MAX_INTEGER
from voicemem.search.passages import Passage
from voicemem.search.words import QueryWord
from voicemem.store.database import Check, Connection, Database, Port, checked, columns, upsert
from voicemem.store.nodes import INDEX_CHECK, Claims
from voicemem.store.scopes import QueryScope, Scope
from voicemem.store.stream_changes import POSITION, SELECT_READABLE_STREAMS, to_stream
from voicemem.store.streams import SESSION_KIND, Stream
from voicemem.store.transcript_search import FoundMessage, TranscriptQuery, find_messages

T = TypeVar("T")
MAX_LOOKS = 20_000
"""The most messages that are read to find sessions by words."""


class TranscriptUpdate(Struct, frozen=True):
    """The messages of a session up to a position of its journal, or those that have changed since another."""

    key: int
    position: int
    scope: Scope
    started_ms: int
    turns: Mapping[int, Sequence[Passage]]
    """All passages of each turn; a turn may have none any more."""
    since: int | None = None
    """The position since which the turns have changed; None if these are all turns."""
    continues: bool = False
    """True if an earlier update of the same position had other turns of these."""
    rest: Sequence[int] = ()
    """The turns in later updates."""


class IndexedSession(NamedTuple):
    """A session in the index, without its messages."""

    key: int
    position: int
    scope: Scope
    started_ms: int


LOOK_AT_SESSIONS = f"""
    select key, case when state = 'ended' then position else {POSITION} end, state = 'erased' from streams s
    where kind = '{SESSION_KIND}' and key > :after order by key limit :limit
"""
"""The row of a session that has ended says where its journal ends."""
COUNT_SESSIONS = f"select count(*) from streams where kind = '{SESSION_KIND}' and state <> 'erased'"
SELECT_POSITIONS = "select stream, position from transcript_sessions where stream in :keys"
SELECT_SESSION = """
    select stream, position, project, namespace, user_id, session_id, started_ms from transcript_sessions
    where stream = :key for update
"""
SAVE_SESSION = upsert(
    "transcript_sessions", ["stream"], ["position", *Scope._fields, "started_ms", "messages", "words"]
)
TURNS_AT_ONCE, CHARACTERS_AT_ONCE = 200, 64 * 1024
"""About how many turns and characters a transaction indexes of a session: one of 2 MiB would hold up the searches of
others for a second, and the words of a message, with marks, take many times its text."""
PORTION = 20
"""Messages that are deleted in one transaction: each takes milliseconds, since its words are overwritten."""
SELECT_PORTION = "select turn, number from transcript_messages where stream = :key limit :limit"
DELETE_SESSION = "delete from transcript_sessions where stream = :key"
MEASURE_SESSION = "select count(*), coalesce(sum(length), 0) from transcript_messages where stream = :key"
SELECT_NEWEST = """
    select stream, turn, number, position, role, said_ms, substr(text, 1, cast(:length as integer)), 0.0
    from transcript_messages
    where stream = :key order by turn desc, number desc limit :limit
"""
PASSAGE_FIELDS = ("turn", *Passage.__struct_fields__[1:])
PASSAGE_COLUMNS = columns(PASSAGE_FIELDS)
SELECT_TURNS = f"""
    select {PASSAGE_COLUMNS} from transcript_messages
    where stream = :key and turn in :turns and number >= :first and number < :last
"""
MESSAGE_FIELDS = ("stream", *PASSAGE_FIELDS, "length")
ALL, OTHERS, ONE = "true", "turn not in :turns", "turn = :turn and number = :number"
"""Conditions for the messages of a session that are removed."""
TABLES = ("transcript_vectors", "transcript_messages", "transcript_sessions")


class Part(NamedTuple):
    """Some turns of an update, or some messages of a long turn, which one transaction indexes."""

    update: TranscriptUpdate
    turns: list[int]
    passages: list[Passage]
    first: int = 0
    last: int = MAX_INTEGER
    """From number `first` up to, but not including, `last`, the turns have these passages and no others."""
    is_first: bool = False
    is_last: bool = False


def portions(updates: Sequence[TranscriptUpdate]) -> Iterator[list[Part]]:
    """Yield the parts of updates, in their order, those of each transaction together."""
    portion, size = list[Part](), 0
    for update in updates:
        parts = parts_of(update)
        for place, part in enumerate(parts, 1):
            is_first, is_last = place == 1 and not update.continues, place == len(parts) and not update.rest
            portion.append(part._replace(is_first=is_first, is_last=is_last))
            size += sum(len(one.text) for one in part.passages)
            if size >= CHARACTERS_AT_ONCE:
                yield portion
                portion, size = [], 0
    if portion:
        yield portion


def parts_of(update: TranscriptUpdate) -> list[Part]:
    parts, size = list[Part](), 0
    for number, passages in update.turns.items():
        for first, last in slices(passages):
            is_divided = (first, last) != (0, MAX_INTEGER) or (parts[-1:] and parts[-1].first > 0)
            if not parts or is_divided or size >= CHARACTERS_AT_ONCE or len(parts[-1].turns) >= TURNS_AT_ONCE:
                parts.append(Part(update, [], [], first, last))
                size = 0
            parts[-1].turns.append(number)
            parts[-1].passages.extend(passages[first:last])
            size += sum(len(one.text) for one in passages[first:last])
    return parts or [Part(update, [], [])]


def slices(passages: Sequence[Passage]) -> Iterator[tuple[int, int]]:
    """Yield the ranges into which the messages of a turn are divided: nearly always one."""
    first = size = 0
    for place, one in enumerate(passages):
        if size >= CHARACTERS_AT_ONCE or place - first >= 2 * TURNS_AT_ONCE:
            yield first, place
            first, size = place, 0
        size += len(one.text)
    yield first, MAX_INTEGER


class IndexDatabase(Protocol):
    """The database of the index: the store's, or a separate one."""

    has_own_database: bool
    """True for a database of its own, of this process alone."""
    resets: int
    """How often the index was found lost or damaged, and made again, since the store was opened."""

    async def write(self, job: Callable[[Connection], T]) -> T: ...

    async def write_if_there(self, job: Callable[[Connection], bool]) -> bool: ...

    async def read(self, job: Callable[[Connection], T]) -> T: ...

    async def write_readable(self, keys: Sequence[int], job: Callable[[Connection, Collection[int]], T]) -> T:
        """Run a job in a transaction with those of these sessions that are not erased.

        A session may be erased at the same time, and its rows in the index deleted before this writes. So the sessions
        are looked up in the transaction, and deletions come after it.
        """


class MessageFullText(Port, ABC):
    """The full-text search of an engine over messages: words are in their rows, or in a table of their own."""

    @property
    def secret(self) -> bytes:
        return self.database.identity["incarnation"]

    columns: Mapping[str, str] = {}
    """The columns of `transcript_messages` that only this engine has, and the SQL of their values."""

    def values(self, session: IndexedSession, passage: Passage) -> dict[str, Any]:
        """Return the values of the parameters in `columns`, and the number of indexed words, if it is used."""
        return {"length": 0}

    def add(self, connection: Connection, session: IndexedSession, passages: Sequence[Passage]) -> None:
        """Index the words of inserted messages."""
        return

    def remove(self, connection: Connection, session: IndexedSession, where: str, **values: Any) -> None:
        """Remove the words of messages that are about to be deleted."""
        return

    def clear(self, connection: Connection) -> None:
        """Remove all words."""
        return

    @abstractmethod
    def find(self, connection: Connection, query: TranscriptQuery) -> list[tuple[Any, ...]]:
        """The fields of the messages with any of the words, best first, of equal ones the newest first."""

    @abstractmethod
    def find_sessions(
        self, connection: Connection, scope: QueryScope, words: Sequence[QueryWord], limit: int
    ) -> list[int]:
        """The keys of sessions in which all words were said in one message."""


class TranscriptIndex(Port):
    """The messages of all sessions, by their words.

    It is written in the background, and never in the transaction of an append. The scope is part of the query itself: a
    message of another project, or outside of the scope, is not read. The scores of messages depend on how frequent
    words are; a repeated query may order them differently if others were added in between.
    """

    def __init__(self, database: Database, index: IndexDatabase, words: MessageFullText, claims: Claims) -> None:
        super().__init__(database)
        self.index = index
        self.words = words
        self.claims = claims
        names, values = columns((*MESSAGE_FIELDS, *words.columns)), columns(MESSAGE_FIELDS, ":")
        values = ", ".join((values, *words.columns.values()))
        self.insert_statement = f"insert into transcript_messages ({names}) values ({values})"

    @property
    def index_resets(self) -> int:
        """How often the index was found lost or damaged, and made again, since the store was opened."""
        return self.index.resets

    async def index_messages(self, updates: Sequence[TranscriptUpdate]) -> list[int]:
        """Replace the indexed messages of these sessions; return the keys of those that must be passed as a whole.

        A session must be if only a part is passed (`since`), and the index does not know it up to there, or knows it in
        another scope. Nothing is done to a session that is erased, or indexed up to a later position already.
        """
        incomplete = list[int]()
        for portion in portions(sorted(updates, key=lambda update: update.key)):
            parts = [part for part in portion if part.update.key not in incomplete]
            keys = [part.update.key for part in parts]
            incomplete += await self.index.write_readable(keys, partial(self.index_parts, parts))
        return incomplete

    async def find_messages(self, query: TranscriptQuery) -> list[FoundMessage]:
        """Return the messages with these words, best first, of equal ones the newest first."""
        if not query.words:
            return []

        def job(connection: Connection) -> list[FoundMessage]:
            return find_messages(lambda one: [FoundMessage(*row) for row in self.words.find(connection, one)], query)

        return await self.index.read(job)

    async def newest_messages(self, keys: Sequence[int], limit: int, length: int) -> list[FoundMessage]:
        """Return the newest messages heard in each of these sessions, at most `limit` of each, the newest first.

        Each text is cut to its first `length` characters.
        """

        def job(connection: Connection) -> list[FoundMessage]:
            rows = (connection.rows(SELECT_NEWEST, key=key, limit=limit, length=length) for key in keys)
            return [FoundMessage(*row) for some in rows for row in some]

        return await self.index.read(job) if keys else []

    async def find_sessions(self, scope: QueryScope, words: Sequence[QueryWord], limit: int) -> list[int]:
        """Return the keys of sessions in which all of these words were said in one message.

        The newest `MAX_LOOKS` messages with the words are searched.
        """
        if not words:
            return []
        return await self.index.read(lambda connection: self.words.find_sessions(connection, scope, words, limit))

    async def check_index(self, after_key: int, limit: int) -> Check[Stream]:
        """Check some sessions of all projects, by key, for those that have grown since they were indexed.

        Rows of erased sessions in a separate database are deleted on the way.
        """
        values = {"after": after_key, "limit": limit}
        looked_at = await self.database.scan(lambda connection: connection.rows(LOOK_AT_SESSIONS, **values))
        keys = [key for key, *_ in looked_at]
        positions = await self.index.read(lambda connection: connection.rows(SELECT_POSITIONS, keys=keys))
        indexed: dict[int, int] = dict(positions)
        gone = [key for key, _, is_erased in looked_at if is_erased and key in indexed]
        while self.index.has_own_database and gone and await self.delete_portion(gone):
            pass
        behind = [key for key, position, is_erased in looked_at if not is_erased and indexed.get(key, 0) < position]
        rows = await self.database.rows(SELECT_READABLE_STREAMS, keys=behind)
        return checked(looked_at, limit, list(map(to_stream, rows)))

    async def claim_index_check(self, node: str, now_ms: int, lease_ms: int) -> bool:
        """Claim the check of all sessions; False while another node has it. It is freed like other claims."""
        return self.index.has_own_database or await self.claims.claim(INDEX_CHECK, 0, node, now_ms, lease_ms)

    async def count_sessions_to_index(self) -> int:
        """Return the number of sessions in all projects, without erased ones."""
        return await self.database.count(COUNT_SESSIONS)

    async def clear_index(self) -> None:

        def job(connection: Connection) -> None:
            self.words.clear(connection)
            for table in TABLES:
                connection.execute(f"delete from {table}")

        await self.index.write(job)

    async def delete_portion(self, keys: Sequence[int]) -> bool:
        """Delete a portion of these sessions' rows in a separate index; False when nothing is left.

        They are looked up in the transaction, after every job that began before the sessions were erased.
        """

        def job(connection: Connection) -> bool:
            sessions = (load_session(connection, key) for key in keys)
            return any(self.remove_portion(connection, session) for session in sessions if session is not None)

        return await self.index.write_if_there(job) if self.index.has_own_database else False

    # In a transaction of the index

    def remove_portion(self, connection: Connection, session: IndexedSession) -> bool:
        """Remove some messages of a session, and finally the session; return True."""
        rows = connection.rows(SELECT_PORTION, key=session.key, limit=PORTION)
        for turn, number in rows:
            self.remove(connection, session, ONE, turn=turn, number=number)
        if len(rows) < PORTION:
            connection.execute(DELETE_SESSION, key=session.key)
        return True

    def index_parts(self, parts: Sequence[Part], connection: Connection, readable: Collection[int]) -> list[int]:
        """Index parts of updates; return the keys of sessions that must be passed as a whole."""
        present = [part for part in parts if part.update.key in readable]
        return [part.update.key for part in present if not self.index_part(connection, part)]

    def index_part(self, connection: Connection, part: Part) -> bool:
        """Index a part of an update; return False if its session must be passed as a whole.

        The position stays as it was until the last part is indexed, and is 0 if the session was not complete.
        """
        update = part.update
        known = load_session(connection, update.key)
        session = IndexedSession(update.key, update.position, update.scope, update.started_ms)
        if known is not None and known.position > update.position:
            return True
        is_same = known is not None and known._replace(position=update.position) == session
        if update.since is not None and (known is None or not is_same or known.position < update.since):
            return False
        if not part.is_first and not is_same:  # it was made again, or has another scope now
            return False
        if known is not None and not is_same:
            self.remove(connection, known, ALL)
        elif known is not None and update.since is None and part.is_first:
            self.remove(connection, known, OTHERS, turns=[*update.turns, *update.rest])
        self.replace(connection, session, part)
        if is_same and not part.is_last:
            return True
        messages, words = connection.one(MEASURE_SESSION, key=update.key)
        position = session.position if part.is_last else 0
        values = {"stream": session.key, "position": position, "started_ms": session.started_ms}
        connection.execute(SAVE_SESSION, messages=messages, words=words, **values, **session.scope._asdict())
        return True

    def replace(self, connection: Connection, session: IndexedSession, part: Part) -> None:
        """Replace the rows of a part by its passages; rows that did not change stay."""
        new = {(one.turn_id, one.number): one for one in part.passages}
        where = {"turns": part.turns, "first": part.first, "last": part.last}
        for row in connection.rows(SELECT_TURNS, key=session.key, **where):
            stored = Passage(*row)
            place = stored.turn_id, stored.number
            if new.get(place) == stored:
                del new[place]
            else:
                self.remove(connection, session, ONE, turn=stored.turn_id, number=stored.number)
        passages = list(new.values())
        if passages:
            rows = [
                {"stream": session.key, "turn": one.turn_id, **asdict(one), **self.words.values(session, one)}
                for one in passages
            ]
            connection.many(self.insert_statement, rows)
            self.words.add(connection, session, passages)

    def remove(self, connection: Connection, session: IndexedSession, where: str, **values: Any) -> None:
        self.words.remove(connection, session, where, **values)
        for table in ("transcript_vectors", "transcript_messages"):
            connection.execute(f"delete from {table} where stream = :key and {where}", key=session.key, **values)


def load_session(connection: Connection, key: int) -> IndexedSession | None:
    row = connection.row(SELECT_SESSION, key=key)
    return None if row is None else IndexedSession(row[0], row[1], Scope(*row[2:6]), row[6])
