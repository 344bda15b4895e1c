from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from voicemem.store.base import Store
from voicemem.store.memory import MemoryStore
from voicemem.store.sqlite import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a database may be made; nothing is there yet."""
    return str(tmp_path / "voicemem.db")


@pytest.fixture(params=["memory:", "sqlite:"])
async def handles(request: pytest.FixtureRequest, path: str) -> AsyncIterator[Callable[[], Store]]:
    """Opens further handles on one store of each engine, as several nodes or processes would hold them."""
    opened: list[Store] = []

    def open_one() -> Store:
        if request.param == "sqlite:":
            opened.append(SqliteStore(path, exclusive=not opened))
        elif not opened:
            opened.append(MemoryStore())
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close_store()


@pytest.fixture
def store(handles: Callable[[], Store]) -> Store:
    """An empty store of each engine."""
    return handles()


@pytest.fixture
def both(handles: Callable[[], Store]) -> tuple[Store, Store]:
    """Two handles on one empty store of each engine."""
    return handles(), handles()


@pytest.fixture
async def sqlite(path: str) -> AsyncIterator[SqliteStore]:
    """An empty store on a file."""
    store = SqliteStore(path)
    yield store
    await store.close_store()
