"""What tests of the client share: clients that try again quickly, networks in between, and what must be stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.callers.rest import RestClient
from tests.support.servers.network_proxy import NetworkProxy
from voicemem.app import App
from voicemem.client import Ack, Client, Options, ProducerSession
from voicemem.config.service import Address
from voicemem.protocol.types import JsonObject

TIMEOUT_S = 20.0
FAR_S = 15.0
"""Far beyond any deadline of a test that is kept, also on a busy machine; shorter than `TIMEOUT_S`."""
SHORT_S = 0.3
"""A deadline that passes."""
REFUSING = "127.0.0.1:1"
"""Where no one listens."""
QUICK: JsonObject = {
    "first_delay_s": 0.02,
    "longest_delay_s": 0.2,
    "away_delay_s": 0.2,
    "open_timeout_s": TIMEOUT_S,
    "context_timeout_s": TIMEOUT_S,
    "read_timeout_s": TIMEOUT_S,
    "connect_timeout_s": 2.0,
    "ping_after_s": 0.1,
    "ping_timeout_s": 0.3,
    "websocket_every_s": 0.1,
    "request_timeout_s": 5.0,
    "fallback_after": 1_000_000,
}
"""Options for networks that change their mind within a second; without fallback, unless a test says so.

What a caller waits for may take as long as a busy machine needs."""


@asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """What happens here ends by a deadline of its own, and not by that of the network or of another option."""
    async with asyncio.timeout(FAR_S):
        yield


def options(**more: Any) -> Options:
    return Options(**{**QUICK, **more})


def client_for(ingest: Address, rest: Address | None = None, key: str | None = None, **more: Any) -> Client:
    """A client of these addresses, with quick options."""
    rest_url = None if rest is None else f"http://{rest}"
    return Client(f"ws://{ingest}", rest_url, key, options=options(**more))


def client_to(app: App, **more: Any) -> Client:
    return client_for(app.ingest_address, app.rest_address, **more)


@asynccontextmanager
async def behind_proxy(app: App, **more: Any) -> AsyncIterator[tuple[NetworkProxy, Client]]:
    """A client whose websocket goes through a proxy, and whose requests do not."""
    async with NetworkProxy(app.ingest_address) as proxy, client_for(proxy.address, app.rest_address, **more) as client:
        yield proxy, client


def numbered_transcript(number: int, **more: Any) -> JsonObject:
    """A final transcript in a turn of its own."""
    return {"type": "asr", "turn_id": number, "text": f"Line {number}.", "final": True, **more}


def nested(depth: int) -> Any:
    """Arrays in each other."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def send_transcripts(session: ProducerSession, numbers: Iterable[int], **more: Any) -> list[Ack]:
    return [session.send(numbered_transcript(number, **more)) for number in numbers]


async def acknowledged_seqs(acks: Iterable[Ack]) -> list[int]:
    """The seqs, once all are on disk."""
    async with asyncio.timeout(TIMEOUT_S):
        return [await ack for ack in acks]


async def stored_transcripts(app: App, session_id: str = "s") -> list[tuple[int, str | None]]:
    """Seq and text of all that a journal has of producers."""
    rows = await RestClient(app).journal(session_id)
    return [(row["seq"], row["event"].get("text")) for row in rows if row["seq"] is not None]


def transcripts_up_to(last: int) -> list[tuple[int, str | None]]:
    """What is stored of lines 1, 2, 3 …, each once and in order."""
    return [(number, f"Line {number}.") for number in range(1, last + 1)]
