"""Short ways to write and read a SQLite store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import apsw

from tests.support.stores.contract import append_batch
from voicemem.config.session import validate_config
from voicemem.store.append_rules import Offer, Outcome
from voicemem.store.sqlite.driver import Job
from voicemem.store.sqlite.store import SqliteStore

NOW = 1_778_390_400_000
WAIT_S = 10
"""Longer than anything here takes: a store that leaves someone waiting fails its test instead of hanging it."""


@asynccontextmanager
async def opened_session(path: str, exclusive: bool = True) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, exclusive)
    try:
        yield store
    finally:
        await store.close_store()


def offer(seq: int, size: int = 10) -> Offer:
    return Offer(seq, NOW, b'{"type":"metric","seq":%d,"name":"%s"}' % (seq, b"x" * size))


async def begin(store: SqliteStore, session_id: str = "s", given: dict[str, Any] | None = None) -> int:
    return (
        await store.journal.open_producer("p", session_id, "main", validate_config(given or {}), None, NOW)
    ).stream.key


async def send(store: SqliteStore, key: int, *batch: Offer) -> list[Outcome]:
    return [*(await append_batch(store.journal, key, "main", None, batch, NOW)).outcomes]


async def stored_seqs(store: SqliteStore, key: int) -> list[int | None]:
    return [row.seq for row in await store.journal.read_rows(key, 0, 10**6)]


def insert(name: str) -> Job:
    """A job that can be seen later."""
    return lambda connection: connection.execute("insert into meta values (:name, x'00')", name=name)


async def inserted(store: SqliteStore) -> set[str]:
    names: set[str] = await store.database.read(
        lambda connection: {name for (name,) in connection.rows("select name from meta")}
    )
    return names - {"incarnation", "cursor_secret", "memory_words"}


def set_version(path: str, change: int) -> None:
    connection = apsw.Connection(path)
    connection.pragma("user_version", connection.pragma("user_version") + change)
    connection.close()
