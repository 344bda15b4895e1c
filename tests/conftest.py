"""What tests of the running service share: a service on free ports, torn down with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from services import ANY_PORT, Serve

from voicemem.app import App, running
from voicemem.config.service import Settings

pytest.register_assert_rewrite("agreement", "machine", "talk")  # what the model test is made of


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a service with these settings (in memory and on free ports unless they say otherwise)."""
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> App:
            chosen = Settings(**{"store": "memory:", "rest": ANY_PORT, "ingest": ANY_PORT, **settings})
            return await stack.enter_async_context(running(chosen))

        yield start
