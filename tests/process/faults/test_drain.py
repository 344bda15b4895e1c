"""SIGTERM under load (fault 21): a goodbye, everything received acknowledged, deliveries kept, and the producers resume
against the next process with nothing lost or doubled."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import suppress
from pathlib import Path

import pytest
from websockets.exceptions import WebSocketException

from tests.support.callers.producer import Producer, connected_producer
from tests.support.events import final_transcript, session_end
from tests.support.processes.ports import free_ports
from tests.support.processes.service_process import ServiceProcess, running_process
from tests.support.servers.webhook_receiver import Reply, WebhookReceiver, body_without_send_time, webhook_receiver
from tests.support.waiting import eventually
from voicemem.client import Client, Options

LIMIT_S = 10.0
"""From SIGTERM to the exit."""
EVENTS = 300
OPTIONS = Options(first_delay_s=0.05, longest_delay_s=0.2)

pytestmark = pytest.mark.fault(21)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where a database may be made."""
    return tmp_path / "calls.db"


async def stream_with_client(ports: list[int], session_id: str) -> list[int]:
    """A producer that knows nothing of the drain; the seqs that were acknowledged to it."""
    rest, ingest = ports
    async with Client(f"ws://127.0.0.1:{ingest}", f"http://127.0.0.1:{rest}", options=OPTIONS) as client:
        session = await client.open(session_id)
        acks = []
        for seq in range(1, EVENTS):
            acks.append(session.send(final_transcript(seq)))
            await asyncio.sleep(0.005)
        acks.append(session.send(session_end()))
        return [await ack for ack in acks]


class Plain:
    """A producer that notes every frame, sends as fast as it is taken, and stops when the connection ends."""

    def __init__(self) -> None:
        self.acked = 0
        self.kinds: list[str] = []
        self.code: int | None = None

    async def run(self, process: ServiceProcess, session_id: str) -> None:
        async with connected_producer(process) as producer:
            await producer.open(session_id)
            sending = asyncio.create_task(self.send(producer))
            self.code, frames = await producer.closed()
            sending.cancel()
            self.kinds = [frame["type"] for frame in frames]
            self.acked = max((frame["seq"] for frame in frames if frame["type"] == "ack"), default=0)

    async def send(self, producer: Producer) -> None:
        with suppress(WebSocketException):
            for seq in itertools.count(1):
                await producer.send(final_transcript(seq))
                await asyncio.sleep(0.001)


async def test_a_drain_under_load(store: Path) -> None:
    """Thirty sessions stream, ten have just ended: the exit is soon and clean, and the next process has everything."""
    ports = free_ports(2)
    gate = asyncio.Event()
    async with webhook_receiver() as hook:
        hook.otherwise = Reply(gate=gate)  # deliveries are under way when the drain begins
        arguments = ("--webhook-url", hook.url())
        names = [f"client{number}" for number in range(20)]
        async with running_process(store, *arguments, rest=ports[0], ingest=ports[1]) as process:
            clients = [asyncio.create_task(stream_with_client(ports, name)) for name in names]
            plain = [Plain() for _ in range(10)]
            streams = [asyncio.create_task(one.run(process, f"plain{n}")) for n, one in enumerate(plain)]
            await end_some(process)
            await asyncio.sleep(0.5)
            began = time.monotonic()
            code = await process.stop()
            assert (0, True) == (code, time.monotonic() - began < LIMIT_S)
            await asyncio.gather(*streams)
        for one in plain:
            assert (1012, ["goaway"]) == (one.code, [kind for kind in one.kinds if kind != "ack"])
            assert one.acked > 0
        gate.set()
        async with running_process(store, *arguments, rest=ports[0], ingest=ports[1]) as process:
            acked = await asyncio.wait_for(asyncio.gather(*clients), 60)
            assert [list(range(1, EVENTS + 1))] * len(names) == acked
            for name in names:
                assert [*range(1, EVENTS + 1), None] == [row["seq"] for row in await process.api.journal(name)]
            for number, one in enumerate(plain):
                stored = [row["seq"] for row in await process.api.journal(f"plain{number}")]
                assert list(range(1, one.acked + 1)) == stored
            await eventually(set(names) | {f"ended{n}" for n in range(10)}, lambda: told(hook), 30)
            assert 0 == await process.stop()
    check_webhook_events(hook)


async def end_some(process: ServiceProcess) -> None:
    for number in range(10):
        await process.api.create(f"ended{number}")
        await process.api.end(f"ended{number}")


async def told(hook: WebhookReceiver) -> set[str]:
    return {webhook_event.json["sid"] for webhook_event in hook.webhook_events}


def check_webhook_events(hook: WebhookReceiver) -> None:
    """One noticeId and one content for each session, however often it was sent."""
    sent: dict[str, set[bytes]] = {}
    for webhook_event in hook.webhook_events:
        sent.setdefault(webhook_event.json["sid"], set()).add(body_without_send_time(webhook_event.body))
    assert {1} == {len(bodies) for bodies in sent.values()}


async def test_everything_that_was_received_is_acknowledged(store: Path) -> None:
    """Of what the socket had taken before the goodbye, every event is acknowledged before the close."""
    async with running_process(store) as process, connected_producer(process) as producer:
        await producer.open()
        await producer.send_together(*(final_transcript(seq) for seq in range(1, 2001)))
        await producer.expect("ack")
        await producer.send_together(*(final_transcript(seq) for seq in range(2001, 2501)))
        await asyncio.sleep(0.2)
        assert 0 == await process.stop()
        code, frames = await producer.closed()
    assert 1012 == code
    acked = max(frame["seq"] for frame in frames if frame["type"] == "ack")
    async with running_process(store) as process:
        stored = [row["seq"] for row in await process.api.journal()]
    assert (list(range(1, 2501)), 2500) == (stored, acked)


async def test_a_peer_that_reads_nothing_does_not_hold_up_the_exit(store: Path) -> None:
    """A producer that floods and takes no acks is let go: the process ends in time, and has what it acknowledged."""
    async with running_process(store) as process, connected_producer(process) as producer:
        await producer.open()
        producer.socket.transport.pause_reading()
        sending = asyncio.create_task(Plain().send(producer))
        await asyncio.sleep(1)
        began = time.monotonic()
        assert 0 == await process.stop()
        assert time.monotonic() - began < LIMIT_S
        sending.cancel()
        producer.socket.transport.abort()
    async with running_process(store) as process:
        stored = [row["seq"] for row in await process.api.journal()]
    assert stored == list(range(1, len(stored) + 1))
