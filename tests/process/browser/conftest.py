"""A browser for the tests of the page, and services that have it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.callers.browser import Page, browser_page
from tests.support.services import Serve, with_page


@pytest.fixture
def serve(serve: Serve) -> Serve:
    return with_page(serve)


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    """A browser in which nothing may go wrong."""
    async with browser_page(tmp_path / "profile") as shown:
        await shown.watch()
        yield shown
        assert shown.problems == []
