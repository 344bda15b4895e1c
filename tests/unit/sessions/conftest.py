"""Sessions on each engine, with a clock that tests move."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.lifecycle import Clock, anything
from voicemem.runtime import Runtime
from voicemem.sessions.lifecycle import Sessions
from voicemem.sessions.presence import Presence
from voicemem.store.port import Store
from voicemem.store.sqlite import SqliteStore
from voicemem.store.sqlite.store import MemoryStore


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory:", "sqlite:"])
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Store, Store]]:
    """Two handles on one store, as two nodes have them."""
    path = f"{tmp_path}/db"
    stores: list[Store]
    if request.param == "memory:":
        stores = [MemoryStore()] * 2
    else:
        stores = [SqliteStore(path, exclusive=False) for _ in range(2)]
    yield stores[0], stores[1]
    for store in dict.fromkeys(stores):
        await store.close_store()


@pytest.fixture
def nodes(both: tuple[Store, Store], clock: Clock) -> list[Presence]:
    """Two nodes on one store."""
    numbers = itertools.count()
    return [Presence(Sessions(store, Runtime(clock, lambda: f"id{next(numbers)}"), anything)) for store in both]


@pytest.fixture
def presence(nodes: list[Presence]) -> Presence:
    """One of them."""
    return nodes[0]
