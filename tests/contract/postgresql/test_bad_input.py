"""What an operator may get wrong, and what callers may send: it is said clearly, nothing is stored, nothing is lost."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from tests.support.needs import needs_postgresql

needs_postgresql()

from tests.support import postgresql  # noqa: E402
from tests.support.processes.faulty_disks import fill_disk, tmpfs  # noqa: E402
from tests.support.stores.contract import (  # noqa: E402
    NOW,
    append_offers,
    is_acknowledged,
    journal_events,
    offer,
    open_key,
    seqs_by_producer,
    stored_at,
)
from voicemem.errors import CannotStart, StoreUnavailable  # noqa: E402
from voicemem.sessions.tails.tail import format_session_cursor, parse_session_cursor  # noqa: E402
from voicemem.store.append_rules import Offer  # noqa: E402
from voicemem.store.database import RANDOM_BITS, KeySource, first_key  # noqa: E402
from voicemem.store.postgresql.store import PostgresqlStore  # noqa: E402

pytestmark = pytest.mark.postgresql
YEAR_2090_MS = 3_786_912_000_000


@pytest.fixture
def database() -> Iterator[str]:
    """A voicemem database that a test has to itself."""
    name = postgresql.take_database()
    yield name
    postgresql.give_back(name)


def refusal(url: str) -> str:
    """Why a store is not opened."""
    with pytest.raises(CannotStart) as refused:
        PostgresqlStore(url)
    return refused.value.detail


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        pytest.param("", "The role lacks DELETE on the table", id="none"),
        pytest.param("grant select on all tables in schema public to guest", "The role lacks DELETE", id="select"),
        pytest.param(
            "grant all on all tables in schema public to guest; revoke insert on journal from guest",
            "The role lacks INSERT on the table journal; let it own the tables, or grant it",
            id="no insert",
        ),
        pytest.param(
            "grant all on all tables in schema public to guest; revoke select on streams from guest",
            "The role lacks SELECT on the table streams",
            id="no select",
        ),
    ],
)
def test_a_role_that_may_not_read_or_write_is_refused(database: str, rights: str, said: str) -> None:
    """At the start, and not in the midst of a call; the first right that is missing is named, and what would do."""
    with postgresql.role(database, rights) as url:
        assert said in refusal(url)


def test_a_role_that_may_not_create_is_refused() -> None:
    """An empty database needs its tables."""
    server = postgresql.server()
    server.execute("create database hollow")
    with postgresql.role("hollow") as url:
        assert "create tables in, a schema of its own" in refusal(url)
        server.execute("drop schema public", "hollow")
        assert "create one for it" in refusal(url)
        server.execute("create schema authorization guest", "hollow")
        PostgresqlStore(url).database.close()
    server.execute("drop database hollow with (force)")


def test_a_role_that_may_not_connect_is_refused(database: str) -> None:
    """It is told which right it needs."""
    server = postgresql.server()
    server.execute(f"revoke connect on database {database} from public")
    try:
        with postgresql.role(database) as url:
            assert "it must be allowed to connect to the database" in refusal(url)
    finally:
        server.execute(f"grant connect on database {database} to public")


async def test_a_limit_of_connections(database: str) -> None:
    """At the start it is named; later what needs one more connection is refused, and all goes on when there is room."""
    server = postgresql.server()
    with postgresql.role(database, "grant all on all tables in schema public to guest", limit=0) as url:
        assert "a node needs up to 10, of max_connections and of the limits of the role" in refusal(url)
        server.execute("alter role guest connection limit 8")
        store = PostgresqlStore(url)
        key = await open_key(store)
        await append_offers(store, key, offer(1))
        assert stored_at(2) == await append_offers(store, key, offer(2))
        server.execute("alter role guest connection limit 0")
        server.execute(postgresql.END_CONNECTIONS.format(database))
        with pytest.raises(StoreUnavailable):
            await append_offers(store, key, offer(3))
        with pytest.raises(StoreUnavailable, match="PostgreSQL accepts no more connections"):
            await store.nodes.list_nodes()
        assert not store.healthy
        server.execute("alter role guest connection limit 8")
        assert all(map(is_acknowledged, await append_offers(store, key, offer(3))))
        assert {"main": [1, 2, 3]} == await seqs_by_producer(store, key)
        await store.probe()  # what had no connection, and has no work
        assert store.healthy
        await store.close_store()


@contextmanager
def crowded() -> Iterator[tuple[str, Path]]:
    """The URL of a database on a small file system of its own, and the folder of that.

    Both go in the end, whatever happens: a server that lacks the files of a database can do no checkpoint any more.
    """
    server = postgresql.server()
    with tmpfs(server.folder / "small", "48m") as folder:
        if server.user is not None:
            shutil.chown(folder, server.user)
        server.execute(f"create tablespace small location '{folder}'")
        try:
            server.execute("create database crowded tablespace small")
            yield server.url("crowded"), folder
        finally:
            server.execute("drop database if exists crowded with (force)")
            server.execute("drop tablespace small")


async def test_a_full_disk() -> None:
    """What finds no room is refused with the reason; what was acknowledged is there, and all goes on with more room."""
    with crowded() as (url, folder):
        store = PostgresqlStore(url)
        key, seq = await open_key(store), 1
        await append_offers(store, key, offer(1))
        assert {"main": [1]} == await seqs_by_producer(store, key)  # on a connection, which is kept
        filler = fill_disk(folder)
        with suppress(StoreUnavailable):
            for seq in range(2, 100):
                assert stored_at(seq) == await append_offers(store, key, offer(seq, text="x" * 200_000))
        assert "the disk of PostgreSQL is full" in str(store.trouble)
        assert not store.healthy
        assert {"main": [*range(1, seq)]} == await seqs_by_producer(store, key)
        filler.unlink()
        await append_offers(store, key, offer(seq))
        assert {"main": [*range(1, seq + 1)]} == await seqs_by_producer(store, key)
        assert store.healthy
        await store.close_store()


async def test_no_connection_for_a_full_disk() -> None:
    """PostgreSQL refuses connections where it cannot write a cache of a database, which it drops when it vacuums."""
    with crowded() as (url, folder):
        store = PostgresqlStore(url)
        key = await open_key(store)
        await append_offers(store, key, offer(1))
        filler = fill_disk(folder)
        for cache in folder.rglob("pg_internal.init"):
            cache.rename(cache.with_name("moved"))  # it keeps its room
        with pytest.raises(StoreUnavailable, match="cannot be read: the disk of PostgreSQL is full"):
            await seqs_by_producer(store, key)
        assert "PostgreSQL cannot be used: the disk of PostgreSQL is full." == refusal(url)
        assert not store.healthy
        filler.unlink()
        assert {"main": [1]} == await seqs_by_producer(store, key)
        await store.probe()  # the connection that was refused, and has no work
        assert store.healthy
        await store.close_store()


async def test_texts_with_nul(database: str) -> None:
    """PostgreSQL's texts refuse U+0000. Doors replace it; one of another origin, such as an LLM, is replaced here."""
    store = PostgresqlStore(postgresql.server().url(database))
    key = await open_key(store, "s", {"labels": {"a": "\0b"}, "user_id": "u\0", "name": "n\0"})
    event = {"type": "message", "turn_id": 1, "role": "user", "text": "before\0after", "seq": 1}
    await append_offers(store, key, Offer(1, NOW, msgspec.json.encode(event)), producer="nul\0")
    assert [event] == await journal_events(store, key)
    assert {"nul\ufffd": [1]} == await seqs_by_producer(store, key)
    await store.close_store()


def test_keys_of_sixteen_digits() -> None:
    """Keys fit into 53 bits, which JSON and cursors hold, to the end of the century's nineties."""
    newest = KeySource(YEAR_2090_MS, lambda: 0.0).draw()
    assert first_key(YEAR_2090_MS) <= newest < first_key(YEAR_2090_MS) + (1 << RANDOM_BITS) < 2**53
    assert 16 == len(str(newest))
    assert 2**53 - 1 == parse_session_cursor("ab", newest, format_session_cursor("ab", newest, 2**53 - 1))
