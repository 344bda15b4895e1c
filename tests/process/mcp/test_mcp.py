"""`voicemem mcp` as a process: started by its client, or listening for many."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from mcp import Client, StdioServerParameters

from tests.support.callers.mcp_client import answer_of, app_with_call, failure_of, mcp_client
from tests.support.callers.rest import RestClient, client_with_key, make_key
from tests.support.processes.ports import free_ports
from tests.support.services import Serve
from voicemem.app import App
from voicemem.config.service import Address

END_S = 30.0


def program(*arguments: str, **environment: str) -> StdioServerParameters:
    """`voicemem mcp`, as clients start it, with these variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VOICEMEM_")}
    return StdioServerParameters(
        command=sys.executable, args=["-m", "voicemem", "mcp", *arguments], env=inherited | environment
    )


@asynccontextmanager
async def listening(*arguments: str) -> AsyncIterator[tuple[Process, str]]:
    """`voicemem mcp --http` on a free port, and its URL."""
    asked = program("--http", "127.0.0.1:0", *arguments)
    process = await asyncio.create_subprocess_exec(asked.command, *asked.args, stdout=PIPE, env=asked.env)
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        yield process, re.findall(r"http://\S+", line)[0]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ended(*arguments: str, **environment: str) -> tuple[int, str]:
    """The exit code of a start that fails, and what it says."""
    asked = program(*arguments, **environment)
    process = await asyncio.create_subprocess_exec(asked.command, *asked.args, stdin=PIPE, stderr=PIPE, env=asked.env)
    _, errors = await asyncio.wait_for(process.communicate(b""), END_S)
    return process.returncode or 0, errors.decode()


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service with keys, and a call of ann's."""
    return await app_with_call(serve)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_starts_it(app: App, mode: str) -> None:
    """Over standard input and output, with the key of its environment; it ends with its client."""
    url, key = f"http://{app.rest_address}", await make_key(app, "read")
    async with Client(program("--url", url, VOICEMEM_KEY=key), mode=mode) as client:
        found = await answer_of(client, "search_memories", query="walnuts", user_id="ann")
        assert ["I am allergic to walnuts."] == [memory["text"] for memory in found["memories"]]


async def test_a_session_token_may_be_its_key(app: App) -> None:
    """Then it is the memory of one call, which its tools need not name."""
    api = await client_with_key(app, "admin")
    token = (await api.post("/v1/sessions/call-1/tokens")).json["token"]
    async with Client(program("--url", f"http://{app.rest_address}", VOICEMEM_KEY=token)) as client:
        assert "call-1" == (await answer_of(client, "get_history"))["session_id"]


async def test_a_wrong_key_is_said_by_the_tools(app: App) -> None:
    """The process starts, so that its user sees why it does not work."""
    async with Client(program(VOICEMEM_URL=f"http://{app.rest_address}", VOICEMEM_KEY="vm_wrong")) as client:
        said = await failure_of(client, "recent_calls", user_id="ann")
        assert "does not accept the key of this connection" in said


async def test_a_service_that_comes_back_is_used_again(serve: Serve) -> None:
    """Its being away is said, and nothing has to be started again."""
    (port,) = free_ports(1)
    async with Client(program("--url", f"http://127.0.0.1:{port}")) as client:
        assert "did not answer" in await failure_of(client, "recent_calls", user_id="ann")
        assert 6 == len((await client.list_tools()).tools)
        app = await serve(rest=Address("127.0.0.1", port))
        await RestClient(app).create("call-1", user_id="ann")
        (call,) = (await answer_of(client, "recent_calls", user_id="ann"))["calls"]
        assert "call-1" == call["session_id"]


async def test_it_ends_when_its_input_does(app: App) -> None:
    """With exit code 0, as clients of this transport stop it."""
    assert (0, "") == await ended("--url", f"http://{app.rest_address}")


async def test_it_listens_for_many_clients(app: App) -> None:
    """Each sends its own key; a signal ends it with exit code 0."""
    key = await make_key(app, "read")
    async with listening("--url", f"http://{app.rest_address}") as (process, url):
        for _ in range(2):
            async with mcp_client(url, key) as client:
                history = await answer_of(client, "get_history", session_id="call-1")
                assert 1 == len(history["messages"])
        two = [("Authorization", f"Bearer {key}"), ("Authorization", "Bearer other")]
        async with aiohttp.request("POST", url, headers=two, json={}) as answer:
            assert (400, "invalid_request") == (answer.status, (await answer.json())["error"])
        process.send_signal(signal.SIGTERM)
        assert 0 == await asyncio.wait_for(process.wait(), END_S)


async def test_what_cannot_be_is_said_in_one_sentence(app: App) -> None:
    """Addresses that are none or taken, and settings of the other transport."""
    assert "is not an address" in (await ended("--http", "nowhere"))[1]
    async with listening() as (_, url):
        code, said = await ended("--http", url.removeprefix("http://").removesuffix("/mcp"))
        assert 1 == code
        assert "in use" in said
        assert "Traceback" not in said
    assert "are for --http" in (await ended("--mcp-issuer", "https://login.example.com"))[1]
    assert "Leave out --key" in (await ended("--http", "127.0.0.1:0", "--key", "k"))[1]
    assert "must be a URL" in (await ended("--http", "127.0.0.1:0", "--mcp-url", "mcp.example.com"))[1]
    assert "printable ASCII" in (await ended(VOICEMEM_KEY="a key"))[1]


WITHOUT_SDK = (
    "import sys; sys.modules['mcp'] = sys.modules['mcp_types'] = None;"
    " sys.argv = ['voicemem', 'mcp']; from voicemem.cli import main; main()"
)


async def test_without_the_extra_it_says_what_to_install() -> None:
    """All other commands do without it."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", WITHOUT_SDK, stderr=PIPE)
    _, errors = await process.communicate()
    assert 1 == process.returncode
    assert "pip install 'voicemem-core[server,mcp]'" in errors.decode()
