"""Each recorded call of another stack gives its memory through every door (docs/dialects.md)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient, wait_until_closed
from tests.support.dialects import RECORDINGS, Recording
from tests.support.rows import every_row
from tests.support.waiting import all_connections_handled, eventually
from voicemem.app import App
from voicemem.protocol.types import JsonObject

recorded = every_row("recording", RECORDINGS, ids=str)


def said(contents: list[JsonObject]) -> list[tuple[str, int, str]]:
    """Who said it, in which turn, and everything that was to be said."""
    return [(one["role"], one["turn_id"], one["metadata"].get("original", one["content"])) for one in contents]


def raw(frame: Any) -> str:
    """A frame as its sender writes it."""
    return frame if isinstance(frame, str) else json.dumps(frame)


def session_of(recording: Recording) -> str:
    """All calls of a test go to one service."""
    return f"{recording.dialect}:{recording.name}"


def path_of(app: App, recording: Recording) -> str:
    """Where bare frames of this call are sent."""
    return f"ws://{app.ingest_address}/v1/ingest/{recording.dialect}?session_id={session_of(recording)}"


async def hang_up(api: RestClient, app: App, recording: Recording) -> list[JsonObject]:
    """The memory after the caller has left at the time of the recording."""
    session_id = session_of(recording)
    await api.send({"type": "session.end", "ts": recording.hang_up()}, session_id=session_id, query="?producer=caller")
    await wait_until_closed(app, session_id)
    return await api.contents(session_id)


@recorded
async def test_bare_frames_on_a_path_of_their_own(app: App, api: RestClient, recording: Recording) -> None:
    """A sender that knows nothing of us sends frames as they are, and gets no answer."""
    async with connect(path_of(app, recording)) as socket:
        for envelope in recording.envelopes():
            await socket.send(raw(envelope["frame"]))
        await socket.close()
        assert [message async for message in socket] == []
    await all_connections_handled()

    expected = recording.document("bare") or recording.document("contents")

    async def contents() -> list[tuple[str, int, str]]:
        return said(await api.contents(session_of(recording), "?open=true"))

    await eventually(said(expected["contents"]), contents)


@pytest.mark.long
@recorded
async def test_envelopes_on_the_path_of_a_dialect(app: App, api: RestClient, recording: Recording) -> None:
    """Envelopes with times give the memory exactly."""
    async with connect(path_of(app, recording)) as socket:
        for envelope in recording.envelopes():
            await socket.send(json.dumps(envelope))
    await all_connections_handled()
    assert recording.document("contents")["contents"] == await hang_up(api, app, recording)


@pytest.mark.long
@recorded
async def test_numbered_envelopes_next_to_events(app: App, api: RestClient, recording: Recording) -> None:
    """A tee opens a session with a dialect, numbers its envelopes, and gets acks; what says nothing takes its seq."""
    async with connected_producer(app) as producer:
        await producer.open(session_of(recording), dialect=recording.dialect)
        envelopes = [{**envelope, "seq": seq} for seq, envelope in enumerate(recording.envelopes(), 1)]
        await producer.send(*envelopes)
        await producer.expect_ack(len(envelopes))
        await producer.send(*envelopes)
        await producer.expect_ack(len(envelopes))
    assert recording.document("contents")["contents"] == await hang_up(api, app, recording)
    events = [row["event"] for row in await api.journal(session_of(recording)) if row["producer"] == "main"]
    assert {("frame", recording.dialect)} == {(event["type"], event["dialect"]) for event in events}


@pytest.mark.long
@recorded
async def test_frames_over_http(app: App, api: RestClient, recording: Recording) -> None:
    """A batch of envelopes is a body, and `native=true` shows the events that were made of them."""
    session_id = session_of(recording)
    again_id = f"{session_id}:again"
    await api.create(session_id)
    answered = await api.send(*recording.envelopes(), session_id=session_id, query=f"?dialect={recording.dialect}")
    assert [] == answered["errors"]
    assert recording.document("contents")["contents"] == await hang_up(api, app, recording)
    native = [row["event"] for row in await api.journal(session_id, "?native=true")]
    assert "frame" not in {event["type"] for event in native}
    assert native[-1]["type"] == "session.closed"
    assert {"llm.delta", "llm.done", "message"} & {event["type"] for event in native}
    await api.create(again_id)
    again = [event for event in native if event["type"] not in ("session.closed", "session.end")]
    await api.send(*again, {"type": "session.end", "ts": recording.hang_up()}, session_id=again_id)
    await wait_until_closed(app, again_id)
    assert said(recording.document("contents")["contents"]) == said(await api.contents(again_id))
