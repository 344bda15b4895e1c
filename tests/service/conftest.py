"""Services for the tests of this lane."""

from __future__ import annotations

import pytest

from tests.support.callers.rest import RestClient
from tests.support.services import Serve
from tests.support.services import serve as serve
from voicemem.app import App


@pytest.fixture
async def app(serve: Serve) -> App:
    """An empty service, with a store in memory."""
    return await serve()


@pytest.fixture
def api(app: App) -> RestClient:
    """A caller of the same service."""
    return RestClient(app)
