"""`voicemem import` as a process that is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from tests.support.callers.rest import RestClient
from tests.support.servers.vendor_apis import DAY_MS, KEY, elevenlabs_call, retell_call, vendor_server
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App

CALLS = 60


async def start(app: App, *arguments: str) -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", "voicemem", "import", *arguments, "--url", f"http://{app.rest_address}")
    env = os.environ | {"ELEVENLABS_API_KEY": KEY}
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=env)


async def count(app: App) -> int:
    return len((await RestClient(app).get("/v1/sessions")).json["sessions"])


async def test_an_import_that_was_killed_continues(serve: Serve, tmp_path: Path) -> None:
    """What it had stored is known to the next run, which brings the rest; progress is not on standard output."""
    for number in range(CALLS):
        (tmp_path / f"{number:03}.json").write_text(json.dumps(retell_call(f"call_{number}")), "utf-8")
    app = await serve()
    killed = await start(app, "retell", str(tmp_path))
    await eventually(True, lambda: has_begun(app))
    killed.send_signal(signal.SIGKILL)
    await killed.wait()
    stored = await count(app)
    done = await start(app, "retell", str(tmp_path))
    shown, progress = await done.communicate()
    assert done.returncode == 0
    assert await count(app) == CALLS
    imported, known = [int(part.split()[0]) for part in shown.decode().split(", ")[:2]]
    assert imported + known == CALLS
    assert known >= stored
    assert b"importing 60 files" in progress


async def has_begun(app: App) -> bool:
    return await count(app) > 0


async def test_an_import_from_an_api_that_was_killed_fetches_the_rest(serve: Serve) -> None:
    """Calls that the memory has are not fetched again."""
    app = await serve()
    async with vendor_server("elevenlabs", *(elevenlabs_call(f"c{n}", n * DAY_MS // 10) for n in range(CALLS))) as api:
        arguments = ("elevenlabs", "--since", "2025-11-01", "--base-url", api.url)
        killed = await start(app, *arguments)
        await eventually(True, lambda: has_begun(app))
        killed.send_signal(signal.SIGKILL)
        await killed.wait()
        stored, asked = await count(app), len(api.requests)
        done = await start(app, *arguments)
        await done.communicate()
        assert done.returncode == 0
        assert len(api.requests) - asked == 1 + CALLS - stored
    assert await count(app) == CALLS
