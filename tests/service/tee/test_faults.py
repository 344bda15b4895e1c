"""A tee whose memory, vendor or app does what it should not: the call goes on, and the log says what is missing."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websocket
from websockets.exceptions import ConnectionClosed

import voicemem
from tests.support.callers.client_sessions import REFUSING, client_for, client_to, in_time, options
from tests.support.callers.rest import RestClient, wait_until_closed
from tests.support.callers.tees import vendor_at
from tests.support.servers.network_proxy import NetworkProxy
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.client import Client, Closed
from voicemem.dialects.dialect import session_id_of
from voicemem.integrations.tee.memory import Times
from voicemem.protocol.types import JsonObject

MIB = 1024 * 1024
KEY = "an admin key for tests"


@asynccontextmanager
async def call() -> AsyncIterator[tuple[ClientConnection, ServerConnection]]:
    """A connection, and the vendor's end of it."""
    async with vendor_at() as (url, vendor), connect(url, max_size=None) as connection:
        yield connection, await vendor.connected


async def pass_on(frame: Any, sender: Any, receiver: Any) -> None:
    """Send a frame, and see it arrive as it was."""
    message = frame if isinstance(frame, str | bytes) else json.dumps(frame)
    sending = asyncio.create_task(sender.send(message))  # a large one needs someone who receives
    assert message == await receiver.recv()
    await sending


def reply(number: int, item: str = "r") -> JsonObject:
    """A piece of a reply's text."""
    return {
        "type": "response.output_text.delta",
        "event_id": f"e{number}",
        "response_id": "resp",
        "item_id": item,
        "delta": f"{number} ",
    }


def logged(caplog: pytest.LogCaptureFixture, *names: str) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name in names and one.levelno >= logging.WARNING]


async def texts(app: App, session_id: str = "call") -> list[str]:
    """Everything that was to be said."""
    contents = await RestClient(app).contents(session_id, query="?open=true")
    return [one["metadata"].get("original", one["content"]) for one in contents]


async def test_what_is_no_frame_is_counted(app: App, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Truncated JSON, bytes, other vendors' frames, numbers beyond all limits: what follows is remembered."""
    async with call() as (connection, vendor):
        voicemem.tee(connection, client, "call", dialect="openai-realtime")
        wrong = [
            '{"type": "response.output_text.del',
            "[]",
            "null",
            '{"type": 7}',
            '{"type": "response.output_text.delta", "item_id": {}, "delta": "x"}',
            '{"type": "error", "x": 1e}',
            "[" * 5_000,
            '{"a":' * 5_000,
            b"\x00\x01\x02",
            b"{\xff\xfe",
            b"",
            json.dumps({"event": "media", "media": {}}),
        ]
        for message in wrong:
            await pass_on(message, vendor, connection)
            await pass_on(message, connection, vendor)
        await pass_on({"type": "a.new.one"}, vendor, connection)
        await pass_on(reply(1), vendor, connection)
        await pass_on(reply(2), connection, vendor)  # the other side sends these
        await pass_on({"type": "conversation.item.create", "item": {}}, connection, vendor)
        remembered = voicemem.memory_of(connection)
        await remembered.aclose()
        assert ["1 "] == await texts(app)
        assert {"malformed": 2 * len(wrong) + 1, "unknown": 1, "taken": 1, "ignored": 1} == remembered.counts
        assert 0 == remembered.dropped
    (line,) = logged(caplog, "voicemem.integrations")
    assert "A message is not a frame of openai-realtime" in line


async def test_large_frames(app: App, client: Client) -> None:
    """Frames up to 16 MiB are reduced, also many at once; larger ones are left out. All of them reach the app."""
    async with call() as (connection, vendor):
        voicemem.tee(connection, client, "call", dialect="openai-realtime")
        audio = base64.b64encode(bytes(11 * MIB)).decode()
        delta = {"type": "response.output_audio.delta", "item_id": "r", "response_id": "resp", "delta": audio}
        await pass_on(reply(1), vendor, connection)
        for _ in range(3):
            await pass_on(delta, vendor, connection)
        await pass_on({"type": "input_audio_buffer.append", "audio": audio}, connection, vendor)
        await pass_on({**delta, "more": "x" * 2 * MIB}, vendor, connection)
        await pass_on(reply(2), vendor, connection)
        remembered = voicemem.memory_of(connection)
        await remembered.aclose()
    assert ["1 2 "] == await texts(app)
    assert {"taken": 5, "ignored": 1, "malformed": 1} == remembered.counts
    frames = [row["event"].get("frame") or {} for row in await RestClient(app).journal("call")]
    assert 33 * MIB == sum(frame.get("audio_bytes", 0) for frame in frames)


async def test_text_that_is_too_long_to_keep(app: App, client: Client) -> None:
    """A frame of which more than 1 MiB would be kept is dropped and counted; the others are stored."""
    async with call() as (connection, vendor):
        voicemem.tee(connection, client, "call", dialect="openai-realtime")
        await pass_on(reply(1), vendor, connection)
        await pass_on({**reply(2), "delta": "x" * 2 * MIB}, vendor, connection)
        await pass_on(reply(3), vendor, connection)
        remembered = voicemem.memory_of(connection)
        await remembered.aclose()
    assert ["1 3 "] == await texts(app)
    assert 1 == remembered.dropped


async def test_messages_in_pieces(app: App, client: Client) -> None:
    """`websockets` can send and receive a message in pieces; the copy is of the whole."""

    async def pieces(text: str) -> AsyncIterator[str]:
        for character in text:
            yield character

    async with call() as (connection, vendor):
        voicemem.tee(connection, client, "call", dialect="conversation-relay")
        first = json.dumps({"type": "text", "token": "One, ", "last": False})
        second = json.dumps({"type": "text", "token": "two.", "last": True})
        await connection.send(iter(first))
        await connection.send(pieces(second))
        await connection.send(json.dumps({"type": "language"}).encode(), text=True)
        assert [first, second, '{"type": "language"}'] == [await vendor.recv() for _ in range(3)]
        await vendor.send(iter(prompt := json.dumps({"type": "prompt", "voicePrompt": "And?", "last": True})))
        assert prompt == "".join([str(piece) async for piece in connection.recv_streaming()])
        with pytest.raises(TypeError, match="dict-like"):
            await connection.send({"type": "text"})
        remembered = voicemem.memory_of(connection)
        await remembered.aclose()
    assert ["One, two.", "And?"] == await texts(app)
    assert {"taken": 3, "ignored": 1} == remembered.counts


async def test_binary_messages_may_be_json(app: App, client: Client) -> None:
    """Gemini sends its JSON in binary messages; `recv(decode=False)` gives text as bytes."""
    async with call() as (connection, vendor):
        voicemem.tee(connection, client, "call", dialect="gemini-live")
        heard = {"serverContent": {"inputTranscription": {"text": "Hello?"}}}
        said = {"serverContent": {"outputTranscription": {"text": "Hi."}}}
        await pass_on(json.dumps(heard).encode(), vendor, connection)
        await vendor.send(json.dumps(said))
        assert json.dumps(said).encode() == await connection.recv(decode=False)
        await voicemem.memory_of(connection).aclose()
    assert ["Hello?", "Hi."] == await texts(app)


# The memory


async def test_a_memory_that_is_away_costs_the_call_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """No one listens: frames pass, the context is None at once, closing ends in its time, and the log says so once."""
    async with call() as (connection, vendor), in_time():
        voicemem.tee(connection, f"ws://{REFUSING}", "call", dialect="openai-realtime", rest_url=f"http://{REFUSING}")
        for number in range(100):
            await pass_on(reply(number), vendor, connection)
        remembered = voicemem.memory_of(connection)
        assert (None, None) == (await remembered.context(), remembered.session)
        await remembered.aclose(timeout=0.1)
    assert 0 == remembered.dropped
    assert [] == [line for line in logged(caplog, "voicemem.integrations") if "100" in line]


async def test_a_full_buffer_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """What does not fit while the memory is away is dropped and counted, by events and by bytes; the end is kept."""
    dropped: list[str] = []
    for limits in ({"max_events": 10}, {"max_bytes": 1_000}):
        client = Client(
            f"ws://{REFUSING}",
            options=options(on_dropped=lambda session, producer, error: dropped.append(error.code), **limits),
        )
        async with call() as (connection, vendor), in_time():
            voicemem.tee(connection, client, "call", dialect="openai-realtime")
            for number in range(100):
                await pass_on(reply(number), vendor, connection)
            remembered = voicemem.memory_of(connection)
            await remembered.aclose(timeout=0)
            assert 80 < remembered.dropped < 100
        assert ["buffer_full"] * remembered.dropped == dropped
        dropped.clear()
        await client.close()
    assert len([line for line in logged(caplog, "voicemem.client") if "was not taken" in line]) < 20


async def test_too_many_frames_at_once_are_counted(app: App, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """A burst that comes without a pause is bounded too, and its order stays."""
    async with call() as (connection, _):
        voicemem.tee(connection, client, "call", dialect="openai-realtime")
        remembered = voicemem.memory_of(connection)
        for number in range(10_050):
            remembered.received(json.dumps(reply(number)))
        assert 50 == remembered.dropped
        await remembered.aclose(timeout=30)
    assert ["".join(f"{number} " for number in range(10_000))] == await texts(app)
    assert any("more of them came than could be reduced" in line for line in logged(caplog, "voicemem.integrations"))


async def test_a_wrong_key_is_said_once(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """The call goes on without a memory; what it would have had is counted."""
    app = await serve(admin_key=KEY)
    async with call() as (connection, vendor):
        voicemem.tee(connection, f"ws://{app.ingest_address}", "call", dialect="openai-realtime", api_key="vm_wrong")
        remembered = voicemem.memory_of(connection)

        async def refused() -> bool:
            return remembered.background is not None and remembered.background.error is not None

        await eventually(True, refused)
        for number in range(5):
            await pass_on(reply(number), vendor, connection)
        await remembered.aclose()
        assert remembered.dropped >= 5
    (line,) = logged(caplog, "voicemem.integrations")
    assert line.startswith("This call is not remembered. Session call: ")


# The session and its end


async def test_the_vendor_says_the_session(app: App, client: Client) -> None:
    """Without an id the vendor's own is taken, made into one that a session may have; before, it is not known."""
    async with call() as (connection, vendor):
        voicemem.tee(connection, client, dialect="conversation-relay")
        remembered = voicemem.memory_of(connection)
        remembered.send({"type": "metric", "name": "ringing", "value": 1, "turn_id": 1})
        assert remembered.session_id is None
        await pass_on({"type": "setup", "callSid": "CA/1"}, vendor, connection)
        await pass_on({"type": "prompt", "voicePrompt": "Hello?"}, vendor, connection)
        await remembered.aclose()
    assert session_id_of("CA/1") == remembered.session_id
    assert ["Hello?"] == await texts(app, session_id_of("CA/1"))


async def test_a_vendor_that_says_no_session(app: App, client: Client) -> None:
    """After 64 frames, some time, or the end of the call, it gets an id of its own."""
    for frames, wait_s in ((64, 1_000.0), (1, 0.05), (2, 1_000.0)):
        async with call() as (connection, vendor):
            voicemem.tee(connection, client, dialect="openai-realtime")
            remembered = voicemem.memory_of(connection)
            remembered.times = Times(session_id_s=wait_s)
            for number in range(frames):
                await pass_on(reply(number), vendor, connection)
            if frames != 2:
                await eventually(True, lambda one=remembered: has_id(one))  # type: ignore[misc]
            await remembered.aclose()
            assert remembered.session_id
            assert 1 == len(await texts(app, remembered.session_id))


async def has_id(remembered: Any) -> bool:
    return remembered.session_id is not None


@pytest.mark.parametrize("closer", ["app", "vendor"])
async def test_the_session_ends_with_the_connection(app: App, client: Client, closer: str) -> None:
    """Whoever closes it: the session ends soon after, with the time of the close; so with a client of the tee's own."""
    for number, used in enumerate((client, f"ws://{app.ingest_address}")):
        async with call() as (connection, vendor):
            voicemem.tee(connection, used, f"call-{number}", dialect="openai-realtime")
            voicemem.memory_of(connection).times = Times(closed_s=0.2)
            await pass_on(reply(1), vendor, connection)
            await (connection if closer == "app" else vendor).close()
            if closer == "vendor":
                assert [] == [message async for message in connection]
            left_at = voicemem.memory_of(connection).left_at
            await wait_until_closed(app, f"call-{number}")
        journal = await RestClient(app).journal(f"call-{number}")
        (end,) = [row["event"] for row in journal if row["event"]["type"] == "session.end"]
        assert ("closed", left_at) == (end["reason"], end["ts"])


async def test_without_end_the_session_stays(app: App, client: Client) -> None:
    """With `end=False` the app ends it, over any other connection."""
    async with call() as (connection, vendor):
        voicemem.tee(connection, client, "call", dialect="openai-realtime", end=False)
        remembered = voicemem.memory_of(connection)
        remembered.times = Times(closed_s=0.0)
        await pass_on(reply(1), vendor, connection)
        await connection.close()
        await eventually(True, lambda: has_left(remembered))
        assert remembered.leaving is not None
        await remembered.leaving
    assert "session.end" not in {row["event"]["type"] for row in await RestClient(app).journal("call")}


async def has_session(remembered: Any) -> bool:
    return remembered.session is not None


async def has_left(remembered: Any) -> bool:
    return remembered.leaving is not None


async def test_a_second_connection_goes_on_with_the_call(app: App, client: Client) -> None:
    """An app that connects to its vendor again makes a tee with the same id: nothing is lost, and nothing ends."""
    async with call() as (connection, vendor):
        voicemem.tee(connection, client, "call", dialect="openai-realtime")
        first = voicemem.memory_of(connection)
        first.times = Times(closed_s=1_000.0)
        await pass_on(reply(1), vendor, connection)
        await vendor.close()
        assert [] == [message async for message in connection]
    async with call() as (connection, vendor):
        voicemem.tee(connection, client, "call", dialect="openai-realtime")
        await pass_on(reply(2), vendor, connection)
        await eventually(True, lambda: has_session(voicemem.memory_of(connection)))
        first.end_if_lost()  # its time is over
        await pass_on(reply(3), vendor, connection)
        await voicemem.memory_of(connection).aclose("hangup")
    assert ["1 2 3 "] == await texts(app)


async def test_frames_after_the_end_are_counted(app: App, client: Client) -> None:
    """ConversationRelay's own `end` ends the session at once; what the vendor still sends is not taken."""
    async with call() as (connection, vendor):
        voicemem.tee(connection, client, "call", dialect="conversation-relay")
        await pass_on({"type": "text", "token": "Bye.", "last": True}, connection, vendor)
        await pass_on({"type": "end"}, connection, vendor)
        await wait_until_closed(app, "call")
        await pass_on({"type": "prompt", "voicePrompt": "Wait!"}, vendor, connection)
        remembered = voicemem.memory_of(connection)
        await remembered.aclose()
        assert 1 == remembered.dropped
        assert not client.is_open("call", "conversation-relay")


async def test_a_copied_send_that_fails_is_not_remembered(app: App, client: Client) -> None:
    """A message that the connection could not send was not said."""
    async with call() as (connection, vendor):
        voicemem.tee(connection, client, "call", dialect="conversation-relay")
        await pass_on({"type": "text", "token": "One.", "last": True}, connection, vendor)
        await vendor.close()
        with pytest.raises(Exception, match="1000"):
            await connection.send(json.dumps({"type": "text", "token": "Two.", "last": True}))
        await voicemem.memory_of(connection).aclose()
    assert ["One."] == await texts(app)


async def test_context_has_all_that_crossed(app: App) -> None:
    """The next LLM request has what came just before, and what the app has added as an event."""
    async with client_to(app) as client, call() as (connection, vendor):
        voicemem.tee(connection, client, "call", dialect="conversation-relay")
        remembered = voicemem.memory_of(connection)

        await eventually(True, lambda: has_session(remembered))
        remembered.send({"type": "message", "role": "assistant", "text": "Welcome.", "source": "greeting"})
        await pass_on({"type": "prompt", "voicePrompt": "Hello?", "last": True}, vendor, connection)
        body = await remembered.context()
        assert body is not None
        assert ["Welcome.", "Hello?"] == [one["content"] for one in body["messages"]]
        await remembered.aclose()


async def test_what_is_left_at_the_end_is_delivered_later(app: App) -> None:
    """A call may be over, and its connection gone, before the memory is there at all."""
    async with NetworkProxy(app.ingest_address) as proxy, client_for(proxy.address, app.rest_address) as client:
        await proxy.down()
        async with call() as (connection, vendor):
            voicemem.tee(connection, client, "call", dialect="openai-realtime")
            await pass_on(reply(1), vendor, connection)
            await voicemem.memory_of(connection).aclose(timeout=0.05)
        await proxy.up()
        remembered = voicemem.memory_of(connection)
        assert remembered.leaving is not None
        await remembered.leaving
        assert ["1 "] == await texts(app)
        await wait_until_closed(app, "call")


async def test_the_sdk_connects_again(app: App, client: Client) -> None:
    """A connection of openai's that was lost and is made again is the same call; giving up after a loss ends it."""
    connections: asyncio.Queue[ServerConnection] = asyncio.Queue()

    async def vendor(connection: ServerConnection) -> None:
        await connections.put(connection)
        await connection.wait_closed()

    async with (
        serve_websocket(vendor, "127.0.0.1", 0) as server,
        AsyncOpenAI(
            api_key="key", websocket_base_url=f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        ) as sdk,
        sdk.realtime.connect(
            model="gpt-realtime", on_reconnecting=lambda event: None, initial_delay=0.01, max_retries=1
        ) as connection,
    ):
        voicemem.tee(connection, client, "call")
        voicemem.memory_of(connection).times = Times(closed_s=0.2)
        events = aiter(connection)
        for number in (1, 2):
            other_end = await connections.get()
            await other_end.send(json.dumps(reply(number)))
            assert "response.output_text.delta" == (await anext(events)).type
            other_end.transport.abort()
            if number == 1:
                again = asyncio.ensure_future(anext(events))
                await (other_end := await connections.get()).send('{"type": "rate_limits.updated"}')
                await again
                await connections.put(other_end)
        server.close(close_connections=True)
        with pytest.raises(ConnectionClosed):
            await anext(events)
    await wait_until_closed(app, "call")
    assert ["1 2 "] == await texts(app)


async def test_a_program_that_ends_leaves_nothing_open() -> None:
    """A client of the tee's own that still tries to deliver is closed when the event loop cancels it."""
    async with call() as (connection, vendor), in_time():
        voicemem.tee(connection, f"ws://{REFUSING}", "call", dialect="openai-realtime", rest_url=f"http://{REFUSING}")
        await pass_on(reply(1), vendor, connection)
        remembered = voicemem.memory_of(connection)
        await remembered.aclose(timeout=0)
        assert remembered.leaving is not None
        remembered.leaving.cancel()
        await asyncio.wait({remembered.leaving})
        assert remembered.client.transport is None
        with pytest.raises(Closed):
            await remembered.client.open("other")
