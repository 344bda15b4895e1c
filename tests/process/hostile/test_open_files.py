"""A process that may open few files answers its health checks, whatever connects to it and stays."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import random
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from tests.support.callers.producer import connected_producer
from tests.support.callers.raw_http import handshake_head
from tests.support.callers.raw_websocket import TEXT, websocket_frame
from tests.support.processes.service_process import ServiceProcess, running_process

KEY = "an-admin-key-of-some-length"
FILES = 256
SOCKETS = 240


@asynccontextmanager
async def service(tmp_path: Path) -> AsyncIterator[ServiceProcess]:
    """A service with a key that may open few files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, files[1]))  # what the process inherits
    try:
        running = running_process(tmp_path / "calls.db", env={"VOICEMEM_ADMIN_KEY": KEY})
        process = await running.__aenter__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
    try:
        yield process
    finally:
        await running.__aexit__(None, None, None)


async def occupy(address: tuple[str, int], greeting: bytes) -> None:
    """Keep a connection open, and come back whenever it is closed."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(greeting)
                while await reader.read(65_536):
                    pass
            finally:
                writer.transport.abort()
        await asyncio.sleep(random.uniform(0.2, 1.0))


async def healthy(url: str) -> bool:
    """Whether a probe on a connection of its own gets a 200 within seconds."""
    with suppress(aiohttp.ClientError):
        async with aiohttp.ClientSession() as session, asyncio.timeout(5), session.get(url) as response:
            return response.status == 200
    return False


@pytest.mark.parametrize("port", ["ingest", "rest"])
@pytest.mark.parametrize("greeting", ["nothing", "half a head", "half a frame"])
async def test_health_is_answered_while_idle_sockets_come_back(tmp_path: Path, port: str, greeting: str) -> None:
    """Neither probes nor callers with a key are held up; on the port that is sought, never three probes in a row."""
    async with service(tmp_path) as process:
        host, _, number = process.rest.removeprefix("http://").rpartition(":")
        address = (str(process.ingest_address.host), process.ingest_address.port)
        said = {"nothing": b"", "half a head": handshake_head(process.ingest_address)[:-2]}
        half = websocket_frame(TEXT, b" " * 16_000, length=1_000_000)
        bytes_said = said.get(greeting, handshake_head(process.ingest_address) + half)
        target = address if port == "ingest" else (host, int(number))
        occupiers = [asyncio.create_task(occupy(target, bytes_said)) for _ in range(SOCKETS)]
        answers: list[bool] = []
        try:
            for _ in range(10):
                for path in ("/livez", "/readyz"):
                    answers.append(await healthy(f"{process.rest}{path}"))
                async with (
                    asyncio.timeout(10),
                    connected_producer(process, {"Authorization": f"Bearer {KEY}"}) as producer,
                ):
                    await producer.open("s")
            assert process.alive
            assert all(answers if port == "ingest" else [True in answers[at : at + 3] for at in range(18)])
        finally:
            for task in occupiers:
                task.cancel()
            await asyncio.gather(*occupiers, return_exceptions=True)
        assert 0 == await process.stop()
        assert b"" == process.log.read_bytes()
