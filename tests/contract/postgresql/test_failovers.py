"""Failovers to a standby, with two real servers: what goes on, and what becomes another incarnation."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.support.needs import needs_postgresql

needs_postgresql()

from bench.harness.standby import Pair  # noqa: E402
from tests.support.postgresql import END_CONNECTIONS  # noqa: E402
from tests.support.postgresql_pairs import DATABASE, running_pair, stores, wait_for_waiting_commits  # noqa: E402
from tests.support.stores.contract import (  # noqa: E402
    NODE_LEASE_MS,
    NOW,
    append_offers,
    begin_node,
    is_acknowledged,
    offer,
    offers,
    open_key,
    open_session,
    reload,
    seqs_by_producer,
    stored_at,
)
from tests.support.waiting import eventually  # noqa: E402
from voicemem.errors import CannotStart, StoreUnavailable  # noqa: E402
from voicemem.store.postgresql.store import PostgresqlStore  # noqa: E402

pytestmark = [pytest.mark.postgresql, pytest.mark.long]
CANCEL_WAITING = "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'"


@pytest.fixture(scope="module")
def both() -> Iterator[Pair]:
    with running_pair() as pair:
        yield pair


@pytest.fixture
def pair(both: Pair) -> Pair:
    """A synchronous pair whose standby follows, with an empty database."""
    if not both.is_whole:
        both.rejoin()
    both.primary.execute(f"drop database {DATABASE} with (force)")
    both.primary.execute(f"create database {DATABASE}")
    return both


async def fall_over(store: PostgresqlStore) -> None:
    """Let a node notice that the server is gone, and look at the one that answers now."""
    async with asyncio.timeout(60):
        while not store.nodes.is_displaced:
            try:
                await store.nodes.list_nodes()
            except StoreUnavailable:
                await asyncio.sleep(0.05)
    with pytest.raises(StoreUnavailable):
        await store.journal.append_server_event(1, b"{}", 0, NOW)
    await store.nodes.settle(NOW)
    assert not store.nodes.is_displaced


async def is_refused_as_old(call: Callable[[], Awaitable[object]]) -> bool:
    try:
        await call()
    except StoreUnavailable as error:
        return "this is the old one" in error.detail
    return False


async def test_a_trusted_failover_loses_nothing(pair: Pair) -> None:
    """What was acknowledged is there, and the store goes on under its incarnation; its node stays what it was."""
    async with stores(pair, failover="trusted") as (store,):
        await begin_node(store, "a")
        key = (await open_session(store, node="a")).stream.key
        assert all(map(is_acknowledged, await append_offers(store, key, *offers(1, 3))))
        incarnation = store.directory.incarnation
        await asyncio.to_thread(pair.fail_over)
        await fall_over(store)
        assert incarnation == store.directory.incarnation
        assert await store.nodes.renew_node("a", NOW + NODE_LEASE_MS)
        assert {"main": [1, 2, 3]} == await seqs_by_producer(store, key)
        assert stored_at(4) == await append_offers(store, key, offer(4))
    async with stores(pair, failover="trusted") as (store,):
        await begin_node(store, "later")
        assert incarnation == store.directory.incarnation


async def test_any_other_failover_is_another_incarnation(pair: Pair) -> None:
    """No one knows what was lost: producers must be told, and no one is connected any more."""
    async with stores(pair, 2) as (one, other):
        await begin_node(one, "a")
        await begin_node(other, "b")
        key = (await open_session(one, node="a")).stream.key
        await append_offers(one, key, offer(1))
        incarnation = one.directory.incarnation
        await asyncio.to_thread(pair.fail_over)
        await fall_over(one)
        await fall_over(other)
        assert incarnation != one.directory.incarnation == other.directory.incarnation
        assert not await one.nodes.renew_node("a", NOW + NODE_LEASE_MS)
        assert not await other.nodes.renew_node("b", NOW + NODE_LEASE_MS)
        await begin_node(one, "c")
        assert incarnation != one.directory.incarnation == other.directory.incarnation
        assert NOW == (await reload(one, key)).silent_since_ms


async def test_what_a_standby_lacks_is_noticed(pair: Pair) -> None:
    """Also where the operator trusts the failover: a store that lacks what was acknowledged is another incarnation."""
    async with stores(pair, failover="trusted") as (store,):
        await begin_node(store, "a")
        key = (await open_session(store, node="a")).stream.key
        await append_offers(store, key, offer(1))
        await append_offers(store, key, offer(2))
        incarnation = store.directory.incarnation
        pair.wait_for_commits("")  # from here on it is an asynchronous one
        pair.standby.stop("fast")
        assert stored_at(3) == await append_offers(store, key, offer(3))
        pair.primary.kill()
        pair.standby.start()
        await asyncio.to_thread(pair.promote)
        await fall_over(store)
        assert incarnation != store.directory.incarnation
        assert {"main": [1, 2]} == await seqs_by_producer(store, key)
        await begin_node(store, "b")
        reopened = await open_session(store, from_seq=4, node="b")
        assert 4 == reopened.next_seq
        assert 3 == reopened.stream.position  # the gap is in the journal


async def test_a_resend_is_acknowledged_when_the_standby_has_it(pair: Pair) -> None:
    """A commit whose wait was cut can be seen, but would be lost: neither it nor a resend of it is acknowledged."""
    async with stores(pair, 2, failover="trusted") as (one, other):
        await begin_node(one, "a")
        await begin_node(other, "b")
        key = (await open_session(one, node="a")).stream.key
        await append_offers(one, key, offer(1))
        pair.standby.stop("fast")
        sent = asyncio.create_task(append_offers(one, key, offer(2)))
        await wait_for_waiting_commits(pair, 1)
        await asyncio.to_thread(pair.primary.execute, END_CONNECTIONS.format(DATABASE))
        await wait_for_waiting_commits(pair, 1)  # it asks what became of it
        resent = asyncio.create_task(append_offers(other, key, offer(2)))
        await wait_for_waiting_commits(pair, 2)
        assert {"main": [1, 2]} == await seqs_by_producer(one, key)
        assert not (sent.done())
        assert not (resent.done())
        pair.primary.kill()
        pair.standby.start()
        await asyncio.to_thread(pair.promote)
        await fall_over(one)
        await fall_over(other)
        for answer in await asyncio.gather(sent, resent, return_exceptions=True):
            assert isinstance(answer, StoreUnavailable) or answer == stored_at(2)
        assert all(map(is_acknowledged, await append_offers(other, key, offer(2))))
        assert {"main": [1, 2]} == await seqs_by_producer(one, key)


async def test_a_cancelled_wait_is_no_commit(pair: Pair) -> None:
    """PostgreSQL answers a cancelled wait with success and a warning: it is acknowledged once the standby is back."""
    async with stores(pair) as (store,):
        key, other = await open_key(store), await open_key(store, "other")
        await append_offers(store, key, offer(1))
        pair.standby.stop("fast")
        sent = asyncio.create_task(append_offers(store, key, offer(2)))
        changed = asyncio.create_task(store.journal.append_server_event(other, b"{}", 0, NOW))
        for _ in range(3):
            await wait_for_waiting_commits(pair, 2)
            await asyncio.to_thread(pair.primary.execute, CANCEL_WAITING)
        await wait_for_waiting_commits(pair, 2)
        assert not (sent.done())
        assert not (changed.done())
        pair.standby.start()
        assert stored_at(2) == await sent
        assert 1 == (await changed).position  # type: ignore[union-attr]


def test_a_standby_alone_is_refused(pair: Pair) -> None:
    """It is read-only; the operator is told to name the primary."""
    pair.wait_for_replay()
    with pytest.raises(CannotStart, match="only a standby answers, which is read-only; name the host of the primary"):
        PostgresqlStore(pair.standby.url(DATABASE))


async def test_an_old_primary_is_refused(pair: Pair) -> None:
    """It still takes writes, but a node that has seen its successor reads and writes nothing there."""
    async with stores(pair, failover="trusted") as (store,):
        await begin_node(store, "a")
        key = (await open_session(store, node="a")).stream.key
        pair.fail_over()
        await fall_over(store)
        await append_offers(store, key, offer(1))
        pair.primary.stop()
        await asyncio.to_thread(pair.standby.start_again)
        for call in (store.nodes.list_nodes, lambda: append_offers(store, key, offer(2))):
            await eventually(True, lambda call=call: is_refused_as_old(call), timeout_s=60)  # type: ignore[misc]
        pair.standby.kill()
        await asyncio.to_thread(pair.primary.start_again)
        assert await store.nodes.list_nodes()
