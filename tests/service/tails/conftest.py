"""Services for the tests of live tails."""

from __future__ import annotations

import pytest

from tests.support.callers.rest import RestClient
from voicemem.app import App
from voicemem.server.rest import tails


@pytest.fixture
async def api(app: App) -> RestClient:
    """A caller of a service with one empty session."""
    caller = RestClient(app)
    await caller.create()
    return caller


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tails look around, and say that there is nothing new, many times a second."""
    monkeypatch.setattr("voicemem.sessions.tails.tail.POLL_S", 0.05)
    monkeypatch.setattr(tails, "KEEP_ALIVE_S", 0.05)
