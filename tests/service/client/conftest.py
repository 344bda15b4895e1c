"""The service that the tests of the client have."""

from __future__ import annotations

import pytest

from tests.support.services import Serve
from voicemem.app import App


@pytest.fixture
async def app(serve: Serve) -> App:
    """An empty service."""
    return await serve()
