"""Whatever is started at once on a new store: there is one store, with all that was promised."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.support.processes.service_process import running_process

ROUNDS, COMMANDS = 3, 3


async def create_key(store: Path, delay_s: float) -> str:
    """The id of a key that was printed as created."""
    await asyncio.sleep(delay_s)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", "keys", "create", "--store", f"sqlite:{store}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, errors
    return out.decode().split("_")[1]


async def list_keys(store: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", "keys", "list", "--store", f"sqlite:{store}"),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0
    return out.decode()


async def test_a_server_and_commands_make_a_store_together(tmp_path: Path) -> None:
    """All succeed, each key is there, and the server requires one, also after it was started again."""
    for number in range(ROUNDS):
        store = tmp_path / f"calls{number}.db"
        async with asyncio.TaskGroup() as group:
            created = [group.create_task(create_key(store, 0.1 * number * one)) for one in range(COMMANDS)]
            async with running_process(store) as server:
                await asyncio.gather(*created)
                assert (await server.api.get("/v1/sessions")).status == 401
                assert await server.stop() == 0
        listed = await list_keys(store)
        assert all(task.result() in listed for task in created)
        async with running_process(store) as server:
            assert (await server.api.get("/v1/sessions")).status == 401
