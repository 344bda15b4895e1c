"""A service for the tests of REST that need no settings of their own."""

from __future__ import annotations

import pytest

from tests.support.callers.rest import RestClient
from tests.support.services import Serve
from voicemem.app import App


@pytest.fixture
async def app(serve: Serve) -> App:
    return await serve()


@pytest.fixture
async def api(app: App) -> RestClient:
    """A caller of an empty service."""
    return RestClient(app)
