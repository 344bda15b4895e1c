"""What tests of the tee share: a service, a client of it, and the time of recorded calls."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.callers.client_sessions import client_to
from tests.support.callers.tees import Clock
from voicemem.app import App
from voicemem.client import Client


@pytest.fixture
async def client(app: App) -> AsyncIterator[Client]:
    async with client_to(app) as client:
        yield client


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)
