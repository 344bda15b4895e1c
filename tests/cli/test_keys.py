"""`keys create`, `list` and `revoke`, also beside a running service."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
from click.testing import CliRunner
from services import Serve

from voicemem.cli import main


def keys(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["keys", *arguments])
    return result.exit_code, result.output


def test_a_key_is_shown_once_and_listed_without_its_secret(tmp_path: Path) -> None:
    """create prints the key; list prints its id, project, scopes and name only."""
    store = f"sqlite:{tmp_path}/calls.db"
    code, output = keys("create", "--store", store, "--project", "shop", "--scope", "read", "--name", "backend")
    key = output.split()[-1]
    assert (code, key.startswith("vm_")) == (0, True)
    _, listed = keys("list", "--store", store)
    assert [key.split("_")[1], "active", "shop", "read", "backend"] == listed.split()
    assert key.split("_")[2] not in listed


def test_a_revoked_key_is_listed_as_such_and_cannot_be_revoked_twice(tmp_path: Path) -> None:
    """revoke takes the id; the second time there is no active key of that id."""
    store = f"sqlite:{tmp_path}/calls.db"
    key_id = keys("create", "--store", store)[1].split()[-1].split("_")[1]
    assert keys("revoke", key_id, "--store", store)[0] == 0
    assert "revoked" in keys("list", "--store", store)[1]
    assert keys("revoke", key_id, "--store", store)[0] == 1


def test_a_store_in_memory_has_no_keys_to_manage() -> None:
    """The command says what to do instead."""
    code, output = keys("list", "--store", "memory:")
    assert (code, "VOICEMEM_ADMIN_KEY" in output) == (1, True)


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
