"""Services for the tests of this lane."""

from __future__ import annotations

import pytest

from tests.support.callers.rest import RestClient
from tests.support.events import dialogue
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


@pytest.fixture
async def in_session(api: RestClient) -> RestClient:
    """A caller of the same service, which has the session `s`, with nothing in it."""
    await api.create()
    return api


@pytest.fixture
async def in_dialogue(in_session: RestClient) -> RestClient:
    """The same, after two turns."""
    await in_session.send(*dialogue(2))
    return in_session
