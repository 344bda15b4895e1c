"""A browser for the tests of the page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.callers.browser import Page, browser_page


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    """A browser in which nothing may go wrong."""
    async with browser_page(tmp_path / "profile") as shown:
        await shown.watch()
        yield shown
        assert shown.problems == []
