"""A service, and stores that several nodes may have."""

from __future__ import annotations

import pytest

from tests.support.callers.rest import RestClient
from tests.support.services import Serve
from tests.support.stores.engines import engine as engine
from tests.support.stores.engines import open_handle as open_handle
from tests.support.stores.engines import store as store
from voicemem.app import App


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service with a store in memory."""
    return await serve()


@pytest.fixture
def api(app: App) -> RestClient:
    """Its REST API."""
    return RestClient(app)
