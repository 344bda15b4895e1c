"""`voicemem keys` beside a service that runs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiohttp

from tests.support.processes.service_process import ServiceProcess, running_process


async def keys(server: ServiceProcess, command: str, *arguments: str) -> str:
    """What `voicemem keys` prints on standard output; it must succeed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", "keys", command, "--store", f"sqlite:{server.store}", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, errors
    return out.decode().strip()


async def begin(server: ServiceProcess, key: str, session_id: str) -> tuple[int, str | None]:
    """The status with which a session is begun, and the reason if it is refused."""
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(server.rest, headers=headers) as http,
        http.post("/v1/sessions", json={"session_id": session_id}) as answer,
    ):
        return answer.status, (await answer.json()).get("reason")


async def test_limits_of_keys_hold_beside_a_running_service(tmp_path: Path) -> None:
    """A key is made with limits, and they are changed, in another process; the service keeps to them at once."""
    async with running_process(tmp_path / "calls.db") as server:
        key = await keys(server, "create", "--scope", "ingest", "--open-sessions", "1", "--events-per-second", "100")
        key_id = key.split("_")[1]
        assert "events_per_second=100  open_sessions=1" in await keys(server, "list")
        assert await begin(server, key, "a") == (201, None)
        assert await begin(server, key, "b") == (429, "quota_exceeded")
        assert "changed" in await keys(server, "limits", key_id, "--open-sessions", "2")
        assert "events_per_second=100  open_sessions=2" in await keys(server, "list")
        assert await begin(server, key, "b") == (201, None)
        assert await begin(server, key, "c") == (429, "quota_exceeded")
        await keys(server, "limits", key_id, "--open-sessions", "0", "--events-per-second", "0")
        assert await begin(server, key, "c") == (201, None)
        assert "open_sessions" not in await keys(server, "list")
