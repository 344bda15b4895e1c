"""A server for Twilio's ConversationRelay whose caller breaks in, and what the LLM got then.

    voicemem serve
    python -m examples.conversation_relay [INGEST_URL REST_URL]

It needs no account and no keys: Twilio's side and the LLM are scripted. Only the lines with a star are what voicemem
adds to a server; docs/tee.md has one of FastAPI.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

from aiohttp import web

import voicemem
from bench.harness.relay_caller import listening, relay_call
from voicemem.client import Client, Options

ANSWERS = iter(["In Oslo it rains until the evening, and tomorrow the sun comes out.", "Until six."])
PATIENT = Options(context_timeout_s=10.0)  # the second that is usual may be too short for a busy machine


def llm(messages: list[dict[str, Any]]) -> Iterator[str]:
    """An LLM that streams the next answer, and shows what it got."""
    print("The LLM got:", *(f"  {one['role']}: {one['content']!r}" for one in messages), sep="\n")
    yield from (f"{word} " for word in next(ANSWERS).split())


async def call(ingest_url: str, rest_url: str) -> None:
    """A server, and one call to it."""

    async def relay(request: web.Request) -> web.WebSocketResponse:
        websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        voicemem.tee(websocket, client, dialect="conversation-relay")  # *
        memory = voicemem.memory_of(websocket)  # *
        async for message in websocket:
            said = message.json()
            if said["type"] == "prompt":
                context = await memory.context() or {"messages": []}  # * None if the memory is away
                for token in llm(context["messages"]):
                    await websocket.send_json({"type": "text", "token": token, "last": False})
                await websocket.send_json({"type": "text", "token": "", "last": True})
        await memory.aclose()  # *
        return websocket

    async with Client(ingest_url, rest_url, options=PATIENT) as client, listening(relay) as url:  # *
        await relay_call(url)


if __name__ == "__main__":
    asyncio.run(call(*(sys.argv[1:] or ("ws://127.0.0.1:8765", "http://127.0.0.1:8080"))))
