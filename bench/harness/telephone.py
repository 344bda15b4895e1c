"""A telephone at the other end of a media stream, as Twilio connects it, with a caller who listens to it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

BYTES_PER_MS = 8
STEP_S = 0.01
SILENCE_S = 0.3
"""The caller takes so much of it for the end."""
STREAM = {"streamSid": "MZ1"}
FORMAT = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}


class Telephone:
    """Plays what is queued in real time. The caller breaks in once, and leaves when the agent has said the rest."""

    def __init__(
        self, breaks_in_at_ms: int, break_in: Callable[[], Awaitable[None]], at_end: Callable[[], Awaitable[None]]
    ) -> None:
        self.breaks_in_at_ms: int | None = breaks_in_at_ms
        self.break_in = break_in
        self.at_end = at_end
        self.begun = 0.0
        """When the stretch began that plays."""
        self.queued_ms = 0

    def play(self, ms: int) -> None:
        now = asyncio.get_running_loop().time()
        if now > self.begun + self.queued_ms / 1_000:
            self.begun, self.queued_ms = now, 0
        self.queued_ms += ms

    async def listen(self) -> None:
        """Do what the caller does, until they have hung up."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(STEP_S)
            played_ms = (loop.time() - self.begun) * 1_000
            if self.breaks_in_at_ms is not None and self.queued_ms and played_ms >= self.breaks_in_at_ms:
                self.breaks_in_at_ms = None
                await self.break_in()
            elif self.breaks_in_at_ms is None and self.queued_ms and played_ms >= self.queued_ms + SILENCE_S * 1_000:
                await self.at_end()
                return

    async def receive(self, connection: ClientConnection) -> None:
        async for message in connection:
            frame = json.loads(message)
            if frame["event"] == "media":
                self.play(len(base64.b64decode(frame["media"]["payload"])) // BYTES_PER_MS)
            elif frame["event"] == "clear":
                self.queued_ms = 0


async def phone_call(
    bridge: Callable[[ServerConnection], Awaitable[None]],
    breaks_in_at_ms: int,
    break_in: Callable[[], Awaitable[None]],
    at_end: Callable[[], Awaitable[None]],
) -> None:
    """One call to an app that takes the socket of the stream; returns when the app has done with it."""
    telephone, over = Telephone(breaks_in_at_ms, break_in, at_end), asyncio.Event()

    async def handle(connection: ServerConnection) -> None:
        try:
            await bridge(connection)
        finally:
            over.set()

    async with serve(handle, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}") as connection:
            start = {"callSid": "CA1", "tracks": ["inbound"], "mediaFormat": FORMAT, **STREAM}
            await connection.send(json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"}))
            await connection.send(json.dumps({"event": "start", "start": start, **STREAM}))
            receiving = asyncio.create_task(telephone.receive(connection))
            await telephone.listen()
            with suppress(ConnectionClosed):  # the app was faster
                await connection.send(json.dumps({"event": "stop", "stop": {"callSid": "CA1"}, **STREAM}))
            await over.wait()
            receiving.cancel()
