"""Who calls, as a tee or the proxy lets the service know it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

import voicemem
from tests.support.callers.client_sessions import client_to
from tests.support.callers.rest import RestClient
from tests.support.callers.tees import vendor_at
from tests.support.samples.callers import AGENT, CALLER
from tests.support.servers.voice_proxy import proxy_to
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.protocol.types import JsonObject

SETUP: JsonObject = {
    "type": "setup",
    "callSid": "CA1",
    "from": CALLER,
    "to": AGENT,
    "customParameters": {"user_id": "ann"},
}
SAID: JsonObject = {"type": "prompt", "voicePrompt": "Hello.", "last": True}


@asynccontextmanager
async def app_server(tee: Any, over: asyncio.Event) -> AsyncIterator[str]:
    """An app that a vendor connects to, with a tee around the connection."""

    async def handle(connection: ServerConnection) -> None:
        tee(connection)
        for _ in range(2):
            await connection.recv()
        await over.wait()
        await voicemem.memory_of(connection).aclose()

    async with serve(handle, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


async def config_of(api: RestClient, session_id: str = "CA1") -> Any:
    answered = await api.get(f"/v1/sessions/{session_id}")
    return answered.json["config"] if answered.status == 200 else None


@pytest.mark.parametrize("allowed", ["off", "user", "number"])
async def test_a_tee(serve: Serve, allowed: str) -> None:
    """What the vendor's frames say reaches the service, which writes no number."""
    app = await serve(identify=(f"conversation-relay={allowed}",))
    api, over = RestClient(app), asyncio.Event()
    number = await app.services.callers.find("default", CALLER)
    expected = {"off": {}, "user": {"user_id": "ann"}, "number": {"user_id": number}}[allowed]
    async with (
        client_to(app) as client,
        app_server(lambda one: voicemem.tee(one, client, dialect="conversation-relay"), over) as url,
        connect(url) as vendor,
    ):
        for frame in (SETUP, SAID):
            await vendor.send(json.dumps(frame))
        await eventually(expected, lambda: config_of(api))
        await eventually(1, lambda: count(api))
        over.set()
    journal = (await api.get("/v1/sessions/CA1/events")).body.decode()
    assert CALLER[1:] not in journal
    assert "~caller" not in journal


async def count(api: RestClient) -> int:
    return len(await api.contents("CA1"))


async def test_a_user_of_the_app(serve: Serve) -> None:
    """It is that of the new session, beside its configuration."""
    app = await serve()
    api, over = RestClient(app), asyncio.Event()
    more: JsonObject = {"dialect": "conversation-relay", "user_id": "bob", "config": {"name": "desk"}}
    async with (
        client_to(app) as client,
        app_server(lambda one: voicemem.tee(one, client, **more), over) as url,
        connect(url) as vendor,
    ):
        for frame in (SETUP, SAID):
            await vendor.send(json.dumps(frame))
        await eventually({"user_id": "bob", "name": "desk"}, lambda: config_of(api))
        over.set()


async def test_a_user_of_the_proxys_caller(serve: Serve) -> None:
    """The vendor sees nothing of it."""
    app = await serve()
    ours = "voicemem_session=call&voicemem_user=ann%20b"
    async with (
        vendor_at() as (url, vendor),
        proxy_to(app, {"openai-realtime": url}) as proxy,
        connect(f"{proxy.url('openai-realtime')}?{ours}&x=1") as caller,
    ):
        request = (await vendor.connected).request
        assert request is not None
        assert request.path.endswith("?x=1")
        await (await vendor.connected).send(json.dumps({"type": "session.created", "session": {"id": "sess_1"}}))
        await caller.recv()
        await eventually({"user_id": "ann b"}, lambda: config_of(RestClient(app), "call"))
