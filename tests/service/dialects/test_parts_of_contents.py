"""Texts of an app that come in several frames: kept if they were typed, and never if they are prompts."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient
from tests.support.dialects import RECORDINGS
from tests.support.waiting import all_connections_handled
from voicemem.app import App
from voicemem.protocol.types import JsonObject

CALL = next(one for one in RECORDINGS if (one.dialect, one.name) == ("nova-sonic", "tools_typed_text_and_history"))
NOT_SAID = ("Secret", "An old", "context")


def content(name: str, text: str) -> list[JsonObject]:
    """The frames of a text that an app sends."""
    start = {"promptName": "p", "contentName": name, "type": "TEXT", "role": "USER", "interactive": True}
    said = {"promptName": "p", "contentName": name, "content": text}
    return [{"event": {"contentStart": start}}, {"event": {"textInput": said}}]


def audio() -> JsonObject:
    return {"event": {"contentStart": {"promptName": "p", "contentName": "a", "type": "AUDIO", "role": "USER"}}}


async def journal(api: RestClient) -> str:
    return json.dumps([row["event"] for row in await api.journal()])


@pytest.mark.parametrize("door", ["bare", "http", "numbered"])
async def test_prompts_and_history_are_not_journaled(app: App, api: RestClient, door: str) -> None:
    """Through every door: what stands before the audio is not kept, what is typed after it is."""
    envelopes = CALL.envelopes()
    if door == "http":
        await api.create()
        await api.send(*envelopes, query="?dialect=nova-sonic")
    elif door == "bare":
        async with connect(f"ws://{app.ingest_address}/v1/ingest/nova-sonic?session_id=s") as socket:
            for envelope in envelopes:
                await socket.send(json.dumps(envelope["frame"]))
        await all_connections_handled()
    else:
        async with connected_producer(app) as producer:
            await producer.open(dialect="nova-sonic")
            await producer.send(*({**one, "seq": seq} for seq, one in enumerate(envelopes, 1)))
            await producer.expect_ack(len(envelopes))
    kept = await journal(api)
    assert "and my invoice?" in kept
    assert not any(text in kept for text in NOT_SAID)


async def test_typed_text_over_another_connection(app: App, api: RestClient) -> None:
    """The audio began over a connection that was lost; a text that is typed then is kept all the same."""
    await api.create()
    await api.send(audio(), query="?dialect=nova-sonic")
    await api.contents()
    await api.send(*content("t", "typed"), query="?dialect=nova-sonic")
    assert ["typed"] == [one["content"] for one in await api.contents()]


async def test_resend_over_another_connection_is_no_conflict(app: App) -> None:
    """A text that was a history is known as something else when its frames come again after the audio."""
    frames: list[Any] = [*content("t", "old"), audio()]
    numbered = [{"frame": frame, "seq": seq} for seq, frame in enumerate(frames, 1)]
    for _ in range(2):
        async with connected_producer(app) as producer:
            await producer.open(dialect="nova-sonic")
            await producer.send(*numbered)
            await producer.expect_ack(len(numbered))
