"""A receiver, and a client of a service that may send to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.callers.rest import LOOPBACK, RestClient
from tests.support.servers.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.support.services import Serve


@pytest.fixture
async def hook() -> AsyncIterator[WebhookReceiver]:
    """A receiver of webhooks."""
    async with webhook_receiver() as receiver:
        yield receiver


@pytest.fixture
async def caller(serve: Serve) -> RestClient:
    """A caller of a service that may call this machine."""
    return RestClient(await serve(allow_addresses=LOOPBACK))
