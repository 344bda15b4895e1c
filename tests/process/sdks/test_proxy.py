"""The real openai clients through `voicemem proxy`, while its memory, the proxy itself or its calls come to an end."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.callers.client_sessions import in_time
from tests.support.callers.rest import RestClient
from tests.support.callers.tees import same, text_of
from tests.support.dialects import Recording
from tests.support.processes.ports import free_ports
from tests.support.processes.proxy_process import running_proxy
from tests.support.processes.service_process import ServiceProcess, running_process
from tests.support.waiting import eventually

DIALECT = "openai-realtime"
CALL = Recording(DIALECT, "barge_in_and_hang_up")
SECRETS = ("sk-vendor-secret", "gpt-secret-model")


class Vendors:
    """A vendor that takes many calls; each test plays what it says."""

    def __init__(self) -> None:
        self.connections: asyncio.Queue[ServerConnection] = asyncio.Queue()
        self.url = ""

    async def handle(self, connection: ServerConnection) -> None:
        self.connections.put_nowait(connection)
        await connection.wait_closed()


@pytest.fixture
async def vendors() -> AsyncIterator[Vendors]:
    vendors = Vendors()
    async with serve(vendors.handle, "127.0.0.1", 0, max_size=None) as server:
        vendors.url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/v1"
        yield vendors


@asynccontextmanager
async def calling(
    url: str, vendors: Vendors, session_id: str
) -> AsyncIterator[tuple[AsyncRealtimeConnection, ServerConnection]]:
    """A call of openai's own client: its connection, and the vendor's end."""
    async with (
        AsyncOpenAI(api_key=SECRETS[0], websocket_base_url=url) as sdk,
        sdk.realtime.connect(model=SECRETS[1], extra_headers={"X-Voicemem-Session": session_id}) as connection,
    ):
        yield connection, await vendors.connections.get()


async def cross(connection: AsyncRealtimeConnection, vendor: ServerConnection, envelopes: list[Any]) -> None:
    """Send each frame from its side, and see it arrive."""
    for envelope in envelopes:
        text = text_of(envelope["frame"])
        if envelope.get("from") == "app":
            await connection.send(json.loads(text))
            assert same(await vendor.recv(), text)
        else:
            await vendor.send(text)
            assert same(await connection.recv(), text)


async def is_over(api: RestClient, session_id: str) -> None:
    """A session is ended and delivered."""

    async def state() -> Any:
        return (await api.get(f"/v1/sessions/{session_id}")).json.get("state")

    await eventually("ended", state, timeout_s=60)


async def frames_of(process: ServiceProcess, session_id: str) -> list[Any]:
    """What the journal has of a call's frames, without their times."""
    rows = [row["event"] for row in await process.api.journal(session_id)]
    assert [] == [row for row in rows if row["type"] == "session.gap"]
    return [(row.get("from"), row["frame"]) for row in rows if row["type"] == "frame"]


def proxy_for(process: ServiceProcess, folder: Path, vendors: Vendors, *arguments: str) -> Any:
    return running_proxy(
        folder / "proxy.log",
        vendors.url,
        *arguments,
        rest=process.rest,
        ingest=f"ws://{process.ingest_address}",
    )


@pytest.mark.parametrize("when", ["before", "during"])
async def test_a_memory_that_is_frozen(tmp_path: Path, vendors: Vendors, when: str) -> None:
    """With SIGSTOP the call goes on unchanged; after SIGCONT the memory has all of it, once."""
    envelopes = CALL.envelopes()
    middle = 0 if when == "before" else len(envelopes) // 2
    async with (
        running_process(tmp_path / "calls.db") as process,
        proxy_for(process, tmp_path, vendors) as proxy,
    ):
        async with calling(proxy.url, vendors, "calm") as (connection, vendor):
            await cross(connection, vendor, envelopes)
        await is_over(process.api, "calm")
        if when == "before":
            process.signal(signal.SIGSTOP)
        async with in_time(), calling(proxy.url, vendors, "frozen") as (connection, vendor):
            await cross(connection, vendor, envelopes[:middle])
            process.signal(signal.SIGSTOP)
            await cross(connection, vendor, envelopes[middle:])
        process.signal(signal.SIGCONT)
        await is_over(process.api, "frozen")
        assert texts(await frames_of(process, "calm")) == texts(await frames_of(process, "frozen"))


def texts(frames: list[Any]) -> list[Any]:
    """Frames but for counts of audio, which are added up by time."""
    return [frame for frame in frames if "audio_bytes" not in str(frame)]


async def test_a_memory_that_is_killed(tmp_path: Path, vendors: Vendors) -> None:
    """Killed twice in mid-call and started again, it has the whole call; nothing of keys is in its files or the log."""
    rest, ingest = free_ports(2)
    envelopes = CALL.envelopes()
    third = len(envelopes) // 3
    addresses = {"rest": f"http://127.0.0.1:{rest}", "ingest": f"ws://127.0.0.1:{ingest}"}
    async with running_proxy(tmp_path / "proxy.log", vendors.url, **addresses) as proxy:
        async with calling(proxy.url, vendors, "call") as (connection, vendor):
            for part in range(2):
                async with running_process(tmp_path / "calls.db", rest=rest, ingest=ingest) as process:
                    await cross(connection, vendor, envelopes[part * third : (part + 1) * third])
                    await process.kill()
            await cross(connection, vendor, envelopes[2 * third :])
        async with running_process(tmp_path / "calls.db", rest=rest, ingest=ingest) as process:
            await is_over(process.api, "call")
            frames = texts(await frames_of(process, "call"))
            async with calling(proxy.url, vendors, "calm") as (connection, vendor):
                await cross(connection, vendor, envelopes)
            await is_over(process.api, "calm")
            assert texts(await frames_of(process, "calm")) == frames
            await process.stop()
        proxy.signal(signal.SIGTERM)
        assert 0 == await proxy.ended()
    kept = files_of(tmp_path)
    assert b"A call has ended" in kept
    assert [] == [secret for secret in SECRETS if secret.encode() in kept]


def files_of(folder: Path) -> bytes:
    """All that a test has written: logs and stores."""
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


async def test_calls_last_through_a_drain(tmp_path: Path, vendors: Vendors) -> None:
    """SIGTERM refuses new calls with 503, lets those that there are go on, and ends the proxy after the last one."""
    envelopes = CALL.envelopes()
    middle = len(envelopes) // 2
    async with running_process(tmp_path / "calls.db") as process, proxy_for(process, tmp_path, vendors) as proxy:
        async with calling(proxy.url, vendors, "call") as (connection, vendor):
            await cross(connection, vendor, envelopes[:middle])
            proxy.signal(signal.SIGTERM)
            await proxy.says("draining: 1 call still open")
            with pytest.raises(InvalidStatus) as refused:
                await connect(proxy.url)
            assert 503 == refused.value.response.status_code
            await cross(connection, vendor, envelopes[middle:])
            assert proxy.process.returncode is None
        assert 0 == await proxy.ended()
        await is_over(process.api, "call")


@pytest.mark.parametrize("how", ["second signal", "timeout"])
async def test_a_drain_that_is_cut_short(tmp_path: Path, vendors: Vendors, how: str) -> None:
    """A second signal, or the timeout of the drain, ends the calls; what crossed them by then is remembered."""
    flags = ("--drain-timeout", "0.1") if how == "timeout" else ()
    async with (
        running_process(tmp_path / "calls.db") as process,
        proxy_for(process, tmp_path, vendors, *flags) as proxy,
    ):
        async with calling(proxy.url, vendors, "call") as (connection, vendor):
            await cross(connection, vendor, CALL.envelopes())
            proxy.signal(signal.SIGTERM)
            if how == "second signal":
                await proxy.says("draining")
                proxy.signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed):
                await connection.recv()
        assert 0 == await proxy.ended()
        assert await frames_of(process, "call")
        assert "running" == (await process.api.get("/v1/sessions/call")).json["state"], "it may go on elsewhere"


async def test_a_proxy_that_is_killed(tmp_path: Path, vendors: Vendors) -> None:
    """With SIGKILL its own calls are lost, and those of another proxy and the memory go on."""
    async with (
        running_process(tmp_path / "calls.db") as process,
        proxy_for(process, tmp_path, vendors) as killed,
        proxy_for(process, tmp_path, vendors) as other,
        calling(other.url, vendors, "other") as (going_on, vendor),
    ):
        await cross(going_on, vendor, CALL.envelopes()[:3])
        async with calling(killed.url, vendors, "lost") as (connection, lost):
            await cross(connection, lost, CALL.envelopes()[:3])
            killed.signal(signal.SIGKILL)
            with pytest.raises(ConnectionClosed):
                await connection.recv()
        await lost.wait_closed()
        assert 1006 == lost.close_code
        await cross(going_on, vendor, CALL.envelopes()[3:])
        assert process.alive
