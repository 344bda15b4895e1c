"""Running services, as tests ask for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from voicemem.app import App, running
from voicemem.config.service import Address, Settings
from voicemem.context.policy_registry import Policies
from voicemem.runtime import Clock, Runtime, now_ms
from voicemem.services import Services
from voicemem.sessions.recording.redaction import load_rules
from voicemem.store.port import Store
from voicemem.telemetry import Telemetry

ANY_PORT = Address("127.0.0.1", 0)
Serve = Callable[..., Coroutine[Any, Any, App]]
"""Starts a service with a clock, if one is given, and these settings; it is torn down with the test."""


@asynccontextmanager
async def running_service(clock: Clock | None = None, /, **settings: Any) -> AsyncIterator[App]:
    """A service on free ports that ends with the block, for tests that start another on its file."""
    async with running(Settings(**{"rest": ANY_PORT, "ingest": ANY_PORT, **settings}), clock) as app:
        yield app


@asynccontextmanager
async def node_on(store: Store, clock: Clock = now_ms, **settings: Any) -> AsyncIterator[App]:
    """One of several services on a store that may have several."""
    chosen = Settings(**{"rest": ANY_PORT, "ingest": ANY_PORT, **settings})
    services = Services(store, chosen, Policies(), Runtime(clock), Telemetry.untraced(), rules=load_rules(chosen))
    app = App(chosen, services)
    try:
        await app.start()
        yield app
    finally:
        await app.stop()


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a service with this clock and these settings; by default in memory, on free ports, without the page."""
    async with AsyncExitStack() as stack:

        async def start(clock: Clock | None = None, /, **settings: Any) -> App:
            chosen = Settings(**{"store": "memory:", "rest": ANY_PORT, "ingest": ANY_PORT, "ui": False, **settings})
            return await stack.enter_async_context(running(chosen, clock))

        yield start


def with_page(serve: Serve) -> Serve:
    """Start services with the page, unless their settings say otherwise."""

    async def start(clock: Clock | None = None, /, **settings: Any) -> App:
        return await serve(clock, **{"ui": True, **settings})

    return start
