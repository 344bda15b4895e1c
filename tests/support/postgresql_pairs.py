"""A primary and its standby for the tests of one module."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from bench.harness.standby import Pair
from tests.support.postgresql import needs_server
from tests.support.waiting import eventually
from voicemem.store.postgresql.store import PostgresqlStore

DATABASE = "voicemem"
COUNT_WAITING = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'"


@contextmanager
def running_pair(synchronous: bool = True) -> Iterator[Pair]:
    """Two servers with an empty database."""
    needs_server()
    pair = Pair(synchronous)
    try:
        pair.primary.execute(f"create database {DATABASE}")
        yield pair
    finally:
        pair.remove()


@asynccontextmanager
async def stores(pair: Pair, count: int = 1, **options: str) -> AsyncIterator[list[PostgresqlStore]]:
    """Stores on the database of a pair, with these options in their URLs."""
    opened = [PostgresqlStore(pair.url(DATABASE, **options)) for _ in range(count)]
    try:
        yield opened
    finally:
        for store in opened:
            await store.close_store()


async def wait_for_waiting_commits(pair: Pair, count: int) -> None:
    """Wait until so many commits wait for the standby."""
    await eventually([(count,)], lambda: asyncio.to_thread(pair.primary.execute, COUNT_WAITING), timeout_s=60)
