"""Which connections can have a tee, and what it sees of kinds that are not installed here."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
from aiohttp import WSMessage, WSMsgType
from openai.resources.live.forks import AsyncForksConnection
from openai.resources.live.live import AsyncLiveConnection
from openai.resources.live.sideband import AsyncSidebandConnection
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import InputAudioBufferCommitEvent

import voicemem
from tests.support.callers.client_sessions import REFUSING
from voicemem.client import Client
from voicemem.dialects.registry import DIALECTS
from voicemem.integrations.tee.connections import certain_dialect, wrap
from voicemem.integrations.tee.memory import CallMemory

URL = f"ws://{REFUSING}"


class Log:
    """What a tap is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def received(self, data: Any, is_text: bool = False) -> None:
        self.told.append(("received", data, is_text))

    def sent(self, data: Any, is_text: bool = False) -> None:
        self.told.append(("sent", data, is_text))

    def closed(self, is_clean: bool = True, by_app: bool = False) -> None:
        self.told.append(("closed", is_clean, by_app))

    def failed(self, error: Exception) -> None:
        self.told.append(("failed", type(error)))


class Websocket:
    """Of the kind of `websockets`, and older than pieces."""

    async def recv(self) -> str:
        return "{}"

    async def send(self, message: str) -> None:
        pass

    async def close(self) -> None:
        pass


class OldOpenai(Websocket):
    """A version of openai's SDK that sends to its socket directly."""

    async def recv_bytes(self) -> bytes:
        return b"{}"

    async def send(self, event: Any) -> None:
        await self.send_raw(json.dumps(event))

    async def send_raw(self, data: bytes | str) -> None:
        pass


async def test_versions_of_openai_without_send() -> None:
    """Where `_send` is missing, `send` and `send_raw` are copied, each message once, also from two tasks at once."""
    log, connection = Log(), OldOpenai()
    wrap(connection, cast(CallMemory, log))
    await asyncio.gather(connection.send({"type": "a"}), connection.send_raw("b"))
    await connection.send({"type": "c"})
    assert b"{}" == await connection.recv_bytes()
    await connection.close()
    sent = sorted(data if isinstance(data, str) else data.decode() for kind, data, _ in log.told if kind == "sent")
    assert ["b", '{"type":"a"}', '{"type":"c"}'] == sent
    assert [("received", b"{}", False), ("closed", True, True)] == log.told[-2:]


async def test_models_of_the_sdk_are_copied_as_they_are_sent() -> None:
    """A model without `_send`, and one that cannot be written, which is told and does not raise."""

    class Model(OldOpenai):
        async def send(self, event: Any) -> None:
            pass

    log, connection = Log(), Model()
    wrap(connection, cast(CallMemory, log))
    await connection.send(InputAudioBufferCommitEvent(type="input_audio_buffer.commit"))
    await connection.send(object())
    (_, text, _), failed = log.told
    assert {"type": "input_audio_buffer.commit"} == json.loads(text)
    assert ("failed", AttributeError) == failed


async def test_a_send_that_is_cancelled_counts_as_sent() -> None:
    """It waits for room in the socket's buffer after it has written; one that fails does not count."""

    class Slow(Websocket):
        async def send(self, message: str) -> None:
            if message == "bad":
                raise ValueError(message)
            await asyncio.sleep(1_000)

    log, connection = Log(), Slow()
    wrap(connection, cast(CallMemory, log))
    sending = asyncio.create_task(connection.send("token"))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    with pytest.raises(ValueError, match="bad"):
        await connection.send("bad")
    assert [("sent", "token", True)] == log.told


async def test_control_messages_of_aiohttp_are_not_frames() -> None:
    """Pings that an app answers by itself are left out; the end of the connection is told."""
    messages = [
        WSMessage(WSMsgType.PING, b"", None),
        WSMessage(WSMsgType.TEXT, "{}", None),
        WSMessage(WSMsgType.BINARY, b"{}", None),
        WSMessage(WSMsgType.CLOSED, None, None),
    ]

    class Aiohttp(Websocket):
        close_code = 1006

        async def receive(self) -> WSMessage:
            return messages.pop(0)

        async def send_str(self, data: str) -> None:
            pass

        async def send_bytes(self, data: bytes) -> None:
            pass

        async def send_frame(self, message: bytes, opcode: WSMsgType) -> None:
            pass

    log, connection = Log(), Aiohttp()
    wrap(connection, cast(CallMemory, log))
    for _ in range(4):
        await connection.receive()
    await connection.send_frame(b"", WSMsgType.PING)
    await connection.send_frame(b"x", WSMsgType.TEXT)
    assert [("received", "{}", True), ("received", b"{}", False), ("closed", False, False), ("sent", b"x", True)] == (
        log.told
    )


# What cannot be


def test_only_openai_s_connection_is_certain() -> None:
    """Its subclasses are, too, and all of the Live API; others of its shape are not."""

    class Own(AsyncRealtimeConnection):
        pass

    assert "openai-realtime" == certain_dialect(object.__new__(Own))
    for live in (AsyncLiveConnection, AsyncForksConnection, AsyncSidebandConnection):
        assert "openai-live" == certain_dialect(object.__new__(live))
    assert certain_dialect(OldOpenai()) is None


async def test_mistakes_raise_at_the_line_itself() -> None:
    """A missing or unknown dialect lists all names; ids, sides, keys and URLs are checked."""
    for dialect in (None, "openai", ""):
        with pytest.raises(ValueError, match="dialect must be one of ") as raised:
            voicemem.tee(Websocket(), URL, dialect=dialect)
        assert all(name in str(raised.value) for name in DIALECTS)
    client = Client(URL)
    for wrong in (
        {"session_id": "a b"},
        {"session_id": ""},
        {"producer": ""},
        {"side": "caller"},
        {"api_key": "k"},
        {"rest_url": "http://x"},
    ):
        with pytest.raises(ValueError, match=r"must be|go with"):
            voicemem.tee(Websocket(), client, dialect="gemini-live", **wrong)
    with pytest.raises(ValueError, match="ws://"):
        voicemem.tee(Websocket(), "http://127.0.0.1", dialect="gemini-live")


async def test_what_is_not_such_a_connection_is_refused() -> None:
    """Synchronous ones, other objects, and those that let nothing be changed."""

    class Synchronous:
        def recv(self) -> str:
            return ""

        def send(self, message: str) -> None:
            pass

    class Fixed(Websocket):
        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    for wrong, reason in (
        (Synchronous(), "synchronous"),
        (object(), "this is a object"),
        (Fixed(), "nothing be changed"),
    ):
        with pytest.raises(TypeError, match=reason):
            voicemem.tee(wrong, URL, dialect="gemini-live")
    with pytest.raises(TypeError, match="has no memory"):
        voicemem.memory_of(object())


def test_a_tee_needs_an_event_loop() -> None:
    """Outside of one, the error is Python's own."""
    with pytest.raises(RuntimeError, match="no running event loop"):
        voicemem.tee(Websocket(), URL, dialect="gemini-live")
