"""What tests of the ingest port ask, and wait for."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.callers.producer import Producer, url_of
from tests.support.callers.rest import RestClient
from tests.support.events import final_transcript, unknown_event
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.protocol.types import JsonObject

MIB = 1024 * 1024


async def journaled(api: RestClient, session_id: str = "s") -> list[JsonObject]:
    """The events in a session's journal."""
    return [row["event"] for row in await api.journal(session_id)]


ADMIN_KEY = "k" * 40
UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)
S = {"session_id": "s"}


async def refusal(app: App, path: str = "/v1/ingest", host: str = "127.0.0.1", **more: Any) -> tuple[int, str] | None:
    """Status and code with which a handshake is refused; None when it is not."""
    try:
        async with connect(f"ws://{host}{path}", host="127.0.0.1", port=app.ingest_address.port, **more):
            return None
    except InvalidStatus as refused:
        response = refused.response
    assert "application/problem+json" == response.headers["Content-Type"], response.body
    problem = json.loads(response.body)
    assert response.status_code == problem["status"]
    return problem["status"], problem["reason"]


async def status(app: App, *lines: str) -> int:
    """The status that is answered to a request of these lines."""
    reader, writer = await asyncio.open_connection(*app.ingest_address)
    try:
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        answer = await asyncio.wait_for(reader.readline(), 5)
        return int(answer.split()[1])
    finally:
        writer.close()
        await writer.wait_closed()


LONG = {"session_id": "s" * 128, "producer": "p" * 128}
"""Names that make every answer long."""


@asynccontextmanager
async def clogged(app: App) -> AsyncIterator[None]:
    """Until the block ends a peer sends and reads nothing, so that no answer gets through to it any more."""
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    narrow.connect(tuple(app.ingest_address))
    narrow.setblocking(False)
    async with connect(url_of(app), sock=narrow, compression=None) as peer:
        await Producer(peer).open(**LONG)
        for one in app.ingest.connections:  # the system would take megabytes for the peer
            one.websocket.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        peer.transport.pause_reading()
        sending = asyncio.create_task(send_on(Producer(peer)))
        try:
            await eventually(True, lambda: is_clogged(app))
            yield
        finally:
            peer.transport.abort()
            sending.cancel()
            await asyncio.wait({sending})


async def send_on(producer: Producer) -> None:
    """Send what is answered at length, for ever."""
    for first in itertools.count(1, 500):
        await producer.send_together(
            *(unknown_event(seq) for seq in range(first, first + 499)), final_transcript(first + 499, turn_id=1)
        )


async def is_clogged(app: App) -> bool:
    """Whether an answer waits for a peer that does not read."""
    return any(one.websocket.transport.get_write_buffer_size() > 32 * 1024 for one in app.ingest.connections)
