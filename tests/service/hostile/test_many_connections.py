"""Connections without a key on the ingest port: few, small, and the first to go; wrong keys in frames are counted."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.callers.producer import connected_producer
from tests.support.callers.raw_http import handshake_head
from tests.support.callers.raw_websocket import PING, TEXT, upgraded_socket, websocket_frame
from tests.support.callers.rest import RestClient
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.server.http.connections import ConnectionLimits, ingest_limits
from voicemem.server.ingest.websocket import MAX_BYTES_BEFORE_KEY

KEY = "an-admin-key-of-some-length"
HEADER = {"Authorization": f"Bearer {KEY}"}
TIMEOUT_S = 10.0


@pytest.fixture
async def app(serve: Serve) -> App:
    return await serve(admin_key=KEY)


def auth(token: str) -> bytes:
    return websocket_frame(TEXT, json.dumps({"type": "auth", "token": token}).encode())


async def taken(app: App) -> tuple[int, bool]:
    """How many connections the ingest port has, and whether those without a key have sent anything."""
    return len(app.ingest.port.unauthenticated | app.ingest.port.authenticated), app.ingest.port.received > 0


def limit(app: App, authenticated: int, unauthenticated: int, per_address: int = 0) -> None:
    """Give the ingest port room for this many connections."""
    app.ingest.port.limits = ConnectionLimits(authenticated, unauthenticated, per_address)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def test_an_upgraded_connection_without_a_key_gives_way(app: App, stack: AsyncExitStack) -> None:
    """The oldest is closed with 1013 and an error, and the newer one can show its key."""
    limit(app, 2, 2)
    first, _second, third = [await stack.enter_async_context(upgraded_socket(app.ingest_address)) for _ in range(3)]
    assert "too_many_connections" == (await first.expect("error"))["code"]
    assert 1013 == await first.closed()
    await third.send(auth(KEY), websocket_frame(TEXT, b'{"type":"session.open","session_id":"s"}'))
    await third.expect("session.ready")


async def test_half_a_handshake_gives_way(app: App) -> None:
    """It is answered with 503 and a problem document."""
    limit(app, 2, 1)
    reader, writer = await asyncio.open_connection(*app.ingest_address)
    writer.write(handshake_head(app.ingest_address)[:-2])
    await eventually((1, True), lambda: taken(app))
    async with upgraded_socket(app.ingest_address):
        answer = await asyncio.wait_for(reader.read(), TIMEOUT_S)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"reason":"too_many_connections"' in answer
    writer.close()


async def test_a_key_is_refused_when_too_many_have_one(app: App) -> None:
    """With the key in the header it is a 503, in a frame a close with 1013; those with a key stay."""
    limit(app, 1, 2)
    async with connected_producer(app, HEADER) as producer:
        with pytest.raises(InvalidStatus) as refused:
            async with connected_producer(app, HEADER):
                pass
        assert 503 == refused.value.response.status_code
        assert "1" == refused.value.response.headers["Retry-After"]
        async with upgraded_socket(app.ingest_address) as other:
            await other.send(auth(KEY))
            assert 1013 == await other.closed()
        await producer.open("s")
    metrics = (await RestClient(app, KEY).get("/metrics")).body.decode()
    assert 'voicemem_connections_refused_total{kind="websocket"} 2.0' in metrics
    assert 'voicemem_connections_unauthenticated{kind="websocket"} 0.0' in metrics


async def test_connections_of_one_address_are_bounded_where_asked(app: App, stack: AsyncExitStack) -> None:
    """The one too many is answered with 503; when another has gone, there is room again."""
    limit(app, 9, 9, per_address=2)
    async with upgraded_socket(app.ingest_address):
        await stack.enter_async_context(upgraded_socket(app.ingest_address))
        reader, writer = await asyncio.open_connection(*app.ingest_address)
        assert (await asyncio.wait_for(reader.read(), TIMEOUT_S)).startswith(b"HTTP/1.1 503 ")
        writer.close()
    await eventually((1, True), lambda: taken(app))
    await stack.enter_async_context(upgraded_socket(app.ingest_address))


BIG = b" " * (MAX_BYTES_BEFORE_KEY + 1)


@pytest.mark.parametrize(
    "pieces",
    [
        [websocket_frame(TEXT, BIG)],
        [websocket_frame(TEXT, BIG, length=1_000_000)],
        [websocket_frame(TEXT, fin=False), *[websocket_frame(0, BIG[:9_000], fin=False)] * 2],
        [websocket_frame(PING, bytes(125))] * 150,
    ],
    ids=["a whole frame", "half a frame", "fragments", "pings"],
)
async def test_frames_before_a_key_are_small(app: App, pieces: list[bytes]) -> None:
    """What is longer than 16 KiB closes with 1009, in whatever form it comes, and before its end has come."""
    async with upgraded_socket(app.ingest_address) as raw:
        await raw.send(*pieces)
        assert 1009 == await raw.closed()
    await eventually((0, False), lambda: taken(app))


async def test_frames_behind_a_key_may_be_large_at_once(app: App) -> None:
    """A client need not wait for the answer to its key before it opens a session with a large configuration."""
    opening = {
        "type": "session.open",
        "session_id": "s",
        "session": {"system_messages": [{"role": "system", "content": "x" * 100_000}]},
    }
    event = {"type": "asr", "seq": 1, "text": "y" * 200_000, "final": True}
    async with upgraded_socket(app.ingest_address) as raw:
        await raw.send(
            auth(KEY) + b"".join(websocket_frame(TEXT, json.dumps(one).encode()) for one in (opening, event))
        )
        await raw.expect("session.ready")
        assert 1 == (await raw.expect("ack"))["seq"]


async def test_all_without_a_key_together_are_bounded_in_bytes(app: App) -> None:
    """When they have sent too much in all, those that sent the most go, the oldest first."""
    app.ingest.port.limits = ingest_limits()._replace(unauthenticated_bytes=20_000)
    half = websocket_frame(TEXT, BIG[:9_000], length=10_000)
    async with upgraded_socket(app.ingest_address) as first, upgraded_socket(app.ingest_address) as second:
        await first.send(half)
        await second.send(half)
        async with upgraded_socket(app.ingest_address) as third:
            await third.send(half)
            assert 1013 == await first.closed()
    await eventually((0, False), lambda: taken(app))


async def test_who_has_sent_nothing_yet_does_not_give_way_for_bytes(app: App) -> None:
    """A caller that has just connected is heard, also if others send too much before its first byte arrives."""
    app.ingest.port.limits = ingest_limits()._replace(unauthenticated_bytes=20_000)
    half = websocket_frame(TEXT, BIG[:9_000], length=10_000)
    reader, writer = await asyncio.open_connection(*app.ingest_address)
    async with (
        upgraded_socket(app.ingest_address) as first,
        upgraded_socket(app.ingest_address) as second,
        upgraded_socket(app.ingest_address) as third,
    ):
        for other in (first, second, third):
            await other.send(half)
        assert 1013 == await first.closed()
        writer.write(handshake_head(app.ingest_address))
        async with asyncio.timeout(TIMEOUT_S):
            assert (await reader.readline()).startswith(b"HTTP/1.1 101")
    writer.close()


async def test_wrong_keys_in_frames_are_counted(app: App) -> None:
    """After a hundred an address is told that it is over the rate, also over HTTP; a valid key is let in."""

    async def code(token: str) -> tuple[str, int | None]:
        async with upgraded_socket(app.ingest_address) as raw:
            await raw.send(auth(token))
            return (await raw.expect("error"))["code"], await raw.closed()

    codes = [await code("wrong") for _ in range(130)]
    assert [("unauthorized", 1008)] * 100 == codes[:100]
    assert ("rate_limited", 1008) in codes[100:]
    app.services.limits.wrong_keys.of("127.0.0.1", app.services.runtime.clock()).level = -10.0  # type: ignore[union-attr]
    assert 429 == (await RestClient(app, "wrong").get("/v1/sessions")).status
    async with upgraded_socket(app.ingest_address) as raw:
        await raw.send(auth(KEY), websocket_frame(TEXT, b'{"type":"session.open","session_id":"s"}'))
        await raw.expect("session.ready")


@pytest.mark.parametrize(
    "origin",
    ["http://[::1].evil.com", "http://localhost@evil.com", "http://localhost\\.evil.com", "http://localhost/a"],
)
async def test_an_origin_is_read_strictly(serve: Serve, origin: str) -> None:
    """What only begins like a loopback origin is foreign; on both ports."""
    app = await serve()
    assert (403, "foreign_origin") == (await RestClient(app).get("/v1/sessions", headers={"Origin": origin})).problem
    reader, writer = await asyncio.open_connection(*app.ingest_address)
    writer.write(handshake_head(app.ingest_address, f"Origin: {origin}"))
    assert (await asyncio.wait_for(reader.read(), TIMEOUT_S)).startswith(b"HTTP/1.1 403 ")
    writer.close()
