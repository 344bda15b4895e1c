"""A vendor whose calls can be observed: a websocket server that sends what a test says, and notes who comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

KEY = "sk-of-the-operator"


class Sideband:
    """The vendor. Each connection is put into `connections`; what it sends us is in `received`."""

    def __init__(self) -> None:
        self.url = ""
        self.connections: asyncio.Queue[ServerConnection] = asyncio.Queue()
        self.requests: list[Request] = []
        self.received: list[str | bytes] = []
        self.refuse_with: int | None = None
        """The status with which it answers instead of a websocket."""
        self.location: str | None = None
        """Where it then sends its callers."""
        self.hook: Callable[[], Awaitable[None]] | None = None
        """What is done before it answers."""

    async def check(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        if self.hook is not None:
            await self.hook()
        if self.refuse_with is None:
            return None
        response = connection.respond(HTTPStatus(self.refuse_with), f"the key {KEY} is wrong")
        if self.location is not None:
            response.headers["Location"] = self.location
        return response

    async def handle(self, connection: ServerConnection) -> None:
        await self.connections.put(connection)
        async for message in connection:
            self.received.append(message)

    async def accept(self) -> ServerConnection:
        """The next connection."""
        async with asyncio.timeout(20):
            return await self.connections.get()


@pytest.fixture
async def sideband() -> AsyncIterator[Sideband]:
    """A vendor on this machine."""
    vendor = Sideband()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            serve(vendor.handle, "127.0.0.1", 0, process_request=vendor.check, max_size=None, compression=None)
        )
        vendor.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/realtime"
        yield vendor


async def send(connection: ServerConnection, *frames: dict[str, Any]) -> None:
    for frame in frames:
        await connection.send(json.dumps(frame))


def said(item: str, text: str, event: str) -> dict[str, Any]:
    """What a user said, as the vendor reports it."""
    kind = "conversation.item.input_audio_transcription.completed"
    return {"type": kind, "event_id": event, "item_id": item, "content_index": 0, "transcript": text}
