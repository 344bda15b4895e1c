"""The stores that the contract is tested on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from voicemem.store.port import Store
from voicemem.store.sqlite import SqliteStore
from voicemem.store.sqlite.store import MemoryStore


@pytest.fixture(params=["memory:", "sqlite:"])
async def open_handle(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[[], Store]]:
    """Opens further handles on one store of each engine, as several nodes or processes would hold them."""
    opened: list[Store] = []

    def open_one() -> Store:
        if request.param == "sqlite:":
            opened.append(SqliteStore(str(tmp_path / "voicemem.db"), exclusive=False))
        elif not opened:
            opened.append(MemoryStore())
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close_store()


@pytest.fixture
def store(open_handle: Callable[[], Store]) -> Store:
    """An empty store of each engine."""
    return open_handle()


@pytest.fixture
def two_handles(open_handle: Callable[[], Store]) -> tuple[Store, Store]:
    """Two handles on one empty store of each engine."""
    return open_handle(), open_handle()
