"""A client for producers and backends. It buffers, resends and resumes, so that no event is lost or stored twice.

    async with Client("ws://127.0.0.1:8765", "http://127.0.0.1:8080") as client:
        session = await client.open("call-1")
        ack = session.send({"type": "asr", "turn_id": 1, "text": "Hi", "final": True})
        await ack
        await session.end(reason="hangup")

See `docs/client.md`.
"""

from voicemem.client.buffer import Ack
from voicemem.client.client import Client
from voicemem.client.errors import (
    BufferFull,
    ClientError,
    Closed,
    EventRefused,
    RequestRefused,
    SessionEnded,
    SessionErased,
    Superseded,
    TimedOut,
    Unacknowledged,
    Unreachable,
)
from voicemem.client.options import Options, Room
from voicemem.client.session import ProducerSession
from voicemem.client.sync import SyncAck, SyncClient, SyncProducerSession

__all__ = [
    "Ack",
    "BufferFull",
    "Client",
    "ClientError",
    "Closed",
    "EventRefused",
    "Options",
    "ProducerSession",
    "RequestRefused",
    "Room",
    "SessionEnded",
    "SessionErased",
    "Superseded",
    "SyncAck",
    "SyncClient",
    "SyncProducerSession",
    "TimedOut",
    "Unacknowledged",
    "Unreachable",
]
