"""A service for the tests of frameworks and SDKs, and quiet frameworks."""

from __future__ import annotations

import logging
import sys

import pytest

from tests.support.services import Serve
from voicemem.app import App


@pytest.fixture(autouse=True)
def quiet() -> None:
    """LiveKit warns of what its own tasks do at a close, and Pipecat logs every frame to the terminal."""
    logging.getLogger("livekit").setLevel(logging.CRITICAL)
    if "loguru" in sys.modules:
        sys.modules["loguru"].logger.remove()


@pytest.fixture
async def app(serve: Serve) -> App:
    return await serve()
