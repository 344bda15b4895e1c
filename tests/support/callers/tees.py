"""Recorded calls of other stacks over real connections, with a tee around one end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websocket

import voicemem
from tests.support.callers.rest import RestClient, wait_until_closed
from tests.support.dialects import RECORDINGS, Recording
from voicemem.app import App
from voicemem.dialects.dialect import AUDIO_BYTES


class Clock:
    """The time of a recorded call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        monkeypatch.setattr("voicemem.integrations.tee.memory.now_ms", lambda: self.now)


class Vendor:
    """A websocket server that hands its connection to the test."""

    def __init__(self) -> None:
        self.connected: asyncio.Future[ServerConnection] = asyncio.get_running_loop().create_future()

    async def handle(self, connection: ServerConnection) -> None:
        self.connected.set_result(connection)
        await connection.wait_closed()


@asynccontextmanager
async def vendor_at() -> AsyncIterator[tuple[str, Vendor]]:
    """The URL of a vendor's websocket."""
    vendor = Vendor()
    async with serve_websocket(vendor.handle, "127.0.0.1", 0, max_size=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"ws://127.0.0.1:{port}", vendor


class Ends:
    """Both ends, by the methods that the libraries at them have."""

    def __init__(self, app_sends: Any, app_receives: Any, vendor: Any) -> None:
        self.app_sends = app_sends
        self.app_receives = app_receives
        self.vendor_sends = vendor.send
        self.vendor_receives = vendor.recv


async def memory_after(app: App, connection: Any, recording: Recording) -> None:
    """Close the memory, and see that the service has what the recording says."""
    memory = voicemem.memory_of(connection)
    await memory.aclose()
    assert memory.dropped == 0
    await wait_until_closed(app, "call")
    assert recording.document("contents")["contents"] == await RestClient(app).contents("call")


def recordings_of(*dialects: str) -> list[Recording]:
    """The recorded calls that cross a websocket, and not webhooks."""
    return [one for one in RECORDINGS if one.dialect in dialects and "webhook" not in one.name]


def message_of(frame: Any) -> str | bytes:
    """A frame as it crosses the connection: audio of a stack that names nothing there is a binary message."""
    if isinstance(frame, dict) and frame.keys() == {AUDIO_BYTES}:
        return bytes(frame[AUDIO_BYTES])
    return text_of(frame)


def text_of(frame: Any) -> str:
    """A frame as it crosses the connection of a stack whose messages are all texts."""
    return frame if isinstance(frame, str) else json.dumps(frame)


async def play(
    recording: Recording,
    ends: Ends,
    clock: Clock,
    between: Callable[[int], Awaitable[None]] | None = None,
) -> None:
    """Send each frame from the side that sent it, and see it arrive at the other end; then the caller has gone."""
    for number, envelope in enumerate(recording.envelopes()):
        if between is not None:
            await between(number)
        clock.now, text = envelope["ts"], message_of(envelope["frame"])
        if envelope.get("from") == "app":
            await ends.app_sends(text)
            assert same(await ends.vendor_receives(), text)
        else:
            await ends.vendor_sends(text)
            assert same(await ends.app_receives(), text)
    clock.now = recording.hang_up()


def same(arrived: Any, text: str | bytes) -> bool:
    """Whether a message is what was sent, in the form in which a library gives it."""
    if isinstance(text, bytes):
        return bool(arrived == text)
    if isinstance(arrived, str | bytes):
        arrived = arrived.decode() if isinstance(arrived, bytes) else arrived
        return bool(arrived == text or json.loads(arrived) == json.loads(text))
    return bool(arrived.type == json.loads(text)["type"])
