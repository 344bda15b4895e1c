"""A database of a real server for each test, and stores on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.needs import needs_postgresql
from tests.support.stores.engines import ENGINES, OpenHandle


@pytest.fixture
async def open_handle(tmp_path: Path) -> AsyncIterator[OpenHandle]:
    """Opens handles on one empty database."""
    async with ENGINES["postgresql:"].handles(tmp_path) as handles:
        yield handles


@pytest.fixture
def database() -> Iterator[str]:
    """A voicemem database that a test has to itself."""
    needs_postgresql()
    from tests.support import postgresql

    name = postgresql.take_database()
    yield name
    postgresql.give_back(name)
