"""Recorded calls through the proxy give the memory that they should, and cross it unchanged (docs/proxy.md)."""

from __future__ import annotations

import json

import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import connect

from tests.support.callers.rest import RestClient, wait_until_closed
from tests.support.callers.tees import Clock, Ends, play, recordings_of, vendor_at
from tests.support.dialects import Recording
from tests.support.servers.voice_proxy import proxy_to
from voicemem.app import App
from voicemem.proxy.memories import VENDOR_CALLS

REALTIME = recordings_of("openai-realtime")
OTHERS = recordings_of(
    *("conversation-relay", "gemini-live", "elevenlabs-agents", "agora-ten", "pipecat-rtvi"),
    *("ultravox", "openai-live", "deepgram-agent"),
)


async def check_memory(app: App, recording: Recording) -> None:
    """The service has what the recording says."""
    await wait_until_closed(app, "call")
    assert recording.document("contents")["contents"] == await RestClient(app).contents("call")


@pytest.mark.parametrize("recording", REALTIME, ids=str)
async def test_openai_sdk(app: App, clock: Clock, recording: Recording) -> None:
    """With the URL alone, the SDK gets all events, the vendor all that it sends, and both are remembered."""
    async with vendor_at() as (url, vendor):
        async with proxy_to(app, {"openai-realtime": f"{url}/v1"}) as proxy:
            sdk = AsyncOpenAI(api_key="key", websocket_base_url=proxy.url("openai-realtime"))
            session = {"X-Voicemem-Session": "call"}
            async with sdk.realtime.connect(model="gpt-realtime", extra_headers=session) as connection:

                async def send(text: str) -> None:
                    await connection.send(json.loads(text))

                upstream = await vendor.connected
                await play(recording, Ends(send, connection.recv, upstream), clock)
                assert upstream.request is not None
                assert upstream.request.path == "/v1/realtime?model=gpt-realtime"
                assert upstream.request.headers["Authorization"] == "Bearer key"
                assert "X-Voicemem-Session" not in upstream.request.headers
            await sdk.close()
        await check_memory(app, recording)


@pytest.mark.parametrize("recording", OTHERS, ids=str)
async def test_other_dialects(app: App, clock: Clock, recording: Recording) -> None:
    """Each dialect that crosses a websocket; where the vendor is the one who calls, the upstream is the app."""
    async with vendor_at() as (url, server):
        async with (
            proxy_to(app, {recording.dialect: url}) as proxy,
            connect(f"{proxy.url(recording.dialect)}?voicemem_session=call") as caller,
        ):
            upstream = await server.connected
            ends = Ends(caller.send, caller.recv, upstream)
            if recording.dialect in VENDOR_CALLS:
                ends = Ends(upstream.send, upstream.recv, caller)
            await play(recording, ends, clock)
        await check_memory(app, recording)
