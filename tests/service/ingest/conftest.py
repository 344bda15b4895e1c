"""Services for the tests of the ingest port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.both_ways import serve as serve
from tests.support.callers.producer import Producer, open_producer
from tests.support.services import Serve
from voicemem.app import App


@pytest.fixture
async def on_file(serve: Serve, tmp_path: Path) -> App:
    """An empty service on a file."""
    return await serve(store=f"sqlite:{tmp_path}/db")


@pytest.fixture
async def producer(app: App) -> AsyncIterator[Producer]:
    """A producer with an open session "s"."""
    async with open_producer(app) as one:
        yield one
