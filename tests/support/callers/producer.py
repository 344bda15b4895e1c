"""A producer on a real websocket, as tests need one: it opens, sends, and reads what comes back in its order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.events import final_transcript
from voicemem.app import App
from voicemem.config.service import Address
from voicemem.protocol.types import JsonObject

TIMEOUT_S = 10.0
"""No answer takes this long."""


class Listening(Protocol):
    """A service that takes events, in this process or in another."""

    @property
    def ingest_address(self) -> Address: ...


class Producer:
    """One connection, with nothing open on it."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    # Out

    async def send(self, *events: JsonObject) -> None:
        """Each event in a frame of its own."""
        for event in events:
            await self.socket.send(json.dumps(event))

    async def send_together(self, *events: JsonObject) -> None:
        """All events in one frame."""
        await self.socket.send(json.dumps(events))

    async def send_raw(self, frame: str | bytes) -> None:
        """A text frame of exactly these bytes."""
        await self.socket.send(frame, text=True)

    # In

    async def next(self) -> JsonObject:
        """The next frame."""
        return dict(json.loads(await asyncio.wait_for(self.socket.recv(), TIMEOUT_S)))

    async def expect(self, kind: str, **fields: Any) -> JsonObject:
        """The next frame, which must be of this type and have these fields."""
        frame = await self.next()
        assert {"type": kind, **fields} == {name: frame.get(name) for name in ("type", *fields)}, frame
        return frame

    async def expect_ack(self, seq: int, **fields: Any) -> list[int]:
        """Read acks, and nothing but acks, until this one; the seqs that were acknowledged on the way."""
        acked: list[int] = []
        while not acked or acked[-1] < seq:
            acked.append((await self.expect("ack", **fields))["seq"])
        assert seq == acked[-1]
        return acked

    async def expect_error(self, code: str, **fields: Any) -> JsonObject:
        """The next frame, which must be this error."""
        return await self.expect("error", code=code, **fields)

    async def rest(self) -> list[JsonObject]:
        """All that still comes for what was sent: an open waits until everything before it is answered."""
        await self.send({"type": "session.open", "producer": "rest"})
        frames: list[JsonObject] = []
        while (frame := await self.next()).get("producer") != "rest":
            frames.append(frame)
        return frames

    async def closed(self) -> tuple[int | None, list[JsonObject]]:
        """The code with which the server closes the connection, and the frames before."""
        frames: list[JsonObject] = []
        try:
            while True:
                frames.append(await self.next())
        except ConnectionClosed as gone:
            return (gone.rcvd.code if gone.rcvd else None), frames

    # What most tests begin with

    async def open(self, session_id: str | None = "s", **more: Any) -> JsonObject:
        """The answer to a `session.open`."""
        named = {} if session_id is None else {"session_id": session_id}
        await self.send({"type": "session.open", **named, **more})
        return await self.expect("session.ready")

    async def store(self, *events: JsonObject) -> None:
        """Send numbered events, and wait until all of them are acknowledged."""
        await self.send(*events)
        await self.expect_ack(events[-1]["seq"])


def url_of(service: Listening, path: str = "/v1/ingest") -> str:
    """Where producers connect."""
    return f"ws://{service.ingest_address}{path}"


@asynccontextmanager
async def connected_producer(
    service: Listening, headers: Mapping[str, str] | None = None, **more: Any
) -> AsyncIterator[Producer]:
    """A producer with a connection, on which nothing is open; `more` goes to the client library."""
    async with connect(url_of(service), compression=None, additional_headers=headers, **more) as socket:
        yield Producer(socket)


@asynccontextmanager
async def open_producer(service: Listening, session_id: str = "s", **more: Any) -> AsyncIterator[Producer]:
    """A producer with an open session; `more` goes into its `session.open`."""
    async with connected_producer(service) as producer:
        await producer.open(session_id, **more)
        yield producer


@asynccontextmanager
async def key_over_its_rate(app: App, key: str) -> AsyncIterator[None]:
    """Until the block ends a connection of this key sends as much as it is let, which leaves the key over its rate."""

    async def send() -> None:
        async with connected_producer(app, {"Authorization": f"Bearer {key}"}) as producer:
            await producer.open("busy")
            for last in count(40, 40):
                await producer.send_together(*(final_transcript(seq) for seq in range(last - 39, last + 1)))
                while (frame := await producer.next()).get("seq") != last:
                    assert frame["type"] == "ack" or frame["code"] == "rate_limited", frame
                    if frame["type"] == "error":
                        told.set()

    told = asyncio.Event()
    sending = asyncio.create_task(send())
    try:
        await asyncio.wait_for(told.wait(), TIMEOUT_S)
        yield
        assert not sending.done()
    finally:
        sending.cancel()
        await asyncio.wait([sending])


async def open_over_websocket(app: App, session_id: str = "s", **more: Any) -> JsonObject:
    """What the websocket answers to a `session.open`."""
    async with connect(f"ws://{app.ingest_address}/v1/ingest", compression=None) as socket:
        await socket.send(json.dumps({"type": "session.open", "session_id": session_id, **more}))
        return dict(json.loads(await socket.recv()))


async def send_over_websocket(
    app: App, events: Iterable[JsonObject], session_id: str = "s", **more: Any
) -> list[JsonObject]:
    """Send events over the websocket and wait until the last is acknowledged; the frames that came back."""
    numbered = [{"seq": seq, **event} for seq, event in enumerate(events, 1)]
    async with connect(f"ws://{app.ingest_address}/v1/ingest", compression=None) as socket:
        await socket.send(json.dumps({"type": "session.open", "session_id": session_id, **more}))
        await socket.send(json.dumps(numbered))
        frames: list[JsonObject] = []
        while not frames or frames[-1].get("seq") != numbered[-1]["seq"]:
            frames.append(json.loads(await socket.recv()))
        return frames
