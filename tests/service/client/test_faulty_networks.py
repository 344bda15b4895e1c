"""The client on networks that misbehave: the faults A 1 to 16 (but 13) of a producer's way to the service.

Whatever happens on the way, what was acknowledged is stored exactly once and in order, and everything that was sent is
acknowledged in the end.
"""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.support.callers.client_sessions import (
    acknowledged_seqs,
    behind_proxy,
    client_for,
    numbered_transcript,
    send_transcripts,
    stored_transcripts,
    transcripts_up_to,
)
from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient
from tests.support.events import final_transcript
from tests.support.servers.network_proxy import NetworkProxy, Toxics
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.client import Ack, BufferFull, Client, EventRefused, ProducerSession, Superseded


@pytest.fixture
async def network(app: App) -> AsyncIterator[tuple[NetworkProxy, Client]]:
    """A proxy in front of the service, and a client behind it."""
    async with behind_proxy(app) as both:
        yield both


@pytest.fixture
async def slow_network(app: App) -> AsyncIterator[tuple[NetworkProxy, Client]]:
    """The same with a client that waits longer for its pings than a busy machine lets it wait for anything."""
    async with behind_proxy(app, ping_timeout_s=1.5) as both:
        yield both


async def stream(session: ProducerSession, numbers: range, pause_s: float = 0.0) -> list[int]:
    """Send lines one after the other, as a call does, and wait until all are acknowledged."""
    acks = []
    for number in numbers:
        acks.append(session.send(numbered_transcript(number)))
        await asyncio.sleep(pause_s)
    return await acknowledged_seqs(acks)


async def test_a1_resets_in_the_middle_of_messages(app: App, network: tuple[NetworkProxy, Client]) -> None:
    """A1: connections that are reset in the middle of a frame, again and again."""
    proxy, client = network
    proxy.to_server.limit_bytes, proxy.to_server.reset_at_limit = 6_000, True
    session = await client.open("s")
    assert [*range(1, 301)] == await stream(session, range(1, 301))
    assert proxy.accepted > 3
    assert transcripts_up_to(300) == await stored_transcripts(app)


async def test_a2_a_half_open_peer(app: App) -> None:
    """A2: a peer that is gone without a word is found out, and the next connection takes over."""
    async with behind_proxy(app, connect_timeout_s=0.5) as (proxy, client):
        session = await client.open("s")
        await stream(session, range(1, 11))
        proxy.to_server.swallow = proxy.to_client.swallow = True
        acks = send_transcripts(session, range(11, 21))
        await eventually(True, lambda: answer(proxy.accepted > 1))
        proxy.to_server.swallow = proxy.to_client.swallow = False
        assert [*range(11, 21)] == await acknowledged_seqs(acks)
    assert transcripts_up_to(20) == await stored_transcripts(app)


async def answer(value: Any) -> Any:
    return value


async def test_a3_segments_of_one_byte(app: App, network: tuple[NetworkProxy, Client]) -> None:
    """A3: every byte in a segment of its own, both ways."""
    proxy, client = network
    proxy.to_server.slice_bytes = proxy.to_client.slice_bytes = 1
    assert [*range(1, 51)] == await stream(await client.open("s"), range(1, 51))
    assert transcripts_up_to(50) == await stored_transcripts(app)


async def test_a4_latency_and_jitter(app: App, slow_network: tuple[NetworkProxy, Client]) -> None:
    """A4: a long way, of changing length, is no reason for another connection."""
    proxy, client = slow_network
    for way in (proxy.to_server, proxy.to_client):
        way.latency_s, way.jitter_s = 0.05, 0.05
    assert [*range(1, 101)] == await stream(await client.open("s"), range(1, 101), 0.003)
    assert (1, transcripts_up_to(100)) == (proxy.accepted, await stored_transcripts(app))


async def test_a5_a_narrow_network(app: App, slow_network: tuple[NetworkProxy, Client]) -> None:
    """A5: a narrow way, on which all takes longer than a ping may, holds back the writer, never `send`."""
    proxy, client = slow_network
    session = await client.open("s")
    proxy.to_server.bytes_per_s = 40_000
    acks = send_transcripts(session, range(1, 1001))
    assert not acks[0].done()
    assert [*range(1, 1001)] == await acknowledged_seqs(acks)
    assert (1, transcripts_up_to(1000)) == (proxy.accepted, await stored_transcripts(app))


async def test_a6_a_slow_close(app: App, network: tuple[NetworkProxy, Client]) -> None:
    """A6: when the end of a connection takes its time, the next connection does not wait for it."""
    proxy, client = network
    proxy.to_server.slow_close_s = proxy.to_client.slow_close_s = 0.5
    session = await client.open("s")
    for round_ in range(3):
        acks = send_transcripts(session, range(10 * round_ + 1, 10 * round_ + 11))
        proxy.cut()
        assert [ack.seq for ack in acks] == await acknowledged_seqs(acks)
    assert transcripts_up_to(30) == await stored_transcripts(app)


@pytest.mark.parametrize("limit", [1, 400, 1_000, 4_321])
async def test_a7_cut_after_so_many_bytes(app: App, limit: int) -> None:
    """A7: each connection ends after so many bytes, a few more each time; the rest comes over the next."""
    async with behind_proxy(app) as (proxy, client):
        proxy.to_server.limit_bytes = limit
        growing = asyncio.create_task(widen(proxy.to_server))
        session = await client.open("s")
        acks = send_transcripts(session, range(1, 101))
        assert [*range(1, 101)] == await acknowledged_seqs(acks)
        growing.cancel()
        assert proxy.accepted > 1
    assert transcripts_up_to(100) == await stored_transcripts(app)


async def widen(toxics: Toxics) -> None:
    while True:
        await asyncio.sleep(0.05)
        toxics.limit_bytes = (toxics.limit_bytes or 0) + 50


async def test_a8_a_listener_that_comes_and_goes(app: App, network: tuple[NetworkProxy, Client]) -> None:
    """A8: while no one listens events are kept, and go out once someone does; also a first open waits."""
    proxy, client = network
    await proxy.down()
    opening = asyncio.create_task(client.open("s"))
    await asyncio.sleep(0.1)
    assert not opening.done()
    await proxy.up()
    session = await opening
    for round_ in range(3):
        await proxy.down()
        acks = send_transcripts(session, range(10 * round_ + 1, 10 * round_ + 11))
        await asyncio.sleep(0.05)
        assert not acks[-1].done()
        await proxy.up()
        assert [ack.seq for ack in acks] == await acknowledged_seqs(acks)
    assert transcripts_up_to(30) == await stored_transcripts(app)


async def test_a9_resent_events_are_stored_once(app: App, network: tuple[NetworkProxy, Client]) -> None:
    """A9: when the client cannot know whose events the server has, it sends all again; each is stored once."""
    proxy, client = network
    session = await client.open("s")
    proxy.to_client.swallow = True
    acks = send_transcripts(session, range(1, 51))
    await eventually(50, lambda: count(app))
    async with connected_producer(app) as stranger:  # another epoch in between
        await stranger.open("s")
    proxy.to_client.swallow = False
    assert [*range(1, 51)] == await acknowledged_seqs(acks)
    assert [*range(51, 61)] == await stream(session, range(51, 61))
    assert transcripts_up_to(60) == await stored_transcripts(app)


async def count(app: App, session_id: str = "s") -> int:
    return len(await stored_transcripts(app, session_id))


async def test_a9_what_a_stranger_stored_is_not_taken_for_an_ack(
    app: App, network: tuple[NetworkProxy, Client]
) -> None:
    """A9: where another process has used the same seqs meanwhile, the loss is told, event by event."""
    proxy, client = network
    session = await client.open("s")
    await stream(session, range(1, 3))
    await proxy.down()
    acks = send_transcripts(session, range(3, 6))
    async with connected_producer(app) as stranger:
        await stranger.open("s")
        await stranger.store(final_transcript(3, "Another."), final_transcript(4, "Line 4.", ts=1))
    await proxy.up()
    for ack in acks[:2]:
        with pytest.raises(EventRefused) as refused:
            await ack
        assert "seq_conflict" == refused.value.code
    assert 5 == await acks[2]
    assert [(3, "Another."), (4, "Line 4."), (5, "Line 5.")] == (await stored_transcripts(app))[2:]


async def test_a10_a_hole_is_filled(app: App, network: tuple[NetworkProxy, Client]) -> None:
    """A10: on a `seq_gap` the client goes back to what is expected, and nothing is stored twice."""
    proxy, client = network
    session = await client.open("s")
    await stream(session, range(1, 4))
    transport: Any = client._transport
    acks = send_transcripts(session, range(4, 8))
    session._producer.buffer.take_batch(1)  # as if the first of them had been sent, and lost
    transport.schedule(session._producer)
    assert [4, 5, 6, 7] == await acknowledged_seqs(acks)
    assert (1, transcripts_up_to(7)) == (proxy.accepted, await stored_transcripts(app))


async def test_a11_acks_that_are_lost(app: App, network: tuple[NetworkProxy, Client]) -> None:
    """A11: what was committed while its ack was lost is acknowledged by the resume, and not stored again."""
    proxy, client = network
    session = await client.open("s")
    proxy.to_client.swallow = True
    acks = send_transcripts(session, range(1, 51))
    await eventually(50, lambda: count(app))
    assert not any(ack.done() for ack in acks)
    proxy.to_client.swallow = False
    assert [*range(1, 51)] == await acknowledged_seqs(acks)
    assert (2, 0) == (session.epoch, session.unacknowledged)
    assert transcripts_up_to(50) == await stored_transcripts(app)


async def test_a11_the_ack_of_the_end_is_lost(app: App, network: tuple[NetworkProxy, Client]) -> None:
    """A11: also an end is found acknowledged after a resume, though the session is closed by then."""
    proxy, client = network
    session = await client.open("s")
    await stream(session, range(1, 4))
    proxy.to_client.swallow = True
    ending = asyncio.create_task(session.end())
    await eventually(4, lambda: count(app))
    proxy.to_client.swallow = False
    assert 4 == await asyncio.wait_for(ending, 10)
    assert "ended" == session.state


async def test_a12_two_live_sockets(app: App, network: tuple[NetworkProxy, Client]) -> None:
    """A12: of two clients of one producer the newer one goes on; the older one raises, and stays away."""
    proxy, zombie = network
    old = await zombie.open("s")
    await stream(old, range(1, 4))
    async with client_for(app.ingest_address) as client:
        new = await client.open("s")
        lost = old.send(numbered_transcript(9))
        with pytest.raises(Superseded):
            await lost
        proxy.reset()
        assert [4, 5] == await stream(new, range(4, 6))
        await (await zombie.open("other")).flush()  # its connection is back, for other sessions
        assert (2, [6]) == (new.epoch, await stream(new, range(6, 7)))
    assert transcripts_up_to(6) == await stored_transcripts(app)


async def test_a14_all_clients_come_back_at_once(app: App) -> None:
    """A14: many clients lose their connections together, and all of them resume, spread over time."""
    async with NetworkProxy(app.ingest_address) as proxy:
        clients = [client_for(proxy.address) for _ in range(20)]
        try:
            sessions = [await client.open(f"s{n}") for n, client in enumerate(clients)]
            for begin in (1, 6, 11):
                acks = [ack for session in sessions for ack in send_transcripts(session, range(begin, begin + 5))]
                proxy.reset()
                await acknowledged_seqs(acks)
        finally:
            for client in clients:
                await client.close()
    for n in range(20):
        assert transcripts_up_to(15) == await stored_transcripts(app, f"s{n}")


async def test_a15_a_client_that_vanishes(app: App, network: tuple[NetworkProxy, Client]) -> None:
    """A15: a session whose client is gone without an end is closed as idle; the client that comes back reopens it."""
    proxy, client = network
    session = await client.open("s", config={"idle_timeout": 0.2})
    await stream(session, range(1, 3))
    await proxy.down()
    await eventually("ended", lambda: state(app))
    await proxy.up()
    assert [3] == await stream(session, range(3, 4))
    assert ("running", "running") == (session.state, await state(app))
    assert transcripts_up_to(3) == await stored_transcripts(app)


async def state(app: App) -> Any:
    return (await RestClient(app).session())["state"]


async def test_a16_a_server_that_reads_nothing(app: App) -> None:
    """A16, from the other side: while nothing gets through, `send` takes what there is room for, at once."""
    async with behind_proxy(app, max_bytes=1024 * 1024) as (proxy, client):
        await fill_and_drain(app, proxy, await client.open("s"))


async def fill_and_drain(app: App, proxy: NetworkProxy, session: ProducerSession) -> None:
    proxy.to_server.bytes_per_s = 1
    acks: list[Ack] = []
    while not (ack := session.send(numbered_transcript(len(acks) + 1, metadata={"x": "y" * 500}))).done():
        acks.append(ack)
    assert isinstance(ack.error, BufferFull)
    assert session.unacknowledged_bytes <= 1024 * 1024
    proxy.to_server.bytes_per_s = None
    proxy.reset()
    assert acks[-1].seq == (await acknowledged_seqs(acks))[-1]
    assert transcripts_up_to(len(acks)) == await stored_transcripts(app)


TOXICS: list[Callable[[Toxics], None]] = [
    lambda toxics: setattr(toxics, "slice_bytes", 3),
    lambda toxics: setattr(toxics, "limit_bytes", 9_000),
    lambda toxics: setattr(toxics, "latency_s", 0.02),
    lambda toxics: setattr(toxics, "bytes_per_s", 50_000),
]


async def test_everything_at_once(app: App) -> None:
    """Sessions that stream while the network does one thing after the other lose and double nothing."""
    async with behind_proxy(app) as (proxy, client):
        sessions = [await client.open(f"s{n}") for n in range(5)]
        streams = asyncio.gather(*(stream(session, range(1, 201), 0.01) for session in sessions))
        for spoil in TOXICS * 2:
            proxy.to_server, proxy.to_client = Toxics(), Toxics()
            spoil(proxy.to_server)
            spoil(proxy.to_client)
            proxy.reset()
            await asyncio.sleep(0.2)
        proxy.to_server, proxy.to_client = Toxics(), Toxics()
        proxy.reset()
        assert [[*range(1, 201)]] * 5 == await streams
    for n in range(5):
        assert transcripts_up_to(200) == await stored_transcripts(app, f"s{n}")
