"""A service that is stopped, and neither ends nor answers: what its clients wait for ends in time."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.support.callers.client_sessions import (
    FAR_S,
    acknowledged_seqs,
    in_time,
    numbered_transcript,
    send_transcripts,
    transcripts_up_to,
)
from tests.support.processes.ports import free_ports
from tests.support.processes.service_process import ServiceProcess, running_process
from tests.support.waiting import eventually
from voicemem.client import Client, Options, SyncClient, TimedOut, Unacknowledged, Unreachable

PATIENT = Options(open_timeout_s=FAR_S)
"""The client's defaults, but for the open, which a busy machine may hold up."""


def client_of(process: ServiceProcess) -> Client:
    return Client(f"ws://{process.ingest_address}", process.rest, options=PATIENT)


async def test_a_stopped_service_holds_up_no_call(tmp_path: Path) -> None:
    """With SIGSTOP every wait of a client with its defaults ends, with a reason; after SIGCONT nothing is lost."""
    async with running_process(tmp_path / "calls.db") as process, client_of(process) as client:
        session = await client.open("s")
        await acknowledged_seqs(send_transcripts(session, [1]))
        await session.context(timeout=FAR_S)
        process.signal(signal.SIGSTOP)
        async with in_time():
            with pytest.raises(Unreachable, match=r"/v1/sessions/s/context: timed out after 1 s\."):
                await session.context()
            with pytest.raises(Unreachable, match=r"/v1/sessions/s/history: timed out after 3 s\."):
                await session.history()
            with pytest.raises(Unreachable, match=r"/v1/ingest: timed out after 1 s\."):
                await client.open("other", timeout=1)
            acks = send_transcripts(session, [2, 3])
            with pytest.raises(TimedOut, match=r"within 0\.1 s"):
                await acks[-1].result(timeout=0.1)
        process.signal(signal.SIGCONT)
        assert [2, 3] == await acknowledged_seqs(acks)
        rows = await process.api.journal("s")
        assert transcripts_up_to(3) == [(row["seq"], row["event"]["text"]) for row in rows if row["seq"]]


async def test_a_client_of_a_stopped_service_can_be_closed(tmp_path: Path) -> None:
    """Closing ends after its time, with events that no socket takes any more, and says how many were left."""
    async with running_process(tmp_path / "calls.db") as process:
        client = client_of(process)
        session = await client.open("s")
        process.signal(signal.SIGSTOP)
        for number in range(1, 5_001):
            session.send(numbered_transcript(number, metadata={"x": "y" * 1_000}))
        async with in_time():
            with pytest.raises(Unacknowledged) as left:
                await client.close(timeout=0.5)
        assert {"s": 5_000} == left.value.events


async def test_synchronous_code_is_not_held_up_either(tmp_path: Path) -> None:
    """The same for `SyncClient`."""

    def call() -> None:
        client = SyncClient(f"ws://{process.ingest_address}", process.rest, options=PATIENT)
        session = client.open("s")
        process.signal(signal.SIGSTOP)
        with pytest.raises(Unreachable, match="timed out after 1 s"):
            session.context()
        with pytest.raises(TimedOut):
            session.send(numbered_transcript(1)).result(timeout=0.1)
        with pytest.raises(TimedOut):
            session.end(timeout=0.1)
        with pytest.raises(Unacknowledged):
            client.close(timeout=0.1)

    async with running_process(tmp_path / "calls.db") as process, in_time():
        await asyncio.to_thread(call)


async def test_the_websocket_is_back_soon_after_a_restart(tmp_path: Path) -> None:
    """A service that was away long enough for HTTP to be tried has its websocket back with its first breath."""
    rest, ingest = free_ports(2)
    client = Client(f"ws://127.0.0.1:{ingest}", f"http://127.0.0.1:{rest}", options=PATIENT)
    async with client:
        async with running_process(tmp_path / "calls.db", rest=rest, ingest=ingest):
            session = await client.open("s")
            await acknowledged_seqs(send_transcripts(session, [1]))
        await eventually("http", lambda: transport_of(client), FAR_S)
        async with running_process(tmp_path / "calls.db", rest=rest, ingest=ingest):
            # Delays that grow would be far beyond this by now, as would be the time between attempts behind a proxy.
            await eventually("websocket", lambda: transport_of(client), FAR_S)
            assert [2] == await acknowledged_seqs(send_transcripts(session, [2]))


async def transport_of(client: Client) -> str | None:
    return client.transport
