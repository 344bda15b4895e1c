"""What crosses the proxy arrives as it was sent, whatever that is (docs/proxy.md)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from tests.support.callers.tees import vendor_at
from tests.support.rows import every_row
from tests.support.servers.voice_proxy import RunningProxy, proxy_to
from tests.support.waiting import eventually

DIALECT = "openai-realtime"
MIB = 1024 * 1024


@asynccontextmanager
async def call() -> AsyncIterator[tuple[RunningProxy, ClientConnection, ServerConnection]]:
    """A call through a proxy whose memory is away: the caller's end and the vendor's."""
    async with (
        vendor_at() as (url, vendor),
        proxy_to(None, {DIALECT: url}) as proxy,
        connect(proxy.url(DIALECT), max_size=None) as caller,
    ):
        yield proxy, caller, await vendor.connected


async def counted(proxy: RunningProxy, messages: int) -> Counter[str]:
    """What became of the messages, once there are so many."""

    async def total() -> int:
        return sum(proxy.server.memories.counts().values())

    await eventually(messages, total)
    return proxy.server.memories.counts()


@every_row("message", ["", "no JSON", "é 🙂", b"", b"\x00\xff", "[" * 5_000, '{"type":1}'], ids=repr)
async def test_any_message(message: str | bytes) -> None:
    """Text stays text and binary binary, also where no dialect would have it."""
    async with call() as (proxy, caller, vendor):
        await caller.send(message)
        assert message == await vendor.recv()
        await vendor.send(message)
        assert message == await caller.recv()
        await counted(proxy, 2)


async def test_messages_in_pieces() -> None:
    """Pieces arrive as pieces; the memory gets the whole."""
    text = json.dumps({"type": "response.created", "event_id": "e", "response": {"id": "resp_1", "output": []}})
    async with call() as (proxy, caller, vendor):
        await vendor.send([text[:10], text[10:30], "", text[30:]])
        assert [text[:10], text[10:30], "", text[30:]] == [piece async for piece in caller.recv_streaming()][:4]
        counts = await counted(proxy, 1)
        assert not counts["malformed"]


async def test_pings_pass() -> None:
    """A ping is the other end's to answer."""
    async with call() as (_, caller, vendor):
        async with asyncio.timeout(10):
            await (await caller.ping(b"one"))
            await (await vendor.ping(b"two"))


@pytest.mark.parametrize("size", [16 * MIB, 17 * MIB])
async def test_large_messages(size: int) -> None:
    """16 MiB pass, and more; what is too large for a dialect counts as malformed, and the next frame is read again."""
    head = '{"type":"response.created","event_id":"e","response":{"id":"'
    large = head + "x" * (size - len(head) - 3) + '"}}'
    async with call() as (proxy, caller, vendor):
        sending = asyncio.create_task(vendor.send(large))
        assert large == await caller.recv()
        await sending
        await vendor.send('{"type":"session.updated","event_id":"f","session":{}}')
        await caller.recv()
        counts = await counted(proxy, 2)
        assert (size > 16 * MIB) == counts["malformed"]


@every_row("code", [1000, 1001, 1005, 1008, 1011, 1013, 3000, 4321, 4999])
@every_row("by", ["caller", "vendor"])
async def test_close_codes(code: int, by: str) -> None:
    """The other end sees the code and the reason, and the call is over on both sides."""
    async with call() as (proxy, caller, vendor):
        one, other = (caller, vendor) if by == "caller" else (vendor, caller)
        if code == 1005:
            one.protocol.send_close()
            one.transport.writelines(one.protocol.data_to_send())
        else:
            await one.close(code, "why")
        with pytest.raises(ConnectionClosed):
            await other.recv()
        assert (code, "" if code == 1005 else "why") == (other.close_code, other.close_reason)

        async def calls() -> int:
            return len(proxy.server.calls)

        await eventually(0, calls)


@pytest.mark.parametrize("by", ["caller", "vendor"])
async def test_lost_connections(by: str) -> None:
    """A connection that is lost without a close is lost at the other end too: 1006."""
    async with call() as (proxy, caller, vendor):
        one, other = (caller, vendor) if by == "caller" else (vendor, caller)
        one.transport.abort()
        with pytest.raises(ConnectionClosed):
            await other.recv()
        assert 1006 == other.close_code

        async def calls() -> int:
            return len(proxy.server.calls)

        await eventually(0, calls)


async def test_bytes_that_are_no_websocket_s() -> None:
    """They pass, and the rest of the call is not remembered."""
    async with call() as (proxy, caller, vendor):
        (running,) = proxy.server.calls.values()
        vendor.transport.write(b"\xf1\x01x")  # reserved bits
        with pytest.raises(ConnectionClosed):
            await caller.recv()
        assert running.recording is not None
        assert running.recording.is_broken


@pytest.mark.parametrize("slow", ["caller", "vendor"])
async def test_a_peer_that_does_not_read(slow: str) -> None:
    """The other one is held back, and the proxy keeps no more than a buffer of each connection."""
    async with call() as (proxy, caller, vendor):
        (running,) = proxy.server.calls.values()
        fast, lazy = (vendor, caller) if slow == "caller" else (caller, vendor)
        lazy.transport.pause_reading()
        message = b"x" * MIB
        sending = asyncio.create_task(send_all(fast, [message] * 64))

        async def is_paused() -> bool:
            before = running.recording.from_caller.bytes + running.recording.from_upstream.bytes  # type: ignore[union-attr]
            await asyncio.sleep(0.2)
            return before == running.recording.from_caller.bytes + running.recording.from_upstream.bytes > 0  # type: ignore[union-attr]

        await eventually(True, is_paused)
        assert not sending.done()
        held = running.caller.transport.get_write_buffer_size()
        assert running.upstream is not None
        held += running.upstream.transport.get_write_buffer_size()
        assert held < 2 * MIB
        lazy.transport.resume_reading()
        for _ in range(64):
            assert message == await lazy.recv()
        await sending


async def send_all(connection: ClientConnection | ServerConnection, messages: list[bytes]) -> None:
    for message in messages:
        await connection.send(message)
