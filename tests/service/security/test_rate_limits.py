"""Rates of keys and tokens on the running service: who is over them is told when to come back, and loses nothing."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode

from tests.support.callers.producer import Producer, connected_producer
from tests.support.callers.rest import RestClient, bearer_header, client_with_key, make_key
from tests.support.events import final_transcript
from tests.support.services import ANY_PORT, Serve
from voicemem.app import running
from voicemem.client import Client
from voicemem.client.transport.connection import WebsocketConnection
from voicemem.config.service import Settings
from voicemem.protocol.types import JsonObject


async def test_requests_over_the_rate_are_told_when_to_come_back(serve: Serve) -> None:
    """429 with whole seconds in Retry-After, for this key alone; when they are over it is served again."""
    app = await serve(request_rate=1.0)
    busy, other = await client_with_key(app, "read"), await client_with_key(app, "read")
    answers = [await busy.get("/v1/sessions") for _ in range(8)]
    assert [200, 200] == [answered.status for answered in answers[:2]]
    assert (429, "rate_limited") == answers[-1].problem
    assert "1" == answers[-1].headers["Retry-After"]
    assert 200 == (await other.get("/v1/sessions")).status
    await asyncio.sleep(1.1)
    assert 200 == (await busy.get("/v1/sessions")).status


async def test_handshakes_are_requests(serve: Serve) -> None:
    """A client that connects in a loop is held off before the upgrade."""
    app = await serve(request_rate=0.1)
    key = await make_key(app, "ingest")
    async with connected_producer(app, bearer_header(key)):
        pass
    with pytest.raises(InvalidStatus) as refused:
        async with connected_producer(app, bearer_header(key)):
            pass
    response = refused.value.response
    assert (429, True) == (response.status_code, 1 <= int(response.headers["Retry-After"]) <= 10)


async def test_a_token_has_a_share_of_its_keys_rate(serve: Serve) -> None:
    """Who holds a token does not use up the rate of who signed it."""
    app = await serve(request_rate=20.0)
    api = await client_with_key(app, "admin")
    await api.create()
    token = (await api.post("/v1/sessions/s/tokens")).json["token"]
    answers = [await RestClient(app, token).get("/v1/sessions/s") for _ in range(8)]
    assert (429, "rate_limited") == answers[-1].problem
    assert 200 == (await api.get("/v1/sessions/s")).status


@pytest.mark.parametrize("together", [True, False])
async def test_events_over_the_rate_wait_and_are_not_lost(serve: Serve, together: bool) -> None:
    """The sender is told once in a while; everything is stored, in order, at the rate of the key."""
    app = await serve(event_rate=400.0)
    key = await make_key(app, "ingest", "read")
    frames: list[JsonObject] = []
    async with connected_producer(app, bearer_header(key)) as producer:
        await producer.open("s")
        began = asyncio.get_running_loop().time()
        for last in range(200, 1601, 200):  # what has come to the server at once is taken, and waited for afterwards
            events = [final_transcript(seq) for seq in range(last - 199, last + 1)]
            await (producer.send_together if together else producer.send)(*events)
            while not frames or frames[-1].get("seq") != last:
                frames.append(await producer.next())
        took_s = asyncio.get_running_loop().time() - began
    told = [frame for frame in frames if frame["type"] == "error"]
    assert {"rate_limited"} == {frame["code"] for frame in told}
    assert not [frame for frame in told if "seq" in frame]
    assert len(told) <= took_s + 1
    assert list(range(1, 1601)) == [row["seq"] for row in await RestClient(app, key).journal()]
    assert took_s > 1  # 800 at once, and 400 a second


@pytest.mark.parametrize("sends", ["single frames", "arrays"])
async def test_a_time_takes_what_the_rate_allows(tmp_path: Path, sends: str) -> None:
    """However much a sender pushes, and however much of it lies in buffers: 40 at once, then 20 a second."""
    clock = [1_790_000_000_000]
    settings = Settings(store=f"sqlite:{tmp_path / 'calls.db'}", rest=ANY_PORT, ingest=ANY_PORT, event_rate=20.0)
    async with running(settings, lambda: clock[0]) as app:
        key = await make_key(app, "ingest", "read")
        async with connected_producer(app, bearer_header(key)) as producer:
            await producer.open("s")
            events = [final_transcript(seq) for seq in range(1, 3001)]
            lots = [events[at : at + 20] for at in range(0, 3000, 20)] if sends == "arrays" else []
            pushing = asyncio.create_task(push(producer, lots) if lots else producer.send(*events))
            api, over = RestClient(app, key), 20 if lots else 1  # what comes in one frame is not parted
            for second in range(6):
                await stored(api, 39 + 20 * second)
                await asyncio.sleep(0.2)
                assert len(await api.journal()) <= 40 + 20 * second + over
                clock[0] += 1000
            pushing.cancel()
            await asyncio.wait([pushing])
            producer.socket.transport.abort()  # a close would wait behind all that was pushed


async def stored(api: RestClient, events: int) -> None:
    """Wait for so many events of the session."""
    async with asyncio.timeout(20):
        while True:
            if len(await api.journal()) >= events:
                return
            await asyncio.sleep(0.05)


async def push(producer: Producer, lots: Iterable[list[JsonObject]]) -> None:
    for lot in lots:
        await producer.send_together(*lot)


async def test_what_had_to_wait_is_stored_when_the_service_stops(tmp_path: Path) -> None:
    """What had come before a stop is on disk after it, whatever the rate."""
    settings = Settings(store=f"sqlite:{tmp_path / 'calls.db'}", rest=ANY_PORT, ingest=ANY_PORT, event_rate=2.0)
    async with running(settings) as app:
        key = await make_key(app, "ingest", "read")
        async with connected_producer(app, bearer_header(key)) as producer:
            await producer.open("s")
            frames = b"".join(plain_frame(final_transcript(seq)) for seq in range(1, 31))
            producer.socket.transport.write(frames)
            while (await producer.next()).get("code") != "rate_limited":
                pass
            assert len(await RestClient(app, key).journal()) < 30
            await app.stop()
    async with running(settings) as app:
        assert list(range(1, 31)) == [row["seq"] for row in await RestClient(app, key).journal()]


def plain_frame(event: JsonObject) -> bytes:
    """A masked text frame, so that many go out in one piece."""
    return Frame(Opcode.TEXT, json.dumps(event).encode()).serialize(mask=True)


async def test_nobody_else_waits(serve: Serve) -> None:
    """While one key is held back, another's events are acknowledged."""
    app = await serve(event_rate=5.0)
    async with (
        connected_producer(app, bearer_header(await make_key(app, "ingest"))) as busy,
        connected_producer(app, bearer_header(await make_key(app, "ingest"))) as other,
    ):
        await busy.open("busy")
        await other.open("other")
        await busy.send(*(final_transcript(seq) for seq in range(1, 100)))
        while (await busy.next()).get("code") != "rate_limited":
            pass
        await other.store(final_transcript(1))


async def test_the_connection_of_a_held_key_can_be_closed(serve: Serve) -> None:
    """A revoked key does not hide behind its rate."""
    app = await serve(event_rate=0.5)
    admin, key = await client_with_key(app, "admin"), await make_key(app, "ingest")
    async with connected_producer(app, bearer_header(key)) as producer:
        await producer.open("s")
        await producer.send(*(final_transcript(seq) for seq in range(1, 20)))
        while (await producer.next()).get("code") != "rate_limited":
            pass
        assert 204 == (await admin.delete(f"/v1/keys/{key.split('_')[1]}")).status
        async with asyncio.timeout(5):
            code, frames = await producer.closed()
    assert (1008, "unauthorized") == (code, frames[-1]["code"])


async def test_events_over_http_are_counted(serve: Serve) -> None:
    """A body over the rate is refused whole, and taken when it comes again."""
    app = await serve(event_rate=10.0)
    api = await client_with_key(app, "admin")
    await api.create()
    assert 41 == (await api.send(*(final_transcript(seq) for seq in range(1, 41))))["next_seq"]
    again = [final_transcript(seq) for seq in range(41, 43)]
    answered = await api.post("/v1/sessions/s/events", again)
    assert (429, "rate_limited") == answered.problem
    await asyncio.sleep(int(answered.headers["Retry-After"]))
    assert 43 == (await api.send(*again))["next_seq"]


@pytest.mark.parametrize("key_in", ["header", "frame"])
async def test_bytes_over_the_rate_wait_and_are_not_lost(serve: Serve, key_in: str) -> None:
    """A key with a rate of bytes of its own is held to it on a websocket; everything is stored."""
    app = await serve()
    api = await client_with_key(app, "admin")
    made = (await api.post("/v1/keys", {"scopes": ["ingest"], "bytes_per_second": 4000})).json
    assert 4000 == made["bytes_per_second"]
    async with connected_producer(app, bearer_header(made["key"]) if key_in == "header" else {}) as producer:
        if key_in == "frame":
            await producer.send({"type": "auth", "token": made["key"]})
        await producer.open("s")
        began = asyncio.get_running_loop().time()
        events = [final_transcript(seq, text="x" * 1000) for seq in range(1, 15)]
        frames: list[JsonObject] = []
        for event in events:
            await producer.send(event)
        while not frames or frames[-1].get("seq") != 14:
            frames.append(await producer.next())
        took_s = asyncio.get_running_loop().time() - began
    assert {"rate_limited"} == {frame["code"] for frame in frames if frame["type"] == "error"}
    assert 14 == len(await api.journal())
    assert took_s > 1  # 8000 at once, and 4000 a second


async def test_bytes_over_http_are_counted(serve: Serve) -> None:
    """A body after one that used up the rate is refused whole, also when its events are few."""
    app = await serve(byte_rate=1000.0)
    api = await client_with_key(app, "admin")
    await api.create()
    await api.send(final_transcript(1, text="x" * 3000))
    refused = await api.post("/v1/sessions/s/events", [final_transcript(2)])
    assert (429, "rate_limited") == refused.problem
    assert 1 <= int(refused.headers["Retry-After"]) <= 3


async def test_without_keys_there_is_no_rate(serve: Serve) -> None:
    """A service that is open to loopback holds no one back."""
    app = await serve(request_rate=1.0, event_rate=1.0)
    api = RestClient(app)
    await api.create()
    assert 101 == (await api.send(*(final_transcript(seq) for seq in range(1, 101))))["next_seq"]
    assert {200} == {(await api.get("/v1/sessions")).status for _ in range(20)}


async def test_the_client_gets_everything_through(serve: Serve) -> None:
    """The Python client waits with the server, and does not take it for a failure."""
    app = await serve(event_rate=100.0)
    key = await make_key(app, "ingest", "read")
    async with Client(f"ws://{app.ingest_address}", key=key) as client:
        session = await client.open("s")
        for number in range(500):
            session.send({"type": "asr", "turn_id": 1, "text": f"{number}", "final": True})
            await asyncio.sleep(0.001)
        link = client._transport
        assert isinstance(link, WebsocketConnection)
        await session.flush()
        assert link.connection_error is None
    assert 500 == len(await RestClient(app, key).journal())
