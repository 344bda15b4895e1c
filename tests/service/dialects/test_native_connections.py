"""Senders that know nothing of voicemem: which session they mean, what they may send, and how their calls end."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import logging

import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tests.support.callers.ingest import refusal
from tests.support.callers.producer import Producer
from tests.support.callers.rest import RestClient, client_with_key, make_key
from tests.support.services import Serve
from tests.support.waiting import all_connections_handled, eventually
from voicemem.app import App
from voicemem.dialects.dialect import session_id_of
from voicemem.protocol.types import JsonObject
from voicemem.sessions.lifecycle import LEFT_MS

PATH = "/v1/ingest/openai-realtime"
CREATED = {"type": "session.created", "session": {"id": "sess/1 a"}}


def transcript(item: str, text: str) -> JsonObject:
    """A frame that says what the user said."""
    kind = "conversation.item.input_audio_transcription.completed"
    return {"type": kind, "event_id": f"e-{item}", "item_id": item, "transcript": text}


async def texts(api: RestClient, session_id: str = "s") -> list[str]:
    """What the memory of a session says; nothing while there is none."""
    answered = await api.get(f"/v1/sessions/{session_id}/history")
    return [one["content"] for one in answered.json["contents"]] if answered.status == 200 else []


async def test_the_vendors_id_is_the_sessions(app: App, api: RestClient) -> None:
    """Frames wait for the one that says the vendor's id; one with odd characters gets a digest of the whole."""
    async with connect(f"ws://{app.ingest_address}{PATH}") as socket:
        for frame in (transcript("a", "One."), CREATED, transcript("b", "Two.")):
            await socket.send(json.dumps(frame))
        await eventually(["One. Two."], lambda: texts(api, session_id_of("sess/1 a")))


async def test_a_call_without_an_id_gets_one(app: App, api: RestClient) -> None:
    """A call that is over before it says its id is kept under one that the service makes."""
    async with connect(f"ws://{app.ingest_address}{PATH}") as socket:
        await socket.send(json.dumps(transcript("a", "One.")))

    async def all_texts() -> list[list[str]]:
        listed = (await api.get("/v1/sessions")).json["sessions"]
        return [await texts(api, one["session_id"]) for one in listed]

    await eventually([["One."]], all_texts)


async def test_many_frames_do_not_wait_for_an_id(app: App, api: RestClient) -> None:
    """After 64 frames without the vendor's id the service makes one."""
    async with connect(f"ws://{app.ingest_address}{PATH}") as socket:
        for number in range(64):
            await socket.send(json.dumps(transcript(f"i{number}", "x")))
        await eventually(1, lambda: count_sessions(api))


async def test_large_frames_do_not_wait_for_an_id(app: App, api: RestClient) -> None:
    """Nor do those that are 1 MiB together."""
    async with connect(f"ws://{app.ingest_address}{PATH}") as socket:
        for number in range(6):
            await socket.send(json.dumps(transcript(f"i{number}", "x" * 200_000)))
        await eventually(1, lambda: count_sessions(api))


async def test_frames_of_all_connections_wait_within_one_bound(app: App, api: RestClient) -> None:
    """The one that goes beyond it waits no longer; nothing is lost, and what is over leaves room for others."""
    app.ingest.most_waiting_frame_bytes = 3_000
    url = f"ws://{app.ingest_address}{PATH}"
    async with connect(url) as first:
        await first.send(json.dumps(transcript("a", "x" * 2_000)))
        await eventually(True, lambda: has_waiting(app, 2_000))
        async with connect(url) as second:
            await second.send(json.dumps(transcript("b", "y" * 2_000)))
            await eventually(1, lambda: count_sessions(api))
            await eventually(True, lambda: has_waiting(app, 2_000))
    await eventually(2, lambda: count_sessions(api))
    await eventually(True, lambda: asyncio.sleep(0, app.ingest.waiting_frame_bytes == 0))


async def has_waiting(app: App, size: int) -> bool:
    return size <= app.ingest.waiting_frame_bytes <= size + 500


async def count_sessions(api: RestClient) -> int:
    return len((await api.get("/v1/sessions")).json["sessions"])


HOSTILE: list[str | bytes] = [
    "{",
    "",
    "null",
    "[1,2]",
    "\ud7ff",
    '{"type":"hologram","x":1}',
    '{"type":"user_transcript","user_transcription_event":{"user_transcript":"Hi"}}',
    '{"frame":{"type":"error"},"seq":"x"}',
    '{"frame":5}',
    '{"type":"response.output_text.delta","item_id":1,"delta":"x"}',
    '{"type":"conversation.item.truncate","item_id":9,"audio_end_ms":99999999999999999999}',
    '{"type":"conversation.item.truncate","audio_end_ms":9999999999999999}',
    "[" * 100_000,
    '{"x":[' + "{}," * 200_000 + "{}]}",
    b"\x00\xff" * 1000,
]


async def test_nothing_that_is_sent_ends_the_call(app: App, api: RestClient) -> None:
    """Frames of other vendors, broken JSON, audio and new types are counted, not answered, and the call goes on."""
    async with connect(f"ws://{app.ingest_address}{PATH}?session_id=s") as socket:
        for message in HOSTILE * 100:
            await socket.send(message)
        await socket.send(json.dumps(transcript("a", "Still there.")))
        await eventually(["Still there."], lambda: texts(api))
        await socket.close()
        assert [message async for message in socket] == []
    metrics = (await api.get("/metrics")).body.decode()
    found = {line.rsplit(" ", 1)[0]: line for line in metrics.splitlines() if line.startswith("voicemem_frames_total")}
    assert 'voicemem_frames_total{dialect="openai-realtime",result="malformed"}' in found
    assert len(await api.journal()) == 1


async def test_large_frames_are_reduced(app: App, api: RestClient) -> None:
    """A frame of nearly 16 MiB is taken, and only the count of its audio is kept."""
    audio = {"type": "response.output_audio.delta", "item_id": "a", "response_id": "r", "delta": "A" * 16_000_000}
    async with connect(f"ws://{app.ingest_address}{PATH}?session_id=s", max_size=None) as socket:
        await socket.send(json.dumps(audio))
        await socket.send(json.dumps(transcript("a", "Hi.")))
        await eventually(["Hi."], lambda: texts(api))
        rows = await api.journal()
        assert rows[0]["event"]["frame"]["audio_bytes"] == 12_000_000


async def test_repeats_count_once(app: App, api: RestClient) -> None:
    """A frame whose id came before changes nothing, also with other content, and is not journaled again."""
    async with connect(f"ws://{app.ingest_address}{PATH}?session_id=s") as socket:
        await socket.send(json.dumps(transcript("a", "One.")))
        await eventually(["One."], lambda: texts(api))
        await socket.send(json.dumps(transcript("a", "Other.")))
        await socket.send(json.dumps(transcript("b", "Two.")))
        await eventually(["One. Two."], lambda: texts(api))
    assert ["e-a", "e-b"] == [row["event"]["id"] for row in await api.journal()]
    assert 'result="repeated"} 1.0' in (await api.get("/metrics")).body.decode()


async def test_our_subprotocol_is_answered(app: App) -> None:
    """A sender that offers `voicemem.v1` gets `session.ready`, acks for its seqs, and errors."""
    address = f"ws://{app.ingest_address}{PATH}?session_id=s&producer=tee"
    async with connect(address, subprotocols=[Subprotocol("voicemem.v1")]) as socket:
        producer = Producer(socket)
        await producer.expect("session.ready", session_id="s", producer="tee")
        await producer.send({"frame": transcript("a", "One."), "seq": 1}, {"frame": {"type": "error"}, "seq": 2})
        await producer.expect_ack(2)
        await producer.send({"frame": {"type": 1}, "seq": 3})
        await producer.expect_error("malformed_frame", seq=3)


async def test_a_session_token_may_stand_in_the_query(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """A token of this session opens it; a key and another session's token do not; none of them is logged."""
    app = await serve()
    admin = await client_with_key(app, "admin")
    for name in ("s", "other"):
        await admin.create(name)
    token = (await admin.post("/v1/sessions/s/tokens")).json["token"]
    key = await make_key(app, "ingest")
    with caplog.at_level(logging.DEBUG, "voicemem"):
        async with connect(f"ws://{app.ingest_address}{PATH}?token={token}") as socket:
            await socket.send(json.dumps(transcript("a", "One.")))
            await eventually(["One."], lambda: texts(admin))
        assert (403, "forbidden") == await refusal(app, f"{PATH}?session_id=other&token={token}")
        assert (400, "invalid_query") == await refusal(app, f"{PATH}?session_id=s&token={key}")
    assert token not in caplog.text
    assert key not in caplog.text


@pytest.mark.parametrize("query", ["session_id=a%20b", "x=1", "session_id=a&session_id=b", "typed=no", "producer="])
async def test_odd_queries_are_refused(app: App, query: str) -> None:
    """A query that is not understood is refused at the handshake."""
    assert (400, "invalid_query") == await refusal(app, f"{PATH}?{query}")


async def test_a_connection_that_goes_ends_the_call(app: App, api: RestClient) -> None:
    """A sender that closes and does not come back has ended its call; whoever comes back goes on with it."""
    address = f"ws://{app.ingest_address}{PATH}?session_id=s"
    presence = app.services.presence
    async with connect(address) as socket:
        await socket.send(json.dumps(transcript("a", "One.")))
        await eventually(["One."], lambda: texts(api))

    async def left() -> int:
        return len(presence.left)

    await eventually(1, left)
    presence.left = {name: since - LEFT_MS for name, since in presence.left.items()}
    await eventually("ended", lambda: api.state())
    assert "closed" == (await api.session())["reason"]
    async with connect(address) as socket:
        await socket.send(json.dumps(transcript("b", "Two.")))
        await eventually(["One. Two."], lambda: texts(api))
        assert "running" == await api.state()


async def test_a_sender_that_comes_back_at_once_goes_on(app: App, api: RestClient) -> None:
    """Within 5 s of its close nothing is closed, and what a connection that is there has left before does not count."""
    address = f"ws://{app.ingest_address}{PATH}?session_id=s"
    presence = app.services.presence
    async with connect(address) as socket:
        await socket.send(json.dumps(transcript("a", "One.")))
        await eventually(["One."], lambda: texts(api))
    await all_connections_handled()
    async with connect(address) as socket:
        await socket.send(json.dumps(transcript("b", "Two.")))
        await eventually(["One. Two."], lambda: texts(api))
        presence.left = {name: since - LEFT_MS for name, since in presence.left.items()}
        await presence.close_left()
        assert "running" == await api.state()
    assert [] == [row for row in await api.journal() if row["event"]["type"].startswith("session.")]


async def test_a_lost_connection_does_not_end_the_call(app: App, api: RestClient) -> None:
    """A connection that breaks off without a close is expected back, as that of any other producer."""
    async with connect(f"ws://{app.ingest_address}{PATH}?session_id=s") as socket:
        await socket.send(json.dumps(transcript("a", "One.")))
        await eventually(["One."], lambda: texts(api))
        socket.transport.abort()
    await all_connections_handled()
    assert {} == app.services.presence.left
    assert "running" == await api.state()


async def test_typed_texts_may_be_left_out(app: App, api: RestClient) -> None:
    """`typed=ignore` leaves out what an app adds for the LLM."""
    item = {"id": "t", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "context"}]}
    async with connect(f"ws://{app.ingest_address}{PATH}?session_id=s&typed=ignore") as socket:
        await socket.send(json.dumps({"type": "conversation.item.added", "item": item}))
        await socket.send(json.dumps(transcript("a", "One.")))
        await eventually(["One."], lambda: texts(api))
