"""The AsyncAPI document: it is valid, and every real frame, either way, is one of its messages.

`tests/asyncapi-3.0.0.json` is the specification's own JSON Schema (npm's `@asyncapi/specs` 6.11.1, Apache-2.0, without
white space). `make asyncapi` asks the specification's own parser too.
"""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from callers import Caller, JsonObject, Serve, make_key
from producers import url_of
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from voicemem.errors import CODES
from voicemem.protocol.events import IncomingEvent
from voicemem.protocol.frames import Frame
from voicemem.server.rest.asyncapi import document
from voicemem.version import __version__

TESTS = Path(__file__).parents[1]
CALLS = sorted((TESTS.parent / "fixtures" / "voicemem").glob("*.jsonl"))


@cache
def described() -> JsonObject:
    return dict(json.loads(document()))


@cache
def payload(name: str) -> jsonschema_rs.Draft7Validator:
    """A validator of a message's payload; its references are to the document."""
    schema = described()["components"]["messages"][name]["payload"]
    return jsonschema_rs.Draft7Validator({"allOf": [schema], "components": described()["components"]})


def messages_of(*operations: str, answers: bool = False) -> list[str]:
    """The names of the messages that come by some operations, or answer them."""
    found = [described()["operations"][name] for name in operations]
    lists = [one.get("reply", {}).get("messages", []) if answers else one["messages"] for one in found]
    return [one["$ref"].rpartition("/")[2] for some in lists for one in some]


def are_documented(frames: list[Any], names: list[str]) -> None:
    """Hold frames to the message of their type, which must be one of these."""
    for frame in frames:
        name = "events" if isinstance(frame, list) else frame["type"]
        assert name in names
        payload(name).validate(frame)


def test_the_document_is_valid() -> None:
    """It is AsyncAPI 3.0, and each of its schemas JSON Schema."""
    official = json.loads((TESTS / "asyncapi-3.0.0.json").read_text("utf-8"))
    jsonschema_rs.Draft7Validator(official).validate(described())
    assert ("3.0.0", __version__) == (described()["asyncapi"], described()["info"]["version"])
    for schema in described()["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "http://json-schema.org/draft-07/schema#", **schema})


def test_the_check_of_the_document_can_fail() -> None:
    """An operation that is no operation, and a server without a protocol, are noticed."""
    official = jsonschema_rs.Draft7Validator(json.loads((TESTS / "asyncapi-3.0.0.json").read_text("utf-8")))
    operation = {**described()["operations"]["open"], "action": "publish"}
    assert not official.is_valid({**described(), "operations": {"open": operation}})
    assert not official.is_valid({**described(), "servers": {"ingest": {"host": "localhost"}}})


def test_every_reference_leads_somewhere() -> None:
    """Each `$ref` names something in the document."""

    def follow(value: Any) -> None:
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            follow(inner)
        if isinstance(value, dict) and isinstance(value.get("$ref"), str):
            found: Any = described()
            for step in value["$ref"].removeprefix("#/").split("/"):
                found = found[step]

    follow(described())


def test_every_type_of_frame_is_in_it() -> None:
    """What may arrive and what is sent, and nothing else, besides several events together."""
    kinds = (*IncomingEvent.__args__, *Frame.__args__)
    assert {"events", *(str(kind.__struct_config__.tag) for kind in kinds)} == set(
        described()["components"]["messages"]
    )
    used = {*messages_of(*described()["operations"]), *messages_of(*described()["operations"], answers=True)}
    assert used == set(described()["channels"]["ingest"]["messages"]) == set(described()["components"]["messages"])


def test_every_close_code_is_in_it() -> None:
    """Each code that closes a connection stands with its number."""
    text = described()["channels"]["ingest"]["description"]
    assert [] == [name for name, code in CODES.items() if code.close and f"{code.close} `{name}`" not in text]


async def test_it_is_served_to_everybody(serve: Serve) -> None:
    """Whoever reaches the REST port may read it, also when everything else needs a key."""
    app = await serve()
    await make_key(app, "read")
    answered = await Caller(app).get("/asyncapi.json")
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


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.stem)
async def test_frames_of_recorded_calls_are_documented(serve: Serve, call: Path) -> None:
    """A whole call over the websocket, one event a frame and several: all that is sent and heard is in the document."""
    app = await serve()
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
