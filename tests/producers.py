"""A producer on a real websocket, as tests need one: it opens, sends, and reads what comes back in its order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any, Protocol

import apsw
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from voicemem.app import App
from voicemem.config.service import Address
from voicemem.store.sqlite import SqliteStore
from voicemem.store.sqlite.database import Database

JsonObject = dict[str, Any]
TIMEOUT_S = 10.0
"""No answer takes this long."""
BIG = "x" * 200_000
"""A text that no half-filled page of a database has room for."""


class Listening(Protocol):
    """A service that takes events, in this process or in another."""

    @property
    def ingest_address(self) -> Address: ...


# Events


def said(seq: int | None = None, text: str | None = None, **more: Any) -> JsonObject:
    """A final transcript, in a turn of its own unless `more` names another."""
    event = {"type": "asr", "seq": seq, "turn_id": seq or 1, "text": text or f"Line {seq}.", "final": True, **more}
    return {name: value for name, value in event.items() if value is not None}


def end(seq: int | None = None, **more: Any) -> JsonObject:
    """The producer's end."""
    return {"type": "session.end", **({} if seq is None else {"seq": seq}), **more}


def unknown(seq: int | None = None, **more: Any) -> JsonObject:
    """An event that is refused for its type."""
    return {"type": "no.such.type", **({} if seq is None else {"seq": seq}), **more}


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
async def connected(
    service: Listening, headers: Mapping[str, str] | None = None, **more: Any
) -> AsyncIterator[Producer]:
    """A producer with a connection, on which nothing is open; `more` goes to the client library."""
    async with connect(url_of(service), compression=None, additional_headers=headers, **more) as socket:
        yield Producer(socket)


@asynccontextmanager
async def producing(service: Listening, session_id: str = "s", **more: Any) -> AsyncIterator[Producer]:
    """A producer with an open session; `more` goes into its `session.open`."""
    async with connected(service) as producer:
        await producer.open(session_id, **more)
        yield producer


@asynccontextmanager
async def over_its_rate(app: App, key: str) -> AsyncIterator[None]:
    """Until the block ends a connection of this key sends as much as it is let, which leaves the key over its rate."""

    async def send() -> None:
        async with connected(app, {"Authorization": f"Bearer {key}"}) as producer:
            await producer.open("busy")
            for last in count(40, 40):
                await producer.send_together(*(said(seq) for seq in range(last - 39, last + 1)))
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


# A store in trouble


def database_of(app: App) -> Database:
    """The database of a service."""
    assert isinstance(app.services.store, SqliteStore)
    return app.services.store.database


@asynccontextmanager
async def full_store(app: App) -> AsyncIterator[None]:
    """Until the block ends the database gets no further page, as on a full disk."""
    database = database_of(app)
    await database.write(lambda connection: connection.pragma("max_page_count", connection.pragma("page_count")))
    try:
        yield
    finally:
        await database.write(lambda connection: connection.pragma("max_page_count", 2**30))


@asynccontextmanager
async def down_store(app: App) -> AsyncIterator[None]:
    """Until the block ends every commit of a service on a file fails at once."""
    database = database_of(app)
    await database.write(lambda connection: connection.set_busy_timeout(0))
    with held_store(database.path):
        yield
    await database.write(lambda connection: connection.set_busy_timeout(5_000))


@contextmanager
def held_store(path: str) -> Iterator[None]:
    """Until the block ends somebody else writes to the database, so that no commit comes through."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(5_000)  # the server may be writing at this moment
    try:
        connection.execute("begin immediate")
        yield
    finally:
        connection.close()
