"""A receiver, and a client of a service that may send to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import postgresql
from tests.support.callers.rest import LOOPBACK, RestClient
from tests.support.servers.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.support.services import Serve


@pytest.fixture
async def hook() -> AsyncIterator[WebhookReceiver]:
    """A receiver of webhooks."""
    async with webhook_receiver() as receiver:
        yield receiver


@pytest.fixture
async def caller(request: pytest.FixtureRequest, serve: Serve, tmp_path: Path) -> AsyncIterator[RestClient]:
    """A caller of a service that may call this machine; its store is in memory, unless a test has parameters."""
    if getattr(request, "param", "memory:") == "memory:":
        yield RestClient(await serve(allow_addresses=LOOPBACK))
        return
    with postgresql.database_of(tmp_path) as name:
        yield RestClient(await serve(store=postgresql.server().url(name), allow_addresses=LOOPBACK))
