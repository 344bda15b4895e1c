"""The client against a running service: open, send, acknowledge, resume, end, read."""

from __future__ import annotations

from services import Serve

from voicemem.app import App
from voicemem.client import Client


def client_of(app: App) -> Client:
    return Client(f"ws://{app.ingest_address}", f"http://{app.rest_address}")


async def test_thin(serve: Serve) -> None:
    """thin"""
    app = await serve()
    async with client_of(app) as client:
        session = await client.open("call-1", config={"name": "x"})
        acks = [session.send({"type": "asr", "turn_id": n, "text": "Hi", "final": True}) for n in range(1, 400)]
        assert [await ack for ack in acks] == list(range(1, 400))
        assert await session.end("hangup") == 400
        assert len((await session.history(limit=2))["contents"]) == 2
