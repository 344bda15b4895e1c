"""What a store says of its health while some of its connections work, and how that ends by itself."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.needs import needs_postgresql

needs_postgresql()

from tests.support import postgresql  # noqa: E402
from tests.support.stores.contract import append_offers, is_acknowledged, offer, open_key, stored_at  # noqa: E402
from voicemem.errors import StoreUnavailable  # noqa: E402
from voicemem.store.postgresql.store import PostgresqlStore  # noqa: E402

pytestmark = pytest.mark.postgresql
RIGHTS = "grant all on all tables in schema public to guest"
TOO_MANY = "PostgreSQL accepts no more connections"
BEGUN, OVER = "The store is in trouble", "The store is out of trouble"


@asynccontextmanager
async def limited_store(database: str) -> AsyncIterator[PostgresqlStore]:
    """A store of a role whose limit of connections can be set."""
    with postgresql.role(database, RIGHTS) as url:
        store = PostgresqlStore(url)
        try:
            yield store
        finally:
            await store.close_store()


async def open_keys(store: PostgresqlStore) -> list[int]:
    """A session in each lane, with two events, so that only the end of its journal is to be guessed."""
    keys: dict[int, int] = {}
    number = 0
    while len(keys) < store.journal.commit_shards:
        key = await open_key(store, f"s{number}")
        keys.setdefault(store.journal.shard_of(key), key)
        number += 1
    return [keys[lane] for lane in range(store.journal.commit_shards)]


async def allow(limit: int) -> None:
    await asyncio.to_thread(postgresql.server().execute, f"alter role guest connection limit {limit}")


async def close_lane(store: PostgresqlStore, lane: int) -> None:
    """End the connection of a lane at the server, and let the role open no other."""
    session = store.database.append_connections[lane].writer.connection
    assert session is not None
    await allow(0)
    postgresql.server().execute(f"select pg_terminate_backend({session.raw.info.backend_pid}, 5000)")


async def fail_a_lane(store: PostgresqlStore) -> list[int]:
    """Let one lane lose its connection and get no other, while everything else has one; the sessions by lane."""
    dead, alive = keys = await open_keys(store)
    for key in keys:
        await append_offers(store, key, offer(1))
        assert stored_at(2) == await append_offers(store, key, offer(2))
    await close_lane(store, 0)
    with pytest.raises(StoreUnavailable):
        await append_offers(store, dead, offer(3))
    assert stored_at(3) == await append_offers(store, alive, offer(3))
    return keys


async def test_a_lane_without_a_connection_is_not_hidden_by_the_others(database: str) -> None:
    """However often the others commit, the store is not healthy and says why, until that lane works again."""
    async with limited_store(database) as store:
        dead, alive = await fail_a_lane(store)
        for _ in range(3):
            await store.probe()
            assert not store.healthy
            assert TOO_MANY in str(store.trouble)
        await allow(20)
        assert all(map(is_acknowledged, await append_offers(store, dead, offer(3))))
        assert store.healthy
        assert store.trouble is None
        assert stored_at(4) == await append_offers(store, alive, offer(4))


async def test_the_trouble_of_an_idle_lane_ends_by_itself(database: str) -> None:
    """A lane that gets no more work is tried by the probe, so that its trouble lasts no longer than its cause."""
    async with limited_store(database) as store:
        await fail_a_lane(store)
        await allow(20)
        assert not store.healthy
        await store.probe()
        assert store.healthy


async def test_readers_and_writers_without_connections_are_tried_again(database: str) -> None:
    """Whatever kind of connection could not be opened, the store is not healthy until the probe has opened it."""
    async with limited_store(database) as store:
        key = await open_key(store)
        await store.nodes.list_nodes()
        await allow(0)
        postgresql.server().execute(postgresql.END_CONNECTIONS.format(database))
        reads = (store.nodes.list_nodes, store.read_clock, store.probe, lambda: append_offers(store, key, offer(1)))
        for fails in reads:
            with pytest.raises(StoreUnavailable, match=TOO_MANY):
                await fails()
        assert not store.healthy
        await allow(20)
        await store.probe()
        assert store.healthy


async def test_trouble_is_logged_when_it_begins_and_when_it_is_over(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line each, with the reason and with how long it lasted, however many commits fail in between."""
    async with limited_store(database) as store:
        dead, _ = await fail_a_lane(store)
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await append_offers(store, dead, offer(3))
        await allow(20)
        await store.probe()
        lines = [(one.levelname, one.getMessage()) for one in caplog.records if one.name == "voicemem.store"]
    (begun, what), (over, how_long) = lines
    assert ("WARNING", "WARNING") == (begun, over)
    assert what.startswith(BEGUN)
    assert TOO_MANY in what
    assert how_long.startswith(OVER)


async def test_a_connection_that_works_is_taken_before_one_in_trouble(database: str) -> None:
    """So a node with fewer connections than it wants goes on with those that it has."""
    async with limited_store(database) as store:
        writers = store.database.writers
        first, second, third = (writers.get() for _ in range(3))
        first.open()
        await allow(0)
        for writer in (first, second, third):
            writers.put(writer)
        for writer in (second, third):
            with pytest.raises(StoreUnavailable):
                writer.run(lambda rows: None)
        assert not store.healthy
        for number in range(3):
            await open_key(store, f"s{number}")
