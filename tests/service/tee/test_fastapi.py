"""A tee around a websocket of FastAPI, served by uvicorn."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect

import voicemem
from tests.support.callers.tees import Clock, Ends, memory_after, play, recordings_of
from tests.support.dialects import Recording
from tests.support.needs import needs_module
from voicemem.app import App
from voicemem.client import Client

needs_module("fastapi", "test")
from tests.support.servers.fastapi_relay import fastapi_server  # noqa: E402


@pytest.mark.parametrize("recording", recordings_of("conversation-relay"), ids=str)
async def test_fastapi(app: App, client: Client, clock: Clock, recording: Recording) -> None:
    """A websocket of FastAPI under uvicorn, through `receive_json` and `send_json`, and the vendor's hang-up."""
    connected: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def endpoint(websocket: Any) -> None:
        connected.set_result(voicemem.tee(websocket, client, "call", dialect="conversation-relay"))
        await over.wait()

    async with fastapi_server(endpoint) as url, connect(url) as vendor:
        websocket = await connected

        async def send(text: str) -> None:
            await websocket.send_json(json.loads(text))

        async def receive() -> str:
            return json.dumps(await websocket.receive_json())

        await play(recording, Ends(send, receive, vendor), clock)
        await memory_after(app, websocket, recording)
        over.set()
