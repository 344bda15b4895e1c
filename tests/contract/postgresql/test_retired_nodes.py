"""A node that others have retired while it could not be reached: nothing that it had under way comes in afterwards."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.needs import needs_postgresql

needs_postgresql()

import psycopg  # noqa: E402

from tests.support.stores.contract import (  # noqa: E402
    LEASE_MS,
    NOW,
    append_offers,
    begin_node,
    closed_session,
    event_types,
    offer,
    open_session,
    seqs_by_producer,
    stored_at,
)
from tests.support.stores.engines import OpenHandle  # noqa: E402
from tests.support.stores.postgresql import opened  # noqa: E402
from voicemem.errors import StoreUnavailable  # noqa: E402
from voicemem.store.database import NodeRetired  # noqa: E402
from voicemem.store.nodes import SUMMARY  # noqa: E402
from voicemem.store.postgresql.connection import PostgresqlConnection  # noqa: E402
from voicemem.store.postgresql.store import PostgresqlStore  # noqa: E402

pytestmark = pytest.mark.postgresql
Handles = tuple[PostgresqlStore, PostgresqlStore]


@pytest.fixture
async def handles(open_handle: OpenHandle) -> Handles:
    """Two handles on one store, of the nodes `a` and `b`."""
    one, other = await opened(open_handle), await opened(open_handle)
    await begin_node(one, "a")
    await begin_node(other, "b")
    return one, other


def lose_connection_at(
    session: PostgresqlConnection, query_begins: str, meanwhile: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the server carry out the next such statement, and lose the connection and some time before its answer."""
    send = session.send

    def send_and_lose(query: str, values: dict[str, Any], before: bytes = b"") -> psycopg.Cursor[tuple[object, ...]]:
        answer = send(query, values, before)
        if query.strip().startswith(query_begins):
            session.close()
            meanwhile()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return answer

    monkeypatch.setattr(session, "send", send_and_lose)


async def test_an_append_under_way_is_refused(handles: Handles, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its producers cannot tell from an outage: they send again, and what was stored is there once."""
    one, other = handles
    key = (await open_session(one, node="a")).stream.key
    await append_offers(one, key, offer(1))
    await append_offers(one, key, offer(2))
    lane = one.database.append_connections[key % len(one.database.append_connections)]
    assert lane.writer.connection is not None
    loop = asyncio.get_running_loop()

    def retire() -> None:
        asyncio.run_coroutine_threadsafe(other.nodes.retire_node("a", NOW), loop).result()

    lose_connection_at(lane.writer.connection, "with held", retire, monkeypatch)
    with pytest.raises(NodeRetired):
        await append_offers(one, key, offer(3))
    assert {"main": [1, 2, 3]} == await seqs_by_producer(one, key)
    await begin_node(one, "again")
    assert stored_at(4) == (await append_offers(one, key, offer(3), offer(4)))[1:]


async def test_a_change_under_way_is_not_made_twice(handles: Handles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its outcome was forgotten with the node, so it is reported as unknown, also if the node is back by then."""
    one, other = handles
    key = (await open_session(one, node="a")).stream.key
    loop = asyncio.get_running_loop()

    async def retire_and_begin_again() -> None:
        await other.nodes.retire_node("a", NOW)
        await begin_node(one, "again")

    def meanwhile() -> None:
        asyncio.run_coroutine_threadsafe(retire_and_begin_again(), loop).result()

    writer = one.database.writers.get()
    lose_connection_at(writer.open(), "commit", meanwhile, monkeypatch)
    one.database.writers.put(writer)  # the last one in is the first one out
    with pytest.raises(StoreUnavailable, match="retired"):
        await one.journal.append_server_event(key, b'{"type":"x"}', 0, NOW)
    assert ["x"] == await event_types(one, key)


async def test_nothing_is_held_for_the_node_that_a_process_was(handles: Handles) -> None:
    """Connections and claims under the old token come too late once it has begun again: no one would free them."""
    one, other = handles
    key = (await closed_session(one)).key
    assert await other.nodes.retire_node("a", NOW)
    await begin_node(one, "again")
    late = (
        open_session(one, node="a"),
        one.claims.claim(SUMMARY, key, "a", NOW, LEASE_MS),
        one.claims.begin_reply(key, "item", "a"),
        one.outbox.claim_deliveries(NOW, LEASE_MS, {}, 10, "a"),
    )
    for work in late:
        with pytest.raises(NodeRetired):
            await work
    assert await open_session(one, node="again")


async def test_a_process_that_begins_again_lets_nothing_in_meanwhile(
    handles: Handles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its new token is in the store, it is still the node that was retired."""
    one, other = handles
    assert await other.nodes.retire_node("a", NOW)
    register, refused = one.database.register, list[object]()

    async def register_while_others_write(job: Callable[..., object]) -> object:
        if not refused:
            with pytest.raises(NodeRetired) as caught:
                await open_session(one, node="a")
            refused.append(caught)
        return await register(job)

    monkeypatch.setattr(one.database, "register", register_while_others_write)
    await begin_node(one, "again")
    assert refused


async def test_a_node_that_is_retired_at_once_holds_no_connections(
    handles: Handles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stood still while it registered does not take its connections under a token that is gone."""
    one, other = handles
    register = one.database.register

    async def register_and_retire(job: Callable[..., object]) -> object:
        answer = await register(job)
        await other.nodes.retire_node("again", NOW)
        return answer

    monkeypatch.setattr(one.database, "register", register_and_retire)
    await begin_node(one, "again")
    assert not await one.database.read(lambda session: session.rows("select 1 from lanes where node = 'again'"))
