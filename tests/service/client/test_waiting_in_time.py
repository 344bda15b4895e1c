"""Waiting for acks and for the end, in bounds."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.callers.client_sessions import (
    FAR_S,
    SHORT_S,
    client_for,
    in_time,
    numbered_transcript,
    send_transcripts,
)
from tests.support.servers.network_proxy import NetworkProxy
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.client import Client, Closed, TimedOut, Unacknowledged


async def test_an_ack_can_be_waited_for_in_bounds(app: App) -> None:
    """A wait that takes too long ends as `TimedOut`, a `TimeoutError`; the event stays under way."""
    async with NetworkProxy(app.ingest_address) as proxy, client_for(proxy.address) as client:
        session = await client.open("s")
        await proxy.down()
        ack = session.send(numbered_transcript(1))
        for wait in (ack.result, session.flush):
            with pytest.raises(TimedOut) as timed_out:
                await wait(timeout=0.01)
            assert isinstance(timed_out.value, TimeoutError)
        assert ([], []) == (ack.waiters, session._producer.flushes)
        await proxy.up()
        assert 1 == await ack.result(timeout=FAR_S)
        await proxy.down()
        with pytest.raises(TimedOut):
            await session.end(timeout=0.01)
        await proxy.up()
        await session.flush(timeout=FAR_S)
        assert "ended" == session.state


# Closing


async def test_a_close_does_not_wait_for_a_server_that_reads_nothing(app: App) -> None:
    """With megabytes that no socket takes, a close ends after its time and a little for the connections."""
    async with NetworkProxy(app.ingest_address) as proxy:
        client = client_for(proxy.address, ping_after_s=60.0, max_bytes=2**25)
        session = await client.open("s")
        proxy.to_server.bytes_per_s = 1
        for _ in range(250):
            session.send({"type": "asr", "text": "x" * 100_000})
        await eventually(True, lambda: is_sending(client))
        async with in_time():
            with pytest.raises(Unacknowledged):
                await client.close(timeout=SHORT_S)


async def is_sending(client: Client) -> bool:
    """Whether the transport has more than the network takes."""
    transport: Any = client._transport
    return bool(transport.socket.transport.get_write_buffer_size())


async def test_a_loop_that_was_closed_is_an_ack_with_an_error(app: App) -> None:
    """A program that closes its loop and not its client still gets an ack from each `send`."""
    sessions: list[Any] = []

    def call() -> None:
        async def opened() -> None:
            client = client_for(app.ingest_address)
            sessions.append(await client.open("s"))

        asyncio.run(opened())

    await asyncio.to_thread(call)
    acks = send_transcripts(sessions[0], [1, 2])
    assert [True, True] == [isinstance(ack.error, Closed) for ack in acks]
