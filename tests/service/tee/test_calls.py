"""Recorded calls over real connections with a tee give the memory that they should (docs/tee.md)."""

from __future__ import annotations

import asyncio
import json
import warnings

import aiohttp
import pytest
from aiohttp import web
from openai import AsyncOpenAI
from websockets.asyncio.client import connect

import voicemem
from tests.support.callers.tees import Clock, Ends, memory_after, play, recordings_of, vendor_at
from tests.support.dialects import Recording
from voicemem.app import App
from voicemem.client import Client

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # it imports old names of websockets
    import deepgram.agent.v1.client  # noqa: F401
    from deepgram import AsyncDeepgramClient
    from deepgram.environment import DeepgramClientEnvironment

REALTIME = recordings_of("openai-realtime")
LIVE = recordings_of("openai-live")
OTHERS = recordings_of(
    "conversation-relay", "gemini-live", "elevenlabs-agents", "agora-ten", "pipecat-rtvi", "deepgram-agent", "ultravox"
)
DEEPGRAM = [one for one in recordings_of("deepgram-agent") if "exact_words" not in one.name]
"""Without frames of Flux TTS, which the SDK has elsewhere."""


@pytest.mark.parametrize("recording", REALTIME, ids=str)
async def test_openai_sdk(app: App, client: Client, clock: Clock, recording: Recording) -> None:
    """Server events and everything that the SDK sends are remembered, and its iteration goes on as before."""
    async with vendor_at() as (url, vendor):
        sdk = AsyncOpenAI(api_key="key", websocket_base_url=url)
        async with sdk.realtime.connect(model="gpt-realtime") as connection:
            same = voicemem.tee(connection, client, "call")
            assert same is connection

            async def send(text: str) -> None:
                await connection.send(json.loads(text))

            events = aiter(connection)
            await play(recording, Ends(send, lambda: anext(events), await vendor.connected), clock)
            await memory_after(app, connection, recording)
        await sdk.close()


@pytest.mark.parametrize("recording", DEEPGRAM, ids=str)
async def test_deepgram_sdk(app: App, client: Client, clock: Clock, recording: Recording) -> None:
    """The socket of its connection; audio of both sides is binary there, and counted."""
    async with vendor_at() as (url, vendor):
        urls = DeepgramClientEnvironment(base=url, production=url, agent=url, agent_rest=url)
        async with AsyncDeepgramClient(api_key="key", environment=urls).agent.v1.connect() as connection:
            voicemem.tee(connection._websocket, client, "call", dialect="deepgram-agent")

            async def send(message: str | bytes) -> None:
                await (connection.send_media if isinstance(message, bytes) else connection.send_raw)(message)

            await play(recording, Ends(send, connection.recv, await vendor.connected), clock)
            await memory_after(app, connection._websocket, recording)


@pytest.mark.parametrize("recording", LIVE, ids=str)
async def test_openai_sdk_live(app: App, client: Client, clock: Clock, recording: Recording) -> None:
    """A connection of the Live API is known for what it is, too."""
    async with vendor_at() as (url, vendor):
        sdk = AsyncOpenAI(api_key="key", websocket_base_url=url)
        async with sdk.live.connect() as connection:
            voicemem.tee(connection, client, "call")

            async def send(text: str) -> None:
                await connection.send(json.loads(text))

            await play(recording, Ends(send, connection.recv, await vendor.connected), clock)
            await memory_after(app, connection, recording)
        await sdk.close()


@pytest.mark.parametrize("recording", OTHERS, ids=str)
async def test_websockets(app: App, client: Client, clock: Clock, recording: Recording) -> None:
    """A client's connection, in every dialect whose frames cross a websocket."""
    async with vendor_at() as (url, vendor), connect(url, max_size=None) as connection:
        voicemem.tee(connection, client, "call", dialect=recording.dialect)
        await play(recording, Ends(connection.send, connection.recv, await vendor.connected), clock)
        await memory_after(app, connection, recording)


@pytest.mark.parametrize("recording", REALTIME[:2], ids=str)
async def test_aiohttp_client(app: App, client: Client, clock: Clock, recording: Recording) -> None:
    """What `send_str` and `receive_str` carry."""
    async with vendor_at() as (url, vendor), aiohttp.ClientSession() as http, http.ws_connect(url) as connection:
        voicemem.tee(connection, client, "call", dialect="openai-realtime")
        await play(recording, Ends(connection.send_str, connection.receive_str, await vendor.connected), clock)
        await memory_after(app, connection, recording)


@pytest.mark.parametrize("recording", recordings_of("conversation-relay"), ids=str)
async def test_aiohttp_server(app: App, client: Client, clock: Clock, recording: Recording) -> None:
    """A server to which the vendor connects: it receives what is the vendor's, through `receive_json` too."""
    connected: asyncio.Future[web.WebSocketResponse] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def relay(request: web.Request) -> web.WebSocketResponse:
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        connected.set_result(voicemem.tee(connection, client, "call", dialect="conversation-relay"))
        await over.wait()
        return connection

    runner = web.AppRunner(application := web.Application())
    application.router.add_get("/relay", relay)
    await runner.setup()
    await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    async with connect(f"ws://127.0.0.1:{port}/relay") as vendor:
        connection = await connected

        async def send(text: str) -> None:
            await connection.send_json(json.loads(text))

        async def receive() -> str:
            return json.dumps(await connection.receive_json())

        await play(recording, Ends(send, receive, vendor), clock)
        await memory_after(app, connection, recording)
        over.set()
    await runner.cleanup()
