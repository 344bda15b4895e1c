"""Stores on PostgreSQL, as tests of that engine alone take them."""

from __future__ import annotations

from tests.support.stores.engines import OpenHandle
from voicemem.store.postgresql.store import PostgresqlStore


async def opened(open_handle: OpenHandle) -> PostgresqlStore:
    """A handle on the test's database."""
    store = await open_handle()
    assert isinstance(store, PostgresqlStore)
    return store
