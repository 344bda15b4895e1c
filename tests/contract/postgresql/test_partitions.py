"""The partitions of the journal: made ahead of time, beside whatever else happens in the database."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.needs import needs_postgresql

needs_postgresql()

from tests.support import postgresql  # noqa: E402
from tests.support.stores.contract import NOW, append_offers, begin_node, is_acknowledged, offer, open_key  # noqa: E402
from tests.support.stores.engines import OpenHandle  # noqa: E402
from voicemem.errors import CannotStart, StoreUnavailable  # noqa: E402
from voicemem.store.postgresql.connection import PostgresqlConnection, connect  # noqa: E402
from voicemem.store.postgresql.schema import (  # noqa: E402
    SELECT_PARTITIONS,
    add_partitions,
    ensure_partitions,
    missing_partitions,
    month_of,
    one_at_a_time,
)
from voicemem.store.postgresql.store import PostgresqlStore  # noqa: E402

pytestmark = pytest.mark.postgresql
MONTH_MS = 31 * 86_400_000
LATER = NOW + 120 * MONTH_MS
"""A time of which there are no partitions yet."""
WAITERS = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = '{}'"


@pytest.fixture
def owner(database: str) -> Iterator[PostgresqlConnection]:
    """A session of the role that owns the tables, at whose end new partitions are dropped again."""
    session = connect(postgresql.server().url(database))
    before = session.rows(SELECT_PARTITIONS)
    yield session
    for (name,) in {*session.rows(SELECT_PARTITIONS)} - {*before}:
        session.execute(f"drop table {name}")
    session.close()


def test_nodes_that_start_at_once_make_partitions_one_after_the_other(
    database: str, owner: PostgresqlConnection
) -> None:
    """The second one waits until the first has made them, for as long as it takes, and finds nothing left to do."""
    server = postgresql.server()
    second = connect(server.url(database))
    with ThreadPoolExecutor() as threads:
        with one_at_a_time(owner):
            made = missing_partitions(owner, LATER)
            for name, begin, end in made:
                owner.execute(f"create table {name} partition of journal for values from ({begin}) to ({end})")
            waiting = threads.submit(add_partitions, second, LATER)
            while server.execute(WAITERS.format(database)) == [(0,)]:
                assert not waiting.done()
            owner.execute("select pg_sleep(1.5)")  # longer than anything else waits for a lock
        waiting.result()
    assert (12, []) == (len(made), missing_partitions(second, LATER))
    second.close()


def test_partitions_are_made_beside_readers(database: str, owner: PostgresqlConnection) -> None:
    """A dump holds the journal for hours: a node that starts meanwhile does not wait for it."""
    with psycopg.connect(postgresql.server().url(database)) as dump:
        dump.execute("lock table journal in access share mode")
        ensure_partitions(owner, LATER)
    assert [] == missing_partitions(owner, LATER)


def test_a_role_that_owns_no_tables_serves_while_there_are_partitions(
    database: str, owner: PostgresqlConnection, caplog: pytest.LogCaptureFixture
) -> None:
    """It says in time who must make more, and does not start when sessions could soon not be created."""
    with postgresql.role(database, "grant all on all tables in schema public to guest") as url:
        guest = connect(url)
        with pytest.raises(CannotStart, match="voicemem migrate makes it, as the role that owns the tables"):
            ensure_partitions(guest, LATER)
        add_partitions(owner, LATER - 10 * MONTH_MS)
        ensure_partitions(guest, LATER)
        assert "Run voicemem migrate as the role that owns the tables before that month" in caplog.text
        guest.close()


async def test_a_node_makes_partitions_while_it_runs(open_handle: OpenHandle) -> None:
    """Once a day, with a heartbeat, so that it may run for years."""
    store = await open_handle()
    assert isinstance(store, PostgresqlStore)
    await begin_node(store, "a")
    session = connect(store.database.url)
    now_ms = store.database.keys.now_ms()
    assert [] == missing_partitions(session, now_ms)
    last = month_of(now_ms) + 11  # other tests may have left later ones
    session.execute(f"drop table journal_{last // 12}_{last % 12 + 1:02}")
    assert await store.nodes.renew_node("a", NOW + 1)
    assert 1 == len(missing_partitions(session, now_ms))
    store.database.partitions_due = 0
    assert await store.nodes.renew_node("a", NOW + 2)
    assert [] == missing_partitions(session, now_ms)
    session.close()


async def test_a_session_whose_partition_is_gone(open_handle: OpenHandle) -> None:
    """Nothing is stored or acknowledged, its producers keep their events, and the sentence says what is missing."""
    store = await open_handle()
    assert isinstance(store, PostgresqlStore)
    key = await open_key(store)
    session = connect(store.database.url)
    session.execute("alter table journal rename to journal_away")
    session.execute("create table journal (like journal_away including all) partition by range (stream)")
    with pytest.raises(StoreUnavailable, match="the journal has no partition of the month"):
        await append_offers(store, key, offer(1))
    session.execute("drop table journal")
    session.execute("alter table journal_away rename to journal")
    session.close()
    assert all(map(is_acknowledged, await append_offers(store, key, offer(1))))
