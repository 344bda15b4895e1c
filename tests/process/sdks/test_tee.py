"""Tees whose service is restarted or stopped in the middle of a call."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from websockets.asyncio.client import connect

import voicemem
from tests.support.callers.client_sessions import client_for, in_time
from tests.support.callers.tees import Clock, Ends, play, recordings_of, vendor_at
from tests.support.dialects import Recording
from tests.support.processes.ports import free_ports
from tests.support.processes.service_process import ServiceProcess, running_process
from tests.support.waiting import eventually
from voicemem.client import Client
from voicemem.config.service import Address

CALLS = [one for one in recordings_of("openai-realtime", "conversation-relay") if one.name.startswith("barge_in")]


async def check(process: ServiceProcess, recording: Recording) -> None:
    """The service has the memory of the recording, once the session is closed."""

    async def state() -> str:
        session: str = (await process.api.get("/v1/sessions/call")).json["state"]
        return session

    await eventually("ended", state)
    assert recording.document("contents")["contents"] == await process.api.contents("call")


@pytest.mark.parametrize("recording", CALLS, ids=str)
async def test_a_service_that_is_killed_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recording: Recording
) -> None:
    """Before the first frame, and twice later, the service is killed: the memory is the same."""
    rest, ingest = free_ports(2)
    path, clock, count = tmp_path / "calls.db", Clock(monkeypatch), len(recording.envelopes())

    async def restart(number: int) -> None:
        if number in (0, count // 3, 2 * count // 3):
            async with running_process(path, rest=rest, ingest=ingest) as process:
                remembered = voicemem.memory_of(connection)
                remembered.queue.finish()
                if number and remembered.session is not None:
                    await remembered.session.flush()
                await process.kill()

    addresses = Address("127.0.0.1", ingest), Address("127.0.0.1", rest)
    async with client_for(*addresses) as client, vendor_at() as (url, vendor), connect(url) as connection:
        voicemem.tee(connection, client, "call", dialect=recording.dialect)
        await play(recording, Ends(connection.send, connection.recv, await vendor.connected), clock, restart)
        async with running_process(path, rest=rest, ingest=ingest) as process:
            await voicemem.memory_of(connection).aclose(timeout=30)
            assert 0 == voicemem.memory_of(connection).dropped
            await check(process, recording)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_service_that_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """With SIGSTOP, before or after the session is open, the call goes on; after SIGCONT all of it is delivered."""
    recording, clock = CALLS[0], Clock(monkeypatch)
    async with (
        running_process(tmp_path / "calls.db") as process,
        Client(f"ws://{process.ingest_address}", process.rest) as client,
        vendor_at() as (url, vendor),
        AsyncOpenAI(api_key="key", websocket_base_url=url) as sdk,
    ):
        if when == "before":
            process.signal(signal.SIGSTOP)
        async with sdk.realtime.connect(model="gpt-realtime") as connection:
            remembered = voicemem.memory_of(voicemem.tee(connection, client, "call"))

            async def is_open() -> bool:
                return remembered.session is not None

            if when == "after":
                await eventually(True, is_open)
                process.signal(signal.SIGSTOP)

            async def send(text: str) -> None:
                await connection.send(json.loads(text))

            async with in_time():
                await play(recording, Ends(send, connection.recv, await vendor.connected), clock)
                assert await remembered.context() is None
            process.signal(signal.SIGCONT)
            await remembered.aclose(timeout=30)
            assert 0 == remembered.dropped
            await check(process, recording)
