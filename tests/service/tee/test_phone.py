"""A phone's media stream beside a connection to a model, each with a tee, in one session (docs/phone.md)."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from websockets.asyncio.client import connect

import voicemem
from tests.support.callers.rest import RestClient
from tests.support.callers.tees import Clock, vendor_at
from voicemem.app import App
from voicemem.client import Client
from voicemem.protocol.types import JsonObject

TEXT = "In Oslo it rains until the evening, and tomorrow the sun comes out."
BEGAN = 1_790_000_000_000
PARAMETERS = {"customParameters": {"caller": "+4930123456"}}
START = {"event": "start", "streamSid": "MZ1", "start": {"callSid": "CA1", "streamSid": "MZ1", **PARAMETERS}}
CLEAR = {"event": "clear", "streamSid": "MZ1"}
Crosses = Callable[[JsonObject], Awaitable[None]]


def media(ms: int) -> JsonObject:
    return {"event": "media", "streamSid": "MZ1", "media": {"payload": audio(ms)}}


def audio(ms: int) -> str:
    return base64.b64encode(bytes([0x7F]) * ms * 8).decode()


def spoken(item: str, total_ms: int) -> list[JsonObject]:
    """A reply of OpenAI's, in mu-law."""
    about = {"item_id": item, "response_id": f"resp_{item}"}
    content = [{"type": "output_audio", "transcript": TEXT}]
    whole = {"id": item, "type": "message", "role": "assistant", "content": content}
    return [
        {"type": "response.created", "response": {"id": f"resp_{item}", "conversation_id": "c"}},
        {"type": "response.output_audio_transcript.delta", "delta": TEXT, **about},
        {"type": "response.output_audio.delta", "delta": audio(total_ms), **about},
        {"type": "response.done", "response": {"id": f"resp_{item}", "status": "completed", "output": [whole]}},
    ]


def crossing(sender: Any, receiver: Any) -> Crosses:
    """Sends a message, and waits until it has arrived."""

    async def cross(frame: JsonObject) -> None:
        await sender.send(json.dumps(frame))
        assert json.loads(await receiver.recv()) == frame

    return cross


async def test_what_the_phone_has_played_is_what_was_heard(app: App, client: Client, clock: Clock) -> None:
    """OpenAI's reply was cut where the phone was; nothing of the audio or of the caller's number is in the journal."""
    async with (
        vendor_at() as (url, vendor),
        vendor_at() as (far_url, far),
        connect(url, max_size=None) as connection,
        connect(far_url, max_size=None) as phone,
    ):
        voicemem.tee(connection, client, "call", dialect="openai-realtime")
        assert voicemem.tee.phone(phone, voicemem.memory_of(connection)) is phone
        handset, model = await far.connected, await vendor.connected
        from_model, from_phone, to_phone = (
            crossing(model, connection),
            crossing(handset, phone),
            crossing(phone, handset),
        )
        clock.now = BEGAN
        await from_phone(START)
        output = {"format": {"type": "audio/pcmu"}}
        await from_model({"type": "session.created", "session": {"id": "s", "audio": {"output": output}}})
        for frame in spoken("item_1", 4_000):
            await from_model(frame)
        await to_phone(media(4_000))
        clock.now = BEGAN + 2_000
        await to_phone(CLEAR)
        await voicemem.memory_of(phone).context()  # all of it is stored now
        await voicemem.memory_of(connection).aclose()
        await voicemem.memory_of(phone).aclose()
    [reply] = await RestClient(app).contents("call")
    assert reply["metadata"]["interrupted"]
    assert reply["content"] == "In Oslo it rains until the "
    journal = json.dumps(await RestClient(app).journal("call"))
    assert '"playback"' in journal
    assert not any(word in journal for word in ("+49", "customParameters", '"media"', audio(20)[:16]))


async def test_session_of_the_call(client: Client) -> None:
    """Without an id the session is that of the call, which the start of the stream says."""
    async with vendor_at() as (url, far), connect(url) as phone:
        voicemem.tee.phone(phone, client)
        memory = voicemem.memory_of(phone)
        await crossing(await far.connected, phone)(START)
        memory.queue.finish()
        assert memory.session_id == "CA1"
        await memory.aclose()


async def test_memory_without_a_session(client: Client) -> None:
    """Another connection's memory has to know its session."""
    async with vendor_at() as (url, _), connect(url) as connection, connect(url) as phone:
        voicemem.tee(connection, client, dialect="openai-realtime")
        with pytest.raises(ValueError, match="session_id"):
            voicemem.tee.phone(phone, voicemem.memory_of(connection))
        await voicemem.memory_of(connection).aclose()
