"""The AsyncAPI document is served, and every real frame is one of its messages."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.callers.producer import url_of
from tests.support.callers.rest import RestClient, make_key
from tests.support.checks.asyncapi import described, messages_of
from tests.support.paths import FIXTURES
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App
from voicemem.protocol.types import JsonObject

CALLS = sorted((FIXTURES).glob("*.jsonl"))


@cache
def payload(name: str) -> jsonschema_rs.Draft7Validator:
    """A validator of a message's payload; its references are to the document."""
    schema = described()["components"]["messages"][name]["payload"]
    return jsonschema_rs.Draft7Validator({"allOf": [schema], "components": described()["components"]})


def are_documented(frames: list[Any], names: list[str]) -> None:
    """Hold frames to the message of their type, which must be one of these."""
    for frame in frames:
        name = "events" if isinstance(frame, list) else frame["type"]
        assert name in names
        payload(name).validate(frame)


async def test_it_is_served_to_everybody(serve: Serve) -> None:
    """Whoever reaches the REST port may read it, also when everything else needs a key."""
    app = await serve()
    await make_key(app, "read")
    answered = await RestClient(app).get("/asyncapi.json")
    assert (200, "application/json", described()) == (answered.status, answered.headers["Content-Type"], answered.json)


def numbered(call: Path) -> list[JsonObject]:
    """The events of a recorded call with their seqs."""
    return [{**json.loads(line), "seq": seq} for seq, line in enumerate(call.read_text("utf-8").splitlines(), 1)]


class Recording:
    """A connection to the ingest that keeps every frame of both sides."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.sent: list[Any] = []
        self.heard: list[Any] = []

    async def send(self, frame: Any) -> None:
        self.sent.append(frame)
        await self.socket.send(json.dumps(frame))

    async def hear(self) -> Any:
        self.heard.append(json.loads(await self.socket.recv()))
        return self.heard[-1]


@every_row("call", CALLS, ids=lambda call: call.stem)
async def test_frames_of_recorded_calls_are_documented(app: App, call: Path) -> None:
    """A whole call over the websocket, one event a frame and several: all that is sent and heard is in the document."""
    key = await make_key(app, "admin")
    events = numbered(call)
    async with connect(url_of(app)) as socket:
        client = Recording(socket)
        await client.send({"type": "auth", "token": key})
        await client.send({"type": "session.open", "session": {"labels": {"desk": "front"}, "llm": {"model": None}}})
        await client.hear()
        half = len(events) // 2
        for frame in [*events[:half], events[half:]]:
            await client.send(frame)
        while client.heard[-1].get("seq") != len(events):
            await client.hear()
    are_documented(client.sent, messages_of("authenticate", "open", "record"))
    are_documented(client.heard[:1], messages_of("open", answers=True))
    are_documented(client.heard[1:], messages_of("record", answers=True))


async def test_frames_of_trouble_are_documented(serve: Serve) -> None:
    """Errors of every shape, another connection that takes over, and the drain."""
    app = await serve()
    async with connect(url_of(app)) as socket:
        client = Recording(socket)
        await client.send({"type": "session.open", "session_id": "s", "session": {"labels": 7}})
        await client.send({"type": "session.open", "session_id": "s"})
        await client.send({"type": "asr", "turn_id": 1, "text": "One.", "seq": 3})
        await client.send({"type": "asr", "turn_id": -1, "text": "One.", "seq": 1})
        await client.send({"type": "asr", "turn_id": 1, "text": "One."})
        for _ in range(5):
            await client.hear()
        async with connect(url_of(app)) as other:
            await other.send(json.dumps({"type": "session.open", "session_id": "s"}))
            await client.hear()
        await app.stop()
        with suppress(ConnectionClosed):
            while True:
                await client.hear()
    codes = [frame["code"] for frame in client.heard if frame["type"] == "error"]
    assert ["invalid_field", "seq_gap", "invalid_field", "seq_required", "superseded"] == codes
    assert "goaway" == client.heard[-1]["type"]
    are_documented(client.heard[:-1], messages_of("open", "record", answers=True))
    are_documented(client.heard[-1:], messages_of("drain"))
    refused = [client.sent[0], client.sent[3]]
    assert [False, False] == [payload(frame["type"]).is_valid(frame) for frame in refused]
