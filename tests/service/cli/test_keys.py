"""The first key closes a running service."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
from click.testing import CliRunner

from tests.support.services import Serve
from voicemem.cli import main


def keys(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["keys", *arguments])
    return result.exit_code, result.output


async def test_the_first_key_closes_a_running_service(serve: Serve, tmp_path: Path) -> None:
    """Beside a running server: with the first key callers need one, and a revoked one stops working at once."""
    store = f"sqlite:{tmp_path}/calls.db"
    app = await serve(store=store)
    url = f"http://{app.rest_address}/v1/sessions"
    _, output = await asyncio.to_thread(keys, "create", "--store", store)
    key = output.split()[-1]
    async with aiohttp.ClientSession() as http:
        assert (await http.get(url)).status == 401
        allowed = {"Authorization": f"Bearer {key}"}
        assert (await http.get(url, headers=allowed)).status == 200
        await asyncio.to_thread(keys, "revoke", key.split("_")[1], "--store", store)
        assert (await http.get(url, headers=allowed)).status == 401
