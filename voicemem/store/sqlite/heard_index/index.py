"""The methods of `voicemem.store.port.HeardIndex` on SQLite, and how what is erased leaves the index."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from functools import partial

import apsw

from voicemem.errors import StoreUnavailable
from voicemem.search.words import QueryWord
from voicemem.store.ports.heard_index import FoundMessage, HeardMessages, HeardQuery, HeardScope, IndexCheck
from voicemem.store.sqlite.database.connections import IN_MEMORY, Database, open_connection
from voicemem.store.sqlite.database.secure_delete import truncate_log
from voicemem.store.sqlite.heard_index.index_file import IndexFile
from voicemem.store.sqlite.heard_index.rows import (
    PORTION,
    find,
    find_sessions,
    index_session,
    positions_of,
    remove_session,
)
from voicemem.store.sqlite.journal.reads import POSITION, STREAM_COLUMNS
from voicemem.store.stream_rows import to_stream
from voicemem.store.streams import SESSION_KIND

LOOK_AT_SESSIONS = f"""
    select key, {POSITION}, state = 'erased' from streams where kind = '{SESSION_KIND}' and key > ? order by key limit ?
"""
SELECT_STREAMS = (
    f"select {STREAM_COLUMNS} from streams where key in (select value from json_each(?)) and state != 'erased'"
)
SELECT_ERASED = "select key from streams where key in (select value from json_each(?)) and state = 'erased'"
COUNT_SESSIONS = f"select count(*) from streams where kind = '{SESSION_KIND}' and state != 'erased'"
CLEAR = """
    insert into words (words) values ('delete-all');
    delete from messages;
    delete from vectors;
    delete from sessions;
"""


class SqliteHeardIndex:
    """The methods are documented in `voicemem.store.port.HeardIndex`."""

    database: Database
    heard: IndexFile

    async def index_heard(self, updates: Sequence[HeardMessages]) -> list[int]:
        """A session may be erased meanwhile, and what it had in the index be deleted before this writes.

        So what is erased is looked up in the transaction. It is on the one thread that writes the index, as is what
        deletes: a session that is erased after the look is deleted after the commit.
        """
        keys = [update.key for update in updates]
        if self.heard.in_memory:
            erased = await self.erased_among(keys)
            return await self.heard.write(partial(self.write_updates, updates, erased))

        def job(connection: apsw.Connection) -> list[int]:
            with closing(open_connection(self.database.path, read_only=True)) as store:
                return self.write_updates(updates, select_erased(store, keys), connection)

        return await self.heard.write(job)

    def write_updates(
        self, updates: Sequence[HeardMessages], erased: set[int], connection: apsw.Connection
    ) -> list[int]:
        secret, incomplete = self.heard.incarnation, list[int]()
        for update in updates:
            if update.key not in erased and not index_session(connection, update, secret):
                incomplete.append(update.key)
        return incomplete

    async def erased_among(self, keys: Sequence[int]) -> set[int]:
        return await self.database.read(lambda connection: select_erased(connection, keys))

    async def find_heard(self, wanted: HeardQuery) -> list[FoundMessage]:
        return await self.heard.read(lambda connection: find(connection, wanted, self.heard.incarnation))

    async def find_heard_sessions(self, scope: HeardScope, words: Sequence[QueryWord], limit: int) -> list[int]:
        return await self.heard.read(
            lambda connection: find_sessions(connection, scope, words, limit, self.heard.incarnation)
        )

    async def check_index(self, after_key: int, limit: int) -> IndexCheck:
        found = await self.database.scan(
            lambda connection: list(connection.execute(LOOK_AT_SESSIONS, (after_key, limit)))
        )
        indexed = await self.heard.read(lambda connection: positions_of(connection, [key for key, *_ in found]))
        gone = [key for key, _, is_erased in found if is_erased and key in indexed]
        while gone and await delete_indexed(self.heard, gone):
            pass
        behind = [key for key, position, is_erased in found if not is_erased and indexed.get(key, 0) < position]
        streams = await self.database.read(
            lambda connection: [to_stream(row) for row in connection.execute(SELECT_STREAMS, (as_json(behind),))]
        )
        return IndexCheck(streams, len(found), found[-1][0] if len(found) == limit else None)

    async def claim_index_check(self, node: str, now_ms: int, lease_ms: int) -> bool:
        return True  # the file is this process's own

    async def clear_index(self) -> None:
        await self.heard.write(lambda connection: connection.execute(CLEAR).fetchall())

    async def count_sessions_to_index(self) -> int:
        return int(await self.database.scan(lambda connection: connection.execute(COUNT_SESSIONS).get))

    @property
    def index_resets(self) -> int:
        return self.heard.resets


async def delete_indexed(index: IndexFile, keys: Sequence[int]) -> bool:
    """Delete a portion of what is indexed of these sessions; False when nothing is left.

    It looks for them on the thread that writes, behind everything that was begun before they were erased.
    """

    def job(connection: apsw.Connection) -> bool:
        return any(remove_session(connection, key, PORTION) for key in positions_of(connection, keys))

    return await index.write_if_there(job)


async def scrub_index(index: IndexFile) -> bool:
    """Remove what deletion leaves behind in the file; False when that must be tried again. Raises `StoreUnavailable`.

    A disk that fails to sync the index does not ruin the store: the index can be made again.
    """
    try:
        return index.in_memory or not index.is_there or await asyncio.to_thread(truncate_log, index.path)
    except apsw.IOError as error:
        raise StoreUnavailable(f"The index cannot be cleared: {type(error).__name__}.") from None


def select_erased(connection: apsw.Connection, keys: Sequence[int]) -> set[int]:
    return {key for (key,) in connection.execute(SELECT_ERASED, (as_json(keys),))}


def as_json(keys: Sequence[int]) -> str:
    return f"[{','.join(map(str, keys))}]"


def new_index_file(database: Database, incarnation: bytes) -> IndexFile:
    """The index that belongs to a store; nothing is opened yet."""
    return IndexFile("" if database.path == IN_MEMORY else database.path, incarnation)
