"""Stores on files, and connections to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.stores.sqlite import opened_session
from voicemem.store.sqlite.store import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a database may be made; nothing is there yet."""
    return str(tmp_path / "voicemem.db")


@pytest.fixture
async def sqlite(path: str) -> AsyncIterator[SqliteStore]:
    """An empty store on a file."""
    async with opened_session(path) as store:
        yield store
