"""Sessions on each engine, with a clock that tests move."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest

from tests.support.lifecycle import Clock, anything
from tests.support.stores.engines import engine as engine
from tests.support.stores.engines import open_handle as open_handle
from tests.support.stores.engines import two_handles as two_handles
from voicemem.runtime import Runtime
from voicemem.sessions.lifecycle import Presence, Sessions
from voicemem.store.port import Store
from voicemem.store.sqlite.store import InMemoryStore


@pytest.fixture
async def store() -> AsyncIterator[InMemoryStore]:
    """An empty store."""
    store = InMemoryStore()
    yield store
    await store.close_store()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def nodes(two_handles: tuple[Store, Store], clock: Clock) -> list[Presence]:
    """Two nodes on one store."""
    numbers = itertools.count()
    return [Presence(Sessions(store, Runtime(clock, lambda: f"id{next(numbers)}"), anything)) for store in two_handles]


@pytest.fixture
def presence(nodes: list[Presence]) -> Presence:
    """One of them."""
    return nodes[0]
