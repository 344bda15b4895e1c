"""agent-memory-server's own client, on a service of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from agent_memory_client import MemoryAPIClient, MemoryClientConfig

from tests.support.stores.engines import engine as engine
from tests.support.stores.engines import open_handle as open_handle
from tests.support.stores.engines import store as store
from voicemem.app import App

Connect = Callable[..., MemoryAPIClient]
"""Makes a client of the service with these settings."""


@pytest.fixture
async def connect(app: App) -> AsyncIterator[Connect]:
    made: list[MemoryAPIClient] = []

    def make(key: str | None = None, **config: Any) -> MemoryAPIClient:
        made.append(MemoryAPIClient(MemoryClientConfig(base_url=f"http://{app.rest_address}", **config)))
        if key is not None:
            made[-1]._client.headers["Authorization"] = f"Bearer {key}"
        return made[-1]

    yield make
    for client in made:
        await client.close()


@pytest.fixture
def client(connect: Connect) -> MemoryAPIClient:
    return connect()
