"""A database of a real server for each test, and stores on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.stores.engines import ENGINES, OpenHandle


@pytest.fixture
async def open_handle(tmp_path: Path) -> AsyncIterator[OpenHandle]:
    """Opens handles on one empty database."""
    async with ENGINES["postgresql:"].handles(tmp_path) as handles:
        yield handles
