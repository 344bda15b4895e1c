"""Twilio's side of a ConversationRelay: it connects to the app, speaks its tokens, and the caller breaks in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from websockets.asyncio.client import ClientConnection, connect

CALL = "CA00000000000000000000000000000001"


async def relay_call(url: str) -> None:
    """A caller who asks, has heard enough after four words, asks again, and hangs up after the answer."""
    async with connect(url) as twilio:
        await send(twilio, type="setup", sessionId="VX0", callSid=CALL, direction="inbound")
        await send(twilio, type="prompt", voicePrompt="What is the weather in Oslo?", lang="en-US", last=True)
        tokens = await spoken(twilio)
        heard = " ".join(tokens.split()[:4])
        await send(twilio, type="interrupt", utteranceUntilInterrupt=heard, durationUntilInterruptMs=1_250)
        await send(twilio, type="prompt", voicePrompt="Until when?", lang="en-US", last=True)
        await spoken(twilio)


@asynccontextmanager
async def listening(relay: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """A server of aiohttp on loopback with this one route, and its URL."""
    app = web.Application()
    app.router.add_get("/relay", relay)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"ws://127.0.0.1:{runner.addresses[0][1]}/relay"
    finally:
        await runner.cleanup()


async def send(twilio: ClientConnection, **message: Any) -> None:
    await twilio.send(json.dumps(message))


async def spoken(twilio: ClientConnection) -> str:
    """The tokens of one reply, to the last."""
    text = ""
    async for token in twilio:
        message = json.loads(token)
        text += message["token"]
        if message["last"]:
            break
    return text
