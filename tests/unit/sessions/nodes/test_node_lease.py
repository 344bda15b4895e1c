"""This process among the nodes of its store: how many share the callers."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.clock import NOW, ManualClock
from voicemem.runtime import Runtime
from voicemem.sessions.node_lease import HEARD_MS, HEARTBEAT_S, NodeLease, registered
from voicemem.store.sqlite.store import InMemoryStore

MOST_MS = 5_000
"""Within which every node knows how many there are."""


@pytest.fixture
async def store() -> AsyncIterator[InMemoryStore]:
    """A store that several nodes may have."""
    store = InMemoryStore(exclusive=False)
    yield store
    await store.close_store()


def node_of(store: InMemoryStore, clock: ManualClock) -> tuple[NodeLease, list[int]]:
    """A node, and what it is told of the number of those with callers."""
    node, counts = NodeLease(store, Runtime(clock)), list[int]()
    node.count_listeners.append(counts.append)
    return node, counts


async def test_each_node_knows_how_many_have_callers(store: InMemoryStore) -> None:
    """From its start on, and of those that come and go by its next heartbeat."""
    clock = ManualClock()
    (one, counts), (other, others) = node_of(store, clock), node_of(store, clock)
    await one.start("127.0.0.1:1")
    await other.start("127.0.0.1:2")
    await one.beat()
    await other.stop()
    await one.beat()
    assert ([1, 2, 1], [2]) == (counts, others)


async def test_a_node_that_dies_does_not_count_for_long(store: InMemoryStore) -> None:
    """Within 5 s, though its lease runs longer."""
    clock = ManualClock()
    (one, counts), (other, _) = node_of(store, clock), node_of(store, clock)
    await one.start("127.0.0.1:1")
    await other.start("127.0.0.1:2")
    while HEARTBEAT_S * 1000 + clock() - NOW <= MOST_MS:
        clock.wait(HEARTBEAT_S)
        await one.beat()
    assert HEARD_MS < MOST_MS
    assert (2, 1) == (counts[1], counts[-1])
    assert 2 == len(await store.nodes.list_nodes())


async def test_a_library_has_no_callers(store: InMemoryStore) -> None:
    """It is a node, which takes nothing from the rates of the others, and leaves when it is closed."""
    clock = ManualClock()
    (one, counts), (library, _) = node_of(store, clock), node_of(store, clock)
    await one.start("127.0.0.1:1")
    async with registered(library):
        await one.beat()
        assert {one.token, library.token} == {node.token for node in await store.nodes.list_nodes()}
    await one.beat()
    assert [1, 1, 1] == counts
    assert [one.token] == [node.token for node in await store.nodes.list_nodes()]


async def test_a_file_that_is_locked_needs_no_node() -> None:
    """No one else could free what its only process holds."""
    store = InMemoryStore()
    node, counts = node_of(store, ManualClock())
    async with registered(node):
        assert ("", []) == (node.token, await store.nodes.list_nodes())
    await node.start("127.0.0.1:1")
    assert [] == counts
    await store.close_store()
