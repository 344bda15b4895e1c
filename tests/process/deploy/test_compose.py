"""deploy/compose.yaml: accepted by Compose itself, and what it starts, started without containers."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.deploy_files import NODES
from tests.support.needs import needs
from tests.support.paths import DEPLOY
from tests.support.postgresql import server
from tests.support.processes.ports import free_ports
from tests.support.processes.service_process import running_process
from tests.support.servers.proxies import replaced, running_proxy
from tests.support.waiting import eventually
from voicemem.client import Client, Options

KEY = "an admin key of the tests, with no other use"
OPTIONS = Options(open_timeout_s=15, close_timeout_s=15)
HOSTS = dict(zip(NODES, ("127.0.0.2", "127.0.0.3"), strict=True))
"""The nodes have a host each, so that their ports are the same, as in containers."""
DATABASE = "voicemem_compose"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like deploy/, with a filled in `.env`."""
    folder = tmp_path_factory.mktemp("deploy")
    for name in ("compose.yaml", "nodes.Caddyfile"):
        shutil.copy(DEPLOY / name, folder)
    example = (DEPLOY / "compose.env.example").read_text()
    filled = re.sub(
        r"^(POSTGRES_PASSWORD|DATABASE_PASSWORD|VOICEMEM_ADMIN_KEY)=$", rf"\1={KEY}", example, flags=re.MULTILINE
    )
    assert 3 == filled.count(KEY)
    (folder / ".env").write_text(filled)
    return folder


def compose_config(folder: Path) -> subprocess.CompletedProcess[str]:
    """What Compose makes of the file: it needs no engine for that."""
    binary = needs("docker-compose")
    environment = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    return subprocess.run(
        [binary, "-f", folder / "compose.yaml", "config", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )


@pytest.fixture(scope="module")
def services(project: Path) -> dict[str, Any]:
    """The services, as Compose reads them."""
    result = compose_config(project)
    assert (0, "") == (result.returncode, result.stderr)
    return dict(json.loads(result.stdout)["services"])


def test_compose_takes_the_file(services: dict[str, Any]) -> None:
    """It finds nothing to complain about, and the services that the page names."""
    assert {"postgres", "migrate", *NODES, "caddy"} == set(services)


def test_compose_starts_nothing_without_secrets(project: Path, tmp_path: Path) -> None:
    """With an example that was not filled in it says what to set, and where."""
    for name in ("compose.yaml", "nodes.Caddyfile"):
        shutil.copy(project / name, tmp_path)
    shutil.copy(DEPLOY / "compose.env.example", tmp_path / ".env")
    result = compose_config(tmp_path)
    assert 0 != result.returncode
    assert "set it in deploy/.env" in result.stderr


@pytest.fixture
def store() -> Iterator[str]:
    """A database that no one has opened."""
    server().execute(f"create database {DATABASE}")
    yield server().url(DATABASE)
    server().execute(f"drop database {DATABASE} with (force)")


def caddyfile(folder: Path, front: int, ports: dict[str, int]) -> Path:
    """The Caddyfile of the nodes, without TLS, on these ports."""
    changes = {**HOSTS, **{f":{port}": f":{taken}" for port, taken in ports.items()}}
    changes |= {"health_port 8080": f"health_port {ports['8080']}"}
    changes |= {"{$SITE:memory.example} {": f"http://:{front} {{\n\tbind 127.0.0.1"}
    config = folder / "Caddyfile"
    config.write_text("{\n\tadmin off\n\tauto_https off\n}\n" + replaced("nodes.Caddyfile", changes))
    return config


def settings(services: dict[str, Any], name: str, store: str, ports: dict[str, int]) -> dict[str, str]:
    """A service's environment, with the store and the ports of this test."""
    given = dict(services[name]["environment"])
    assert {"PGPASSWORD", "VOICEMEM_STORE", "VOICEMEM_REST", "VOICEMEM_INGEST"} <= set(given)
    host = HOSTS.get(name, "127.0.0.1")
    changes = {"VOICEMEM_REST": f"{host}:{ports['8080']}", "VOICEMEM_INGEST": f"{host}:{ports['8765']}"}
    return given | changes | {"VOICEMEM_STORE": store}


async def test_without_a_node_the_answer_is_an_error_at_once(tmp_path: Path) -> None:
    """An agent continues without its memory, and none of its turns waits for the proxy."""
    caddy = needs("caddy")
    front, *inner = free_ports(3)
    config = caddyfile(tmp_path, front, dict(zip(("8080", "8765"), map(int, inner), strict=True)))
    async with (
        running_proxy([caddy, "run", "--adapter", "caddyfile", "--config", str(config)], front),
        aiohttp.ClientSession() as http,
    ):
        for path in ("/v1/chat/completions", "/v1/sessions/s/context", "/v1/ingest"):
            begun = time.monotonic()
            async with http.get(f"http://127.0.0.1:{front}{path}") as answer:
                assert answer.status in (502, 503)
            assert time.monotonic() - begun < 1


@pytest.mark.postgresql
async def test_a_call_behind_caddy_outlives_a_node(services: dict[str, Any], store: str, tmp_path: Path) -> None:
    """Migrate, two nodes, Caddy: one node is killed, and the client goes on at the other one through the proxy."""
    caddy = needs("caddy")
    front, *inner = free_ports(3)
    ports = dict(zip(("8080", "8765"), map(int, inner), strict=True))
    migrated = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", *services["migrate"]["command"]),
        env={**os.environ, **settings(services, "migrate", store, ports)},
    )
    assert 0 == await migrated.wait()
    config = caddyfile(tmp_path, front, ports)
    async with AsyncExitStack() as stack:
        starting = []
        for name in NODES:
            given = settings(services, name, store, ports)
            addresses = ("--rest", given["VOICEMEM_REST"], "--ingest", given["VOICEMEM_INGEST"])
            starting.append(running_process(tmp_path / name, *addresses, url=store, env=given))
        nodes = await asyncio.gather(*map(stack.enter_async_context, starting))
        await stack.enter_async_context(
            running_proxy([caddy, "run", "--adapter", "caddyfile", "--config", str(config)], front)
        )
        url = f"127.0.0.1:{front}"
        producers = {}
        for name in ("asr", "llm"):
            client = await stack.enter_async_context(Client(f"ws://{url}", f"http://{url}", KEY, options=OPTIONS))
            producers[name] = await client.open("s", producer=name)
        await producers["asr"].send({"type": "asr", "turn_id": 1, "text": "Where is my order?", "final": True})
        await producers["llm"].send({"type": "llm.done", "turn_id": 1, "text": "On its way."})
        await nodes[0].kill()
        await producers["asr"].send({"type": "asr", "turn_id": 2, "text": "Thank you.", "final": True})
        await producers["llm"].send({"type": "llm.done", "turn_id": 2, "text": "You are welcome."})
        for producer in producers.values():
            await producer.end("hangup")

        async def history() -> list[str]:
            return [one["content"] for one in (await producers["asr"].history(timeout=10))["contents"]]

        await eventually(["Where is my order?", "On its way.", "Thank you.", "You are welcome."], history)
        assert [1, 2] == sorted(producer.epoch or 0 for producer in producers.values())
