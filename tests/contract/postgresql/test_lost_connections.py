"""Commits whose connection is lost, and transactions that others are in the way of."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.needs import needs_postgresql

needs_postgresql()

import psycopg  # noqa: E402

from tests.support import postgresql  # noqa: E402
from tests.support.stores.contract import (  # noqa: E402
    NOW,
    append_offers,
    event_types,
    is_acknowledged,
    offer,
    offers,
    open_key,
    open_session,
    seqs_by_producer,
    stored_at,
)
from tests.support.stores.engines import OpenHandle  # noqa: E402
from tests.support.stores.postgresql import opened  # noqa: E402
from voicemem.config.session import validate_config  # noqa: E402
from voicemem.errors import StoreUnavailable  # noqa: E402
from voicemem.store.append_rules import Outcome  # noqa: E402
from voicemem.store.postgresql.connection import PostgresqlConnection, connect  # noqa: E402
from voicemem.store.postgresql.store import PostgresqlStore  # noqa: E402
from voicemem.store.records import Node  # noqa: E402

pytestmark = pytest.mark.postgresql


def cut_answer_to(session: PostgresqlConnection, query_begins: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server carry out the next such statement, and lose the connection before its answer is seen."""
    send = session.send

    def send_and_lose(query: str, values: dict[str, Any], before: bytes = b"") -> psycopg.Cursor[tuple[object, ...]]:
        answer = send(query, values, before)
        if query.strip().startswith(query_begins):
            session.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return answer

    monkeypatch.setattr(session, "send", send_and_lose)


def cut_answers_to(store: PostgresqlStore, query_begins: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on each connection of the transactions that look first."""
    writers = [store.database.writers.get() for _ in range(store.database.writers.qsize())]
    for writer in writers:
        cut_answer_to(writer.open(), query_begins, monkeypatch)
        store.database.writers.put(writer)


async def test_an_append_whose_answer_is_lost_is_found(
    open_handle: OpenHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was committed, so it is acknowledged at its position, and it is not stored a second time."""
    store = await opened(open_handle)
    key = await open_key(store)
    await append_offers(store, key, offer(1))
    lane = store.database.append_connections[key % len(store.database.append_connections)]
    assert stored_at(2) == await append_offers(store, key, offer(2))
    assert lane.writer.connection is not None
    cut_answer_to(lane.writer.connection, "with held", monkeypatch)
    assert stored_at(3, 4) == await append_offers(store, key, offer(3), offer(4))
    assert {"main": [1, 2, 3, 4]} == await seqs_by_producer(store, key)
    assert stored_at(5) == await append_offers(store, key, offer(5))


async def test_a_commit_whose_answer_is_lost_is_found(open_handle: OpenHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to it is what it did: an event of the server's own is not journaled twice."""
    store = await opened(open_handle)
    key = await open_key(store)
    cut_answers_to(store, "commit", monkeypatch)
    stream = await store.journal.append_server_event(key, b'{"type":"x"}', 0, NOW)
    assert stream is not None
    assert 1 == stream.position
    assert ["x"] == await event_types(store, key)


async def test_a_connection_lost_before_the_commit_is_replaced(
    open_handle: OpenHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written then, so the transaction runs again, and the caller notices nothing."""
    store = await opened(open_handle)
    key = await open_key(store)
    cut_answers_to(store, "insert into journal", monkeypatch)
    assert await store.journal.append_server_event(key, b'{"type":"x"}', 0, NOW)
    assert ["x"] == await event_types(store, key)


async def test_connections_are_ended_all_the_time(open_handle: OpenHandle) -> None:
    """Whatever is acknowledged while the server ends connections again and again is there once and in order."""
    store = await opened(open_handle)
    key = await open_key(store)
    (name,) = await store.database.read(lambda session: session.one("select current_database()"))
    seq = 1

    async def end_connections() -> None:
        for _ in range(10):
            await asyncio.to_thread(postgresql.server().execute, postgresql.END_CONNECTIONS.format(name))

    ending = asyncio.create_task(end_connections())
    while not ending.done() or seq < 20:
        try:
            answers = await append_offers(store, key, offer(seq), offer(seq + 1))
        except StoreUnavailable:
            continue
        assert all(map(is_acknowledged, answers))
        seq += 2
    await ending
    assert {"main": [*range(1, seq)]} == await seqs_by_producer(store, key)


async def test_a_stream_that_is_locked_holds_up_no_other(open_handle: OpenHandle) -> None:
    """Appends to others come through meanwhile; those to the locked one wait until it is free."""
    store, other = await opened(open_handle), await opened(open_handle)
    locked, free = await open_key(store, "locked"), await open_key(store, "free")
    for key in (locked, free):
        await append_offers(store, key, offer(1))
        await append_offers(store, key, offer(2))
    writer = other.database.writers.get()
    session = writer.open()
    session.execute("begin")
    session.row("select 1 from stream_locks where stream = :key for no key update", key=locked)
    waiting = asyncio.create_task(append_offers(store, locked, offer(3)))
    assert stored_at(3) == await append_offers(store, free, offer(3))
    assert not waiting.done()
    session.execute("commit")
    other.database.writers.put(writer)
    assert stored_at(3) == await waiting


async def test_duplicates_are_acknowledged_by_a_transaction_that_writes(open_handle: OpenHandle) -> None:
    """A read could show what no standby has yet: the answer waits for a commit that has an entry in the log."""
    store = await opened(open_handle)
    key = await open_key(store)
    await append_offers(store, key, *offers(1, 3))

    async def written() -> int:
        (position,) = await store.database.read(
            lambda session: session.one("select (pg_current_wal_insert_lsn() - '0/0')::bigint")
        )
        return int(position)

    before = await written()
    assert [Outcome(duplicate=True)] * 3 == await append_offers(store, key, *offers(1, 3))
    assert before < await written()


async def test_a_retired_node_writes_nothing_more(open_handle: OpenHandle) -> None:
    """Whatever it still tries is refused until it has registered again under another token."""
    one, other = await opened(open_handle), await opened(open_handle)
    await one.nodes.start_node(Node(token="one", started_ms=NOW, expires_ms=NOW + 10_000), NOW)
    await other.nodes.start_node(Node(token="other", started_ms=NOW, expires_ms=NOW + 10_000), NOW)
    opened_one = await one.journal.open_producer("p", "s", "main", validate_config({}), None, NOW, node="one")
    key = opened_one.stream.key
    await append_offers(one, key, offer(1))
    await append_offers(one, key, offer(2))
    assert await other.nodes.retire_node("one", NOW)
    with pytest.raises(StoreUnavailable):
        await append_offers(one, key, offer(3))
    with pytest.raises(StoreUnavailable):
        await open_session(one)
    assert not await other.nodes.retire_node("one", NOW)
    await one.nodes.start_node(Node(token="again", started_ms=NOW, expires_ms=NOW + 10_000), NOW)
    assert stored_at(3) == await append_offers(one, key, offer(3))


async def test_other_warnings_cut_no_commit(database: str) -> None:
    """The server warns of much, such as of its transactions running out, with the code of a wait that was cancelled."""
    session = connect(postgresql.server().url(database))
    session.execute("do $$ begin raise warning 'vacuum me'; end $$")
    assert [("1",)] == session.rows("select '1'")
    session.close()
