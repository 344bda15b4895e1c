"""Two nodes as processes of their own on one PostgreSQL server: a call on both, and the death of one."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.callers.producer import open_producer
from tests.support.events import final_transcript, session_end
from tests.support.postgresql import database_of, server
from tests.support.processes.service_process import ServiceProcess, running_process
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgresql
REPLY = {"type": "llm.done", "turn_id": 1, "text": "It is on its way.", "seq": 1}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """An empty database."""
    with database_of(tmp_path) as name:
        yield server().url(name)


@pytest.fixture
async def nodes(tmp_path: Path, url: str) -> AsyncIterator[tuple[ServiceProcess, ServiceProcess]]:
    """Two nodes on it."""
    async with running_process(tmp_path / "a", url=url) as one, running_process(tmp_path / "b", url=url) as other:
        yield one, other


async def listed(url: str) -> list[list[str]]:
    """What `voicemem nodes` says of each node."""
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "voicemem", "nodes", "--store", url, stdout=asyncio.subprocess.PIPE
    )
    shown, _ = await command.communicate()
    assert 0 == command.returncode
    return [line.split() for line in shown.decode().splitlines()]


async def states(url: str) -> dict[str, str]:
    """The state of each node, by its token."""
    return {token: state for token, state, *_ in await listed(url)}


async def token(node: ServiceProcess) -> str:
    return str((await node.api.get("/readyz")).json["node"])


async def texts(node: ServiceProcess) -> list[str]:
    return [one["content"] for one in (await node.api.get("/v1/sessions/s/history")).json["contents"]]


async def is_ended(node: ServiceProcess) -> bool:
    return bool((await node.api.session("s"))["state"] == "ended")


async def test_lines_of_the_log_name_their_node(tmp_path: Path, url: str) -> None:
    """Each line since the start, so that the logs of several can be read as one."""
    arguments = ("--log-format", "json", "--log-level", "info")
    async with running_process(tmp_path / "a", *arguments, url=url) as node:
        name = await token(node)
        await node.api.create()
        assert 0 == await node.stop()
    lines = [json.loads(line) for line in node.log.read_text().splitlines()]
    assert {name} == {
        line.get("node") for line in lines if line["message"] in {"Started", "Stopping", "A session was opened"}
    }
    assert {"Started", "Stopping"} <= {line["message"] for line in lines}


async def test_a_call_on_two_nodes_outlives_one(url: str, nodes: tuple[ServiceProcess, ServiceProcess]) -> None:
    """Producers sit on both; one node is killed, its producer goes on at the other, and nothing is lost."""
    one, other = nodes
    tokens = [await token(one), await token(other)]
    assert dict.fromkeys(tokens, "alive") == await states(url)
    assert [one.rest, other.rest] == [f"http://{address}" for _, _, address, *_ in await listed(url)]
    async with open_producer(one, producer="asr") as asr, open_producer(other, producer="llm") as llm:
        await asr.store(final_transcript(1, "Where is my order?", turn_id=1))
        await llm.store(REPLY)
        assert ["Where is my order?", "It is on its way."] == await texts(one) == await texts(other)
        await one.kill()
        async with open_producer(other, producer="asr") as moved:
            await moved.store(final_transcript(2, "Thank you.", turn_id=2), session_end(3))
            await llm.store(session_end(2))
            await eventually(True, lambda: is_ended(other))
    assert ["Where is my order?", "It is on its way.", "Thank you."] == await texts(other)
    await eventually({tokens[1]: "alive"}, lambda: states(url), timeout_s=60)
