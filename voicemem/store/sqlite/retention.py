"""Erasure and expiry: a mark makes a session unreadable at once, then its content is deleted a portion at a time.

SQLite overwrites deleted rows; what its log still has of them goes when it is truncated.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import apsw

from voicemem.errors import StoreUnavailable
from voicemem.store.memories import Memories
from voicemem.store.sqlite.connection import SqliteConnection
from voicemem.store.sqlite.driver import IN_MEMORY, Database
from voicemem.store.sqlite.files import truncate_log
from voicemem.store.sqlite.rows import RowCache
from voicemem.store.sqlite.transcript_file import IndexFile
from voicemem.store.sqlite.writer import RUINED
from voicemem.store.streams import ERASED_USER_KIND, USER_KIND, Stream, mark_erased
from voicemem.store.transcript_index import TranscriptIndex
from voicemem.store.upkeep import Portion


class ContentTable(NamedTuple):
    """One table that holds content of a session (?1)."""

    rows: str
    """Selects its rows there: key, and size in bytes."""
    delete: str
    """Deletes those whose keys are given (?2, a JSON array)."""


GIVEN_KEYS = "(select value from json_each(?2))"
CONTENT_TABLES = (
    ContentTable(
        "select x.key, 0 from deliveries x where x.stream = ?1"
        " and exists (select 1 from attempts a where a.delivery = x.key)",
        f"delete from attempts where delivery in {GIVEN_KEYS} and ?1",
    ),
    ContentTable(
        "select key, length(header) + ifnull(length(payload), 0) from deliveries where stream = ?1",
        f"delete from deliveries where key in {GIVEN_KEYS} and stream = ?1",
    ),
    ContentTable(
        "select rowid, length(by_id) + length(old_id) from superseded where stream = ?1",
        f"delete from superseded where rowid in {GIVEN_KEYS} and stream = ?1",
    ),
    ContentTable(
        "select rowid, length(payload) from journal where stream = ?1 order by position",
        f"delete from journal where rowid in {GIVEN_KEYS} and stream = ?1",
    ),
    ContentTable(
        "select rowid, length(runs) from archives where stream = ?1 order by position",
        f"delete from archives where rowid in {GIVEN_KEYS} and stream = ?1",
    ),
    ContentTable(
        "select version, length(state) from snapshots where stream = ?1",
        f"delete from snapshots where stream = ?1 and version in {GIVEN_KEYS}",
    ),
    ContentTable(
        "select item, length(item) from replies where stream = ?1",
        f"delete from replies where stream = ?1 and item in {GIVEN_KEYS}",
    ),
    ContentTable(
        "select stream, ifnull(length(figures), 0) from overviews where stream = ?1",
        f"delete from overviews where stream in {GIVEN_KEYS} and stream = ?1",
    ),
    ContentTable(
        "select stream, 0 from extracted where stream = ?1",
        f"delete from extracted where stream in {GIVEN_KEYS} and stream = ?1",
    ),
    ContentTable(
        "select stream, length(call) from observations where stream = ?1",
        f"delete from observations where stream in {GIVEN_KEYS} and stream = ?1",
    ),
    ContentTable(
        "select stream, 0 from quarantined where stream = ?1",
        f"delete from quarantined where stream in {GIVEN_KEYS} and stream = ?1",
    ),
    ContentTable(
        "select name, length(value) from secrets where stream = ?1",
        f"delete from secrets where stream = ?1 and name in {GIVEN_KEYS}",
    ),
    ContentTable(
        "select key, length(url) from endpoints where stream = ?1",
        f"delete from endpoints where key in {GIVEN_KEYS} and stream = ?1",
    ),
    ContentTable(
        "select name, length(name) from producers where stream = ?1",
        f"delete from producers where stream = ?1 and name in {GIVEN_KEYS}",
    ),
)
"""In the order of deletion: attempts are found by their deliveries, so they are deleted before these."""

SCRUB_AGAIN_S = 20.0
"""How often the log is emptied for the sake of single memories alone."""
MEMORIES = 5
"""Memories in a portion: each takes milliseconds, since its words are overwritten."""
SELECT_REMOVED = "select value from meta where name = 'memories_removed'"
FORGET_REMOVED = "delete from meta where name = 'memories_removed' and value = ?"
FORGET_REPEATED = "update streams set (user_id, interruptions, slowest_ms) = (null, null, null) where key = ?"
RENAME_STREAM = "update streams set kind = ?, id = ? where key = ?"
IS_FREE = "(node is null or node = ?2 or leased_until_ms <= ?1)"
"""Whether this node (?2) may claim the row of a session now (?1)."""
SELECT_EXPIRED = f"select stream from retention where expires_ms <= ?1 and {IS_FREE} order by expires_ms limit ?3"
SELECT_IS_EXPIRED = "select 1 from retention where stream = ? and expires_ms <= ?"
SELECT_ERASED = f"""
    select stream from retention where erased_ms is not null and not deleted and {IS_FREE} order by erased_ms limit ?3
"""
CLAIM = "update retention set node = ?, leased_until_ms = ? where stream in (select value from json_each(?))"
SELECT_DELETED = "select stream from retention where erased_ms is not null and deleted"
MARK_ERASED = "insert or replace into retention (stream, erased_ms) values (?, ?)"
MARK_DELETED = """
    update retention set deleted = 1 where erased_ms is not null and stream in (select value from json_each(?))
"""
DELETE_PLANS = "delete from retention where stream in (select value from json_each(?))"


class SqliteErasure:
    """Erasure and expiry; the methods are documented in `voicemem.store.port`."""

    database: Database
    index_file: IndexFile
    transcript_index: TranscriptIndex
    memories: Memories
    scrubbed_s = float("-inf")
    """When the file was last cleared of traces, by a clock that is never set."""

    async def erase(self, key: int, now_ms: int) -> None:
        def job(connection: apsw.Connection) -> None:
            stream = self.database.rows.stream(key)
            if stream is not None:
                erase(self.database.rows, stream, now_ms)

        await self.database.write(job)

    async def claim_expired(self, node: str, now_ms: int, lease_ms: int, limit: int) -> list[int]:
        return await claim(self.database, SELECT_EXPIRED, node, now_ms, lease_ms, limit)

    async def expire(self, key: int, now_ms: int) -> bool:
        def job(connection: apsw.Connection) -> bool:
            stream = self.database.rows.stream(key)
            if stream is None or not connection.execute(SELECT_IS_EXPIRED, (key, now_ms)).fetchall():
                return False
            erase(self.database.rows, stream, now_ms)
            return True

        return await self.database.write(job)

    async def claim_erased(self, node: str, now_ms: int, lease_ms: int, limit: int) -> list[int]:
        return await claim(self.database, SELECT_ERASED, node, now_ms, lease_ms, limit)

    async def delete_erased(self, keys: Sequence[int]) -> bool:
        def job(connection: apsw.Connection) -> bool:
            self.database.rows.flush()
            if delete_portion(connection, keys, self.memories):
                return True
            connection.execute(MARK_DELETED, (json.dumps(keys),))
            return False

        return await self.transcript_index.delete_portion(keys) or await self.database.write(job)

    async def finish_erased(self) -> bool:
        keys, removed = await self.database.read(select_left_over)
        if not keys and (removed is None or time.monotonic() < self.scrubbed_s + SCRUB_AGAIN_S):
            return True
        self.scrubbed_s = time.monotonic()
        path = self.database.path
        try:
            if path != IN_MEMORY and not await asyncio.to_thread(truncate_log, path):
                return False
        except apsw.IOError:
            await self.database.write(lambda connection: connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1))
            self.database.writing.mark_ruined()
            raise StoreUnavailable(RUINED) from None
        if not await scrub_index(self.index_file):
            return False

        def job(connection: apsw.Connection) -> None:
            connection.execute(DELETE_PLANS, (json.dumps(keys),))
            connection.execute(FORGET_REMOVED, (removed,))

        await self.database.write(job)
        return True


def select_left_over(connection: apsw.Connection) -> tuple[list[int], bytes | None]:
    """The sessions whose content has left the tables, and a mark if memories did; traces may still be in the file."""
    return [key for (key,) in connection.execute(SELECT_DELETED)], connection.execute(SELECT_REMOVED).get


async def scrub_index(index: IndexFile) -> bool:
    """Remove what deletion leaves behind in the file; False when that must be tried again. Raises `StoreUnavailable`.

    A disk that fails to sync the index does not ruin the store: the index can be made again.
    """
    try:
        return index.in_memory or not index.is_there or await asyncio.to_thread(truncate_log, index.path)
    except apsw.IOError as error:
        raise StoreUnavailable(f"The index cannot be cleared: {type(error).__name__}.") from None


async def claim(database: Database, query: str, node: str, now_ms: int, lease_ms: int, limit: int) -> list[int]:
    """Claim sessions that a query finds for a node. Where it finds none, nothing is written."""
    values = (now_ms, node, limit)

    def candidates(connection: apsw.Connection) -> list[int]:
        return [key for (key,) in connection.execute(query, values)]

    def job(connection: apsw.Connection) -> list[int]:
        keys = candidates(connection)
        connection.execute(CLAIM, (node, now_ms + lease_ms, json.dumps(keys)))
        return keys

    return await database.write(job) if await database.read(candidates) else []


def erase(rows: RowCache, stream: Stream, now_ms: int) -> None:
    """Make a session unreadable."""
    if stream.state == "erased":
        return
    mark_erased(stream, now_ms)
    rows.save_stream(stream)
    rows.raw.execute(FORGET_REPEATED, (stream.key,))
    if stream.kind == USER_KIND:
        drop_name(rows, stream)
    rows.raw.execute(MARK_ERASED, (stream.key, now_ms))


def drop_name(rows: RowCache, stream: Stream) -> None:
    """Remove a user's id from its row: it identifies a person, and the next user of this id is a new one."""
    rows.forget_name(stream)
    stream.kind, stream.id = ERASED_USER_KIND, str(stream.key)
    rows.raw.execute(RENAME_STREAM, (stream.kind, stream.id, stream.key))


def delete_portion(connection: apsw.Connection, keys: Sequence[int], memories: Memories) -> bool:
    """Delete a portion of the content of erased sessions; False when none is left.

    One writer commits for everyone, so a job that deleted a journal of a million events at once would stop all calls.
    """
    if any(memories.delete_portion(SqliteConnection(connection), key, MEMORIES) for key in keys):
        return True
    portion = JsonPortion()
    for key in keys:
        for content in CONTENT_TABLES:
            if row_keys := portion.select_keys(connection.execute(content.rows, (key,))):
                connection.execute(content.delete, (key, row_keys))
            if portion.is_full:
                return True
    return portion.has_begun


class JsonPortion(Portion):
    """A portion whose keys go into statements as JSON."""

    def select_keys(self, sizes: Iterable[tuple[Any, int]]) -> str:
        """The keys of the first rows (given as key and bytes) that fit, as a JSON array; "" when none does."""
        keys = self.select(sizes)
        return json.dumps(keys) if keys else ""
