"""The index of heard messages, in tables of the database; see `voicemem.store.port.HeardIndex`.

PostgreSQL finds the messages by its own text search; how rare words are counts over the messages of the scope alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from voicemem.search.passages import BEFORE_WEIGHT, Passage, day_words, indexed_words
from voicemem.search.words import QueryWord
from voicemem.store.claims import INDEX_CHECK, Claims
from voicemem.store.ports.heard_index import (
    MAX_HEARD_LOOKS,
    FoundMessage,
    HeardMessages,
    HeardQuery,
    HeardScope,
    IndexCheck,
    asked_terms,
    scope_terms,
)
from voicemem.store.postgresql.database.connection import Row, Session
from voicemem.store.postgresql.database.pool import Database
from voicemem.store.postgresql.heard_index.ranking import ranked
from voicemem.store.postgresql.journal.rows import Rows
from voicemem.store.stream_rows import POSITION, STREAM_COLUMNS, to_stream
from voicemem.store.streams import SESSION_KIND

SELECT_STATE = "select state from streams where key = $1 for share"
"""Whoever erases the session waits until this transaction is over, and then deletes what it wrote."""
SELECT_INDEXED = """
    select position, project, namespace, user_id from heard_sessions where stream = $1 for update
"""
SAVE_INDEXED = """
    insert into heard_sessions values ($1, $2, $3, $4, $5, $6, $7, $8)
    on conflict (stream) do update set position = excluded.position, project = excluded.project,
    namespace = excluded.namespace, user_id = excluded.user_id, session_id = excluded.session_id,
    messages = excluded.messages, words = excluded.words
"""
OF_SESSION = "heard_messages where stream = $1"
SELECT_TURNS = (
    f"select turn, number, position, role, said_ms, text, before from {OF_SESSION} and turn = any($2::bigint[])"
)
DELETE_ALL = f"delete from {OF_SESSION}"
DELETE_OTHERS = f"{DELETE_ALL} and turn <> all($2::bigint[])"
DELETE_MESSAGE = f"{DELETE_ALL} and turn = $2 and number = $3"
SELECT_SIZE = f"select count(*), coalesce(sum(length), 0) from {OF_SESSION}"
INSERT_MESSAGES = """
    insert into heard_messages
    select $1, turn, number, position, role, said_ms, said, before, length,
    setweight(to_tsvector('voicemem', own_words), 'A')
    || to_tsvector('voicemem', other_words) || array_to_tsvector(string_to_array($2, ' '))
    from unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[], $8::text[], $9::text[],
    $10::bigint[], $11::text[], $12::text[])
    as given (turn, number, position, role, said_ms, said, before, length, own_words, other_words)
"""
KEY = "stream, turn, number"
FIND = f"""
{
    ranked(
        "heard_messages",
        KEY,
        BEFORE_WEIGHT,
        "select sum(messages), sum(words) from heard_sessions where {scope}",
        "said_ms >= $5 and said_ms < $6",
    )
}
select m.stream, m.turn, m.number, m.position, m.role, m.said_ms, m.text, score
from scored join heard_messages m using ({KEY})
order by score desc, m.said_ms desc, m.stream desc, m.turn desc, m.number desc limit $7 offset $8
"""
FIND_SESSIONS = """
    with found as materialized (
        select stream from heard_messages where words @@ ($1::tsquery && to_tsquery('voicemem', $2)) limit $3
    )
    select stream from (select distinct stream from found) s order by stream desc limit $4
"""
SCOPE_COLUMNS = ("project", "namespace", "user_id", "session_id")
CHECK = f"""
    select s.key, case when s.state = 'ended' then s.position else {POSITION} end > coalesce(h.position, 0)
    from streams s left join heard_sessions h on h.stream = s.key
    where s.key > $1 and s.kind = '{SESSION_KIND}' and s.state <> 'erased' order by s.key limit $2
"""
"""The row of a session that has ended says where its journal ends."""
SELECT_STREAMS = f"""
    select {STREAM_COLUMNS} from unnest($1::bigint[]) as wanted (key)
    join streams s on s.key = wanted.key where s.state <> 'erased' order by s.key
"""
COUNT_SESSIONS = f"select count(*) from streams where kind = '{SESSION_KIND}' and state <> 'erased'"


class PostgresqlHeardIndex:
    """The methods are documented in `voicemem.store.port.HeardIndex`."""

    database: Database
    claims: Claims

    async def index_heard(self, updates: Sequence[HeardMessages]) -> list[int]:
        secret = self.database.identity["incarnation"]

        def job(rows: Rows) -> list[int]:
            in_order = sorted(updates, key=lambda update: update.key)
            return [update.key for update in in_order if not index_session(rows.session, update, secret)]

        return await self.database.write(job)

    async def find_heard(self, wanted: HeardQuery) -> list[FoundMessage]:
        if not wanted.words:
            return []
        return await self.database.read(lambda session: find(session, wanted, self.database.identity["incarnation"]))

    async def find_heard_sessions(self, scope: HeardScope, words: Sequence[QueryWord], limit: int) -> list[int]:
        if not words:
            return []
        asked = " & ".join(f"'{word.text}':{'*' if word.is_prefix else ''}A" for word in words)
        terms = " & ".join(asked_terms(scope, self.database.identity["incarnation"]))
        values = (terms, asked, MAX_HEARD_LOOKS, limit)
        rows = await self.database.read(lambda session: session.rows(FIND_SESSIONS, values))
        return [key for (key,) in rows]

    async def check_index(self, after_key: int, limit: int) -> IndexCheck:
        found = await self.database.read(lambda session: session.rows(CHECK, (after_key, limit)))
        keys = [key for key, is_behind in found if is_behind]
        rows = await self.database.read(lambda session: session.rows(SELECT_STREAMS, (keys,))) if keys else []
        behind = [to_stream(row) for row in rows]
        return IndexCheck(behind, len(found), found[-1][0] if len(found) == limit else None)

    async def claim_index_check(self, node: str, now_ms: int, lease_ms: int) -> bool:
        return await self.claims.claim(INDEX_CHECK, 0, node, now_ms, lease_ms)

    async def clear_index(self) -> None:
        def job(rows: Rows) -> None:
            rows.session.execute("delete from heard_messages")
            rows.session.execute("delete from heard_sessions")

        await self.database.write(job)

    async def count_sessions_to_index(self) -> int:
        (count,) = await self.database.read(lambda session: session.one(COUNT_SESSIONS))
        return int(count)

    @property
    def index_resets(self) -> int:
        return 0


def index_session(session: Session, update: HeardMessages, secret: bytes) -> bool:
    """Put an update into the index; False when everything of its session is needed instead."""
    state = session.row(SELECT_STATE, (update.key,))
    if state is None or state[0] == "erased":
        return True
    known = session.row(SELECT_INDEXED, (update.key,))
    scope = tuple(update.scope)
    is_same = known is not None and known[1:] == scope[:3]
    position = None if known is None else known[0]
    if not update.is_news(position):
        return True
    if not update.goes_on_from(position, is_same):
        return False
    if known is not None and not is_same:
        session.execute(DELETE_ALL, (update.key,))
    elif known is not None and update.since is None:
        session.execute(DELETE_OTHERS, (update.key, list(update.turns)))
    replace_turns(session, update, " ".join(scope_terms(update.scope, secret)))
    session.execute(SAVE_INDEXED, (update.key, update.position, *scope, *session.one(SELECT_SIZE, (update.key,))))
    return True


def replace_turns(session: Session, update: HeardMessages, scope: str) -> None:
    """Make the rows of the turns these passages; those that did not change are left alone."""
    wanted = {(one.turn_id, one.number): one for passages in update.turns.values() for one in passages}
    for turn, number, position, role, said_ms, *texts in session.rows(SELECT_TURNS, (update.key, list(update.turns))):
        stored = Passage(turn, number, position, role, said_ms, *texts)
        if wanted.get((turn, number)) == stored:
            del wanted[turn, number]
        else:
            session.execute(DELETE_MESSAGE, (update.key, turn, number))
    if wanted:
        day = day_words(update.started_ms)
        columns = zip(*(message_values(passage, day) for passage in wanted.values()), strict=True)
        session.execute(INSERT_MESSAGES, (update.key, scope, *(list(column) for column in columns)))


def message_values(passage: Passage, day: str) -> tuple[int | str, ...]:
    """The columns of a message, but for its session and its scope."""
    said, before, day_of_call = indexed_words(passage, day)
    own = [*said, *day_of_call]
    place = passage.turn_id, passage.number, passage.position, passage.role, passage.said_ms
    texts = passage.text, passage.before, len(own) + len(before)
    return *place, *texts, " ".join(own), " ".join(before)


def find(session: Session, wanted: HeardQuery, secret: bytes) -> list[FoundMessage]:
    scope = " & ".join(asked_terms(wanted.scope, secret))
    words = " | ".join(f"'{word.text}'{':*' if word.is_prefix else ''}" for word in wanted.words)
    whole = " ".join(word.text for word in wanted.words if not word.is_prefix)
    beginnings = " ".join(word.text for word in wanted.words if word.is_prefix)
    given = [(name, part) for name, part in zip(SCOPE_COLUMNS, wanted.scope, strict=True) if part is not None]
    conditions = " and ".join(f"{name} = ${number}" for number, (name, _) in enumerate(given, 9))
    values = (
        scope,
        words,
        whole,
        beginnings,
        *wanted.said_between,
        wanted.limit,
        wanted.offset,
        *(part for _, part in given),
    )
    rows = session.rows(FIND.format(scope=conditions), values)
    return [to_message(row) for row in rows]


def to_message(row: Row) -> FoundMessage:
    key, turn_id, number, position, role, said_ms, text, score = row
    return FoundMessage(key, turn_id, number, position, role, said_ms, text, score)
