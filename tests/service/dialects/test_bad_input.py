"""Whatever a sender puts on the path of a dialect, its call goes on, and its memory is that of the good frames."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.support.callers.rest import RestClient, wait_until_closed
from tests.support.dialects import RECORDINGS, Recording, well_formed
from tests.support.services import Serve
from tests.support.waiting import all_connections_handled
from voicemem.app import App
from voicemem.dialects.registry import DIALECTS
from voicemem.protocol.types import JsonObject

CALLS = {one.dialect: one for one in reversed(RECORDINGS)}
"""A recorded call of each dialect."""
BROKEN = [
    "{",
    "",
    "null",
    "true",
    "[1,2]",
    '"',
    "\ud7ff",
    "a|b|c|d",
    "x|1|1|AAAA",
    '{"type":"hologram","x":1}',
    '{"object":"hologram"}',
    '{"label":"rtvi-ai","type":"hologram"}',
    '{"hologram":{}}',
    '{"frame":5}',
    '{"frame":{},"seq":"x"}',
    '{"frame":{"type":"error"},"ts":"yesterday"}',
    '{"frame":{"type":"error"},"ts":-1}',
    '{"type":null}',
    '{"type":["x"],"object":{},"label":3}',
    '{"x":99999999999999999999}',
    "[" * 100_000,
]
BINARY = [b"\x00\xff" * 1000, b""]
"""Audio, to some dialects."""


def bad_messages(recording: Recording) -> list[str | bytes]:
    """Broken messages, and frames of this call cut off in the middle or with fields of other types."""
    frames = [one["frame"] for one in recording.envelopes() if isinstance(one["frame"], dict)]
    cut = [json.dumps(frame)[: len(json.dumps(frame)) // 2] for frame in frames]
    changed = [retyped(frame) for frame in frames]
    # A frame that is nothing but a type is a good one.
    still_good = well_formed([*changed, *BINARY], DIALECTS[recording.dialect].reduce)
    binary = [one for one in BINARY if one not in still_good]
    return [*BROKEN, *binary, *cut, *(json.dumps(frame) for frame in changed if frame not in still_good)]


def retyped(value: Any) -> Any:
    """A frame in which no text but the type's names is a text, and no number a number."""
    if isinstance(value, dict):
        names = ("type", "label", "object", "topic")
        return {key: one if key in names and isinstance(one, str) else retyped(one) for key, one in value.items()}
    return [] if isinstance(value, str) else {}


async def hang_up(app: App, recording: Recording) -> list[JsonObject]:
    """The memory after the caller has left at the time of the recording."""
    api = RestClient(app)
    await api.send({"type": "session.end", "ts": recording.hang_up()}, query="?producer=caller")
    await wait_until_closed(app)
    return await api.contents()


@pytest.mark.parametrize("name", sorted(DIALECTS))
async def test_broken_messages_change_nothing(serve: Serve, name: str) -> None:
    """Truncated JSON, other types of fields, binary messages and unknown types between the frames of a call."""
    app = await serve()
    recording = CALLS[name]
    bad = bad_messages(recording)
    async with connect(f"ws://{app.ingest_address}/v1/ingest/{name}?session_id=s") as socket:
        for place, envelope in enumerate(recording.envelopes()):
            await socket.send(json.dumps(envelope))
            for message in bad[place :: len(recording.envelopes())]:
                await socket.send(message)
        await socket.close()
        assert [] == [message async for message in socket]
    await all_connections_handled()
    assert recording.document("contents")["contents"] == await hang_up(app, recording)


@pytest.mark.parametrize("name", sorted(DIALECTS))
async def test_frames_of_other_vendors_end_nothing(serve: Serve, name: str) -> None:
    """Every frame of all other stacks on one path: the connection stays, nothing is answered, and frames are taken."""
    app = await serve()
    recording = CALLS[name]
    async with connect(f"ws://{app.ingest_address}/v1/ingest/{name}?session_id=s") as socket:
        for other in RECORDINGS:
            for envelope in other.envelopes() if other.dialect != name else ():
                frame = envelope["frame"]
                if not isinstance(frame, dict) or frame.get("type") not in ("end", "close", "session.closed"):
                    await socket.send(frame if isinstance(frame, str) else json.dumps(frame))
        for envelope in recording.envelopes():
            await socket.send(json.dumps(envelope))
        await socket.close()
        assert [] == [message async for message in socket]
    await all_connections_handled()
    said = " ".join(str(one["content"]) for one in await hang_up(app, recording))
    expected = recording.document("contents")["contents"]
    assert [] == [one["content"] for one in expected if one["role"] == "user" and one["content"] not in said]


@pytest.mark.parametrize("name", sorted(DIALECTS))
async def test_clocks_in_seconds_lose_nothing(serve: Serve, name: str) -> None:
    """Envelopes whose `ts` are seconds give the same words of the same speakers; only times are wrong."""
    app = await serve()
    api, recording = RestClient(app), CALLS[name]
    await api.create()
    sent = [one | ({"ts": one["ts"] // 1000} if "ts" in one else {}) for one in recording.envelopes()]
    answered = await api.send(*sent, query=f"?dialect={name}")
    assert [] == answered["errors"]
    expected = recording.document("contents")["contents"]
    contents = await hang_up(app, recording)
    assert [said(one) for one in expected] == [said(one) for one in contents]


def said(message: JsonObject) -> tuple[str, str]:
    """Who said it, and everything that was to be said."""
    return message["role"], message["metadata"].get("original", message["content"])


@pytest.mark.parametrize("name", sorted(DIALECTS))
async def test_ids_that_repeat_with_other_content_count_once(serve: Serve, name: str) -> None:
    """Frames of a call sent again, with texts of another call under the same ids, change nothing."""
    app = await serve()
    api, recording = RestClient(app), CALLS[name]
    await api.create()
    kept = [(one, DIALECTS[name].reduce(one["frame"], one.get("from"))) for one in recording.envelopes()]
    again = [one | {"id": frame.id} for one, frame in kept if frame is not None and frame.id is not None]
    await api.send(*recording.envelopes(), query=f"?dialect={name}")
    await api.contents()
    for one in again:
        await api.send({**one, "frame": other_texts(one["frame"])}, query=f"?dialect={name}")
    assert recording.document("contents")["contents"] == await hang_up(app, recording)


def other_texts(value: Any) -> Any:
    """A frame whose texts, where anything is said, are others."""
    if isinstance(value, dict):
        return {key: other_texts(one) for key, one in value.items()}
    if isinstance(value, list):
        return [other_texts(one) for one in value]
    return f"{value} Never said." if isinstance(value, str) and " " in value else value
