"""Erasure: a mark that makes a session unreadable at once, then its content leaves the file, a portion at a time.

What a table lets go of is cleared from the file by `voicemem.store.sqlite.scrub`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import apsw

from voicemem.config.session import parse_config
from voicemem.errors import StoreUnavailable
from voicemem.store.sqlite.database import IN_MEMORY, RUINED, Database
from voicemem.store.sqlite.rows import Rows
from voicemem.store.sqlite.scrub import clear
from voicemem.store.streams import USER, Stream


class Content(NamedTuple):
    """Where content of a session (?1) is: the rows of it with their sizes, and how some (?2, a JSON array) go."""

    rows: str
    delete: str


GIVEN = "(select value from json_each(?2))"
CONTENTS = (
    Content(
        "select x.key, 0 from exports x where x.stream = ?1"
        " and exists (select 1 from attempts a where a.export = x.key)",
        f"delete from attempts where export in {GIVEN} and ?1",
    ),
    Content(
        "select key, length(closing) + ifnull(length(payload), 0) from exports where stream = ?1",
        f"delete from exports where key in {GIVEN} and stream = ?1",
    ),
    Content(
        "select rowid, length(payload) from journal where stream = ?1 order by position",
        f"delete from journal where rowid in {GIVEN} and stream = ?1",
    ),
    Content(
        "select rowid, length(runs) from archives where stream = ?1 order by position",
        f"delete from archives where rowid in {GIVEN} and stream = ?1",
    ),
    Content(
        "select stream, length(state) from snapshots where stream = ?1",
        f"delete from snapshots where stream in {GIVEN} and stream = ?1",
    ),
    Content(
        "select name, length(value) from secrets where stream = ?1",
        f"delete from secrets where stream = ?1 and name in {GIVEN}",
    ),
    Content(
        "select key, length(url) from endpoints where stream = ?1",
        f"delete from endpoints where key in {GIVEN} and stream = ?1",
    ),
    Content(
        "select name, length(name) from producers where stream = ?1",
        f"delete from producers where stream = ?1 and name in {GIVEN}",
    ),
)
"""Attempts before the exports that they belong to."""
ERASED_USER = "erased user"
"""The kind of what is left of a user's stream."""


class SqliteErasure:
    """Erasure; the methods are documented in `voicemem.store.port`."""

    database: Database

    async def erase(self, key: int, now_ms: int) -> None:
        def job(connection: apsw.Connection) -> None:
            stream = self.database.rows.stream(key)
            if stream is not None:
                mark_erased(self.database.rows, stream, now_ms)

        await self.database.write(job)

    async def expired(self, now_ms: int, limit: int) -> list[int]:
        query = "select stream from retention where expires_ms <= ? order by expires_ms limit ?"
        return await self.database.read(
            lambda connection: [key for (key,) in connection.execute(query, (now_ms, limit))]
        )

    async def expire(self, key: int, now_ms: int) -> bool:
        query = "select 1 from retention where stream = ? and expires_ms <= ?"

        def job(connection: apsw.Connection) -> bool:
            stream = self.database.rows.stream(key)
            if stream is None or not connection.execute(query, (key, now_ms)).fetchall():
                return False
            mark_erased(self.database.rows, stream, now_ms)
            return True

        return await self.database.write(job)

    async def erased(self, limit: int) -> list[int]:
        query = "select stream from retention where erased_ms is not null and not deleted order by erased_ms limit ?"
        return await self.database.read(lambda connection: [key for (key,) in connection.execute(query, (limit,))])

    async def delete_erased(self, keys: Sequence[int]) -> bool:
        def job(connection: apsw.Connection) -> bool:
            self.database.rows.flush()
            if delete_portion(connection, keys):
                return True
            query = "update retention set deleted = 1 where erased_ms is not null and stream in"
            connection.execute(f"{query} (select value from json_each(?))", (json.dumps(keys),))
            return False

        return await self.database.write(job)

    async def finish_erased(self) -> bool:
        deleted = "select stream from retention where erased_ms is not null and deleted"
        keys = await self.database.read(lambda connection: [key for (key,) in connection.execute(deleted)])
        if not keys:
            return True
        path, stopped = self.database.path, lambda: self.database.closed
        try:
            if path != IN_MEMORY and not await asyncio.to_thread(clear, path, stopped):
                return False
        except apsw.IOError:
            await self.database.write(lambda connection: connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1))
            self.database.ruined, self.database.healthy = True, False
            raise StoreUnavailable(RUINED) from None

        def job(connection: apsw.Connection) -> None:
            query = "delete from retention where stream in (select value from json_each(?))"
            connection.execute(query, (json.dumps(keys),))

        await self.database.write(job)
        return True


def mark_erased(rows: Rows, stream: Stream, now_ms: int) -> None:
    """Make a session unreadable; its row stays, without content, so that nobody brings it back."""
    if stream.state == "erased":
        return
    stream.state, stream.config, stream.ended_ms, stream.reason = "erased", {}, now_ms, None
    stream.silent_since_ms = stream.ending_ms = stream.ending_ts = stream.ending_reason = None
    stream.provisional = False
    rows.save_stream(stream)
    if stream.kind == USER:
        forget_name(rows, stream)
    rows.connection.execute("insert or replace into retention (stream, erased_ms) values (?, ?)", (stream.key, now_ms))


def forget_name(rows: Rows, stream: Stream) -> None:
    """A user's id says who it is, so it does not stay; and whoever comes back under it is somebody new."""
    rows.named.pop((stream.project, stream.kind, stream.id), None)
    stream.kind, stream.id = ERASED_USER, str(stream.key)
    query = "update streams set kind = ?, id = ? where key = ?"
    rows.connection.execute(query, (stream.kind, stream.id, stream.key))


def delete_portion(connection: apsw.Connection, keys: Sequence[int]) -> bool:
    """Delete some of the content of erased sessions; False when there is none."""
    portion = Portion()
    for key in keys:
        for content in CONTENTS:
            if given := portion.take(connection.execute(content.rows, (key,))):
                connection.execute(content.delete, (key, given))
            if portion.full:
                return True
    return portion.begun


def plan(connection: apsw.Connection, stream: Stream) -> None:
    """When the journal of a session that has just ended is compacted, and when the session is erased."""
    settings = parse_config(stream.config)
    ended = stream.ended_ms or 0
    expires = None if settings.ttl_seconds is None else ended + int(settings.ttl_seconds * 1000)
    connection.execute(
        "insert or replace into retention (stream, compact_ms, expires_ms) values (?, ?, ?)",
        (stream.key, ended + int(settings.reopen_window * 1000), expires),
    )


def call_off(connection: apsw.Connection, stream: Stream) -> None:
    """It runs again."""
    connection.execute("delete from retention where stream = ?", (stream.key,))


def is_erased(connection: apsw.Connection, key: int) -> bool:
    """Whether nothing of a session may be read, whatever is still there."""
    return bool(connection.execute("select 1 from streams where key = ? and state = 'erased'", (key,)).fetchall())


ROWS = 200
BYTES = 1024 * 1024
"""Of content; the row that goes over it is the portion's last."""


class Portion:
    """How much of a portion is left; `take` says which rows go."""

    def __init__(self) -> None:
        self.rows = ROWS
        self.bytes = BYTES

    @property
    def begun(self) -> bool:
        return self.rows < ROWS

    @property
    def full(self) -> bool:
        return self.rows <= 0 or self.bytes <= 0

    def take(self, sizes: Iterable[tuple[Any, int]]) -> str:
        """The keys of the first rows, given as (key, bytes), as a JSON array for one statement; empty for none."""
        keys: list[Any] = []
        for key, size in sizes:
            if self.full:
                break
            keys.append(key)
            self.rows -= 1
            self.bytes -= size
        return json.dumps(keys) if keys else ""
