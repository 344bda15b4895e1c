"""A store behind a real pgbouncer, in both of its usual modes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.needs import needs_postgresql

needs_postgresql()

from tests.support import postgresql  # noqa: E402
from tests.support.pgbouncer import ROLE, pooled_url, running_pgbouncer  # noqa: E402
from tests.support.stores.contract import (  # noqa: E402
    NODE_LEASE_MS,
    NOW,
    append_offers,
    begin_node,
    end_offer,
    is_acknowledged,
    offer,
    offers,
    open_session,
    seqs_by_producer,
    stored_at,
)
from voicemem.errors import CannotStart, StoreUnavailable  # noqa: E402
from voicemem.store.postgresql.store import PostgresqlStore  # noqa: E402

pytestmark = [pytest.mark.postgresql, pytest.mark.needs("pgbouncer")]
URL_OPTIONS = {"session": "", "transaction": "&pooled=1"}


@pytest.fixture(params=URL_OPTIONS)
def mode(request: pytest.FixtureRequest) -> str:
    """How connections are shared."""
    return str(request.param)


@pytest.fixture
def folder(mode: str) -> Iterator[Path]:
    """Where the pooler listens."""
    with running_pgbouncer(mode) as folder:
        yield folder


@pytest.fixture
async def nodes(mode: str, folder: Path) -> AsyncIterator[list[PostgresqlStore]]:
    """Two stores behind it, each a node."""
    name = postgresql.take_database()
    url = pooled_url(folder, name, URL_OPTIONS[mode])
    nodes = [PostgresqlStore(url), PostgresqlStore(url)]
    for node, token in zip(nodes, "ab", strict=True):
        await begin_node(node, token)
    yield nodes
    for node in nodes:
        await node.close_store()
    postgresql.give_back(name)


async def test_a_call_goes_through_a_pooler(nodes: list[PostgresqlStore]) -> None:
    """Appends on lanes and beside them, resends, two nodes at one session, own events, and the close."""
    one, other = nodes
    key = (await open_session(one, producer="asr", node="a")).stream.key
    await open_session(other, producer="llm", node="b")
    for first in (1, 4, 7):
        both = (
            append_offers(one, key, *offers(first, first + 2), producer="asr"),
            append_offers(other, key, *offers(first, first + 2), producer="llm"),
        )
        assert all(is_acknowledged(outcome) for outcomes in await asyncio.gather(*both) for outcome in outcomes)
    assert all(outcome.duplicate for outcome in await append_offers(other, key, *offers(1, 9), producer="asr"))
    assert await one.journal.append_server_event(key, b'{"type":"x"}', 18, NOW)
    assert {"asr": [*range(1, 10)], "llm": [*range(1, 10)], None: [None]} == await seqs_by_producer(other, key)
    for node, producer in ((one, "asr"), (other, "llm")):
        await append_offers(node, key, end_offer(10), producer=producer)
    assert await one.journal.close_ended(key, "n", NOW)
    assert await other.nodes.renew_node("b", NOW + NODE_LEASE_MS)


async def test_connections_behind_a_pooler_are_lost(nodes: list[PostgresqlStore]) -> None:
    """Whatever was acknowledged is there once, however often the server ends its connections."""
    one, _ = nodes
    key = (await open_session(one, node="a")).stream.key
    (name,) = await one.database.read(lambda session: session.one("select current_database()"))
    seq, rounds = 1, 0
    while rounds < 10 or seq < 20:
        if rounds < 10:
            postgresql.server().execute(postgresql.END_CONNECTIONS.format(name))
            rounds += 1
        try:
            assert all(map(is_acknowledged, await append_offers(one, key, offer(seq), offer(seq + 1))))
        except StoreUnavailable:
            continue
        seq += 2
    assert {"main": [*range(1, seq)]} == await seqs_by_producer(one, key)


async def test_a_role_without_the_settings_is_refused(mode: str, folder: Path) -> None:
    """The pooler drops what connections ask for, so transactions of a node that stands still would never end."""
    name = postgresql.take_database()
    postgresql.server().execute(f"alter role {ROLE} reset all")
    with pytest.raises(CannotStart, match="ignores the options of this connection; a pooler must pass them on"):
        PostgresqlStore(pooled_url(folder, name, URL_OPTIONS[mode]))
    postgresql.give_back(name)


@pytest.mark.parametrize("mode", ["transaction"])
async def test_a_pooler_that_shares_connections_is_named(mode: str, folder: Path) -> None:
    """A statement that one connection has prepared is there for another: the URL must say that there is a pooler."""
    name = postgresql.take_database()
    one, other = PostgresqlStore(pooled_url(folder, name)), PostgresqlStore(pooled_url(folder, name))
    for _ in range(5):
        await one.read_clock()
    with pytest.raises(StoreUnavailable, match="add pooled=1 to the URL"):
        await read_often(other)
    for store in (one, other):
        store.database.close()
    postgresql.give_back(name)


async def read_often(store: PostgresqlStore) -> None:
    for _ in range(5):
        await store.read_clock()


@pytest.mark.parametrize("mode", ["transaction"])
async def test_a_failover_behind_a_pooler_is_noticed(nodes: list[PostgresqlStore]) -> None:
    """No one loses a connection then, so each heartbeat compares."""
    one, _ = nodes
    key = (await open_session(one, node="a")).stream.key
    await append_offers(one, key, offer(1))
    assert stored_at(2) == await append_offers(one, key, offer(2))
    assert one.database.server is not None
    one.database.server = one.database.server._replace(timeline=0)
    with pytest.raises(StoreUnavailable):
        await one.read_clock()
    assert one.nodes.is_displaced
