"""docs/mcp.md: its configurations and programs work, and its tables have all that there is."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
import os
import re
import sys
import warnings
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from tests.support.callers.mcp_client import answer_of, app_with_call, mcp_at, mcp_client
from tests.support.callers.rest import client_with_key, make_key
from tests.support.documentation import TEXTS, code_blocks
from tests.support.needs import needs_module
from tests.support.services import Serve
from voicemem.app import App
from voicemem.mcp.server import TEMPLATES
from voicemem.mcp.tools import TOOLS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it declares its models as pydantic 1 did
    from agora_agent.types.mcp_server import McpServer

PAGE = TEXTS["mcp.md"]
STARTED, REACHED, AGORA = (json.loads(block) for block in code_blocks(PAGE, "json"))


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service with keys, and a call of ann's."""
    return await app_with_call(serve)


async def token_of(app: App) -> str:
    """A token as the page asks for it."""
    asked = json.loads(re.findall(r"-d '(\{.*?\})'", PAGE)[0])
    made = await (await client_with_key(app, "admin")).post("/v1/sessions/call-1/tokens", asked)
    assert 201 == made.status, made.body
    return str(made.json["token"])


async def test_the_configuration_of_a_client_that_starts_it(app: App) -> None:
    """With the address and a key in place of those on the page."""
    server = STARTED["mcpServers"]["voicemem"]
    assert "voicemem" == server["command"]
    assert {"VOICEMEM_URL", "VOICEMEM_KEY"} == server["env"].keys()
    key = await make_key(app, "read")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VOICEMEM_")}
    started = StdioServerParameters(
        command=sys.executable,
        args=["-m", "voicemem", *server["args"]],
        env=inherited | {"VOICEMEM_URL": f"http://{app.rest_address}", "VOICEMEM_KEY": key},
    )
    async with Client(started) as client:
        assert 1 == len((await answer_of(client, "recent_calls", user_id="ann"))["calls"])


async def test_the_configuration_of_a_client_that_connects(app: App) -> None:
    """It sends the header that the page gives it."""
    server = REACHED["mcpServers"]["voicemem"]
    assert server["url"].endswith("/mcp")
    assert ["Authorization"] == list(server["headers"])
    async with mcp_at(f"http://{app.rest_address}") as url, mcp_client(url, await make_key(app, "read")) as client:
        assert 1 == len((await answer_of(client, "recent_calls", user_id="ann"))["calls"])


def program_with(name: str) -> dict[str, Any]:
    """What the program of the page that defines this defines."""
    (source,) = [block for block in code_blocks(PAGE, "python") if f"def {name}(" in block]
    defined: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pipecat imports what Python 3.13 no longer has
        exec(source, defined)
    return defined


async def test_a_livekit_agent_has_the_tools(app: App) -> None:
    """As the page makes it, with the token of its call."""
    needs_module("livekit.agents", "livekit")
    async with mcp_at(f"http://{app.rest_address}") as url:
        agent = program_with("agent_with_memory")["agent_with_memory"](url, await token_of(app))
        (toolset,) = agent.tools
        await toolset.setup()
        try:
            assert {tool.name for tool in TOOLS} == {tool.info.name for tool in toolset.tools}
        finally:
            await toolset.aclose()


async def test_a_pipecat_bot_has_the_tools(app: App) -> None:
    """As the page makes them."""
    needs_module("pipecat", "pipecat")
    async with mcp_at(f"http://{app.rest_address}") as url:
        client = program_with("memory_tools")["memory_tools"](url, await token_of(app))
        try:
            tools = await client.tools()
            assert {tool.name for tool in TOOLS} == {tool.name for tool in tools.standard_tools}
        finally:
            await client.close()


def test_agoras_configuration_is_one_that_its_client_knows() -> None:
    """Every field is one of its type, and the tools are there."""
    (server,) = AGORA["mcp_servers"]
    assert server.keys() <= McpServer.model_fields.keys()
    assert server == McpServer(**server).model_dump(exclude_none=True)
    assert set(server["allowed_tools"]) <= {tool.name for tool in TOOLS}


def test_every_tool_and_its_arguments_stand_on_the_page() -> None:
    """In the order of the list, and no others."""
    table = PAGE.partition("## The tools")[2].partition("| resource |")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE)
    documented = {name: set(re.findall(r"`(\w+)`", arguments)) for name, arguments in rows}
    assert {tool.name: set(tool.arguments.__struct_fields__) for tool in TOOLS} == documented
    assert [tool.name for tool in TOOLS] == list(documented)


def test_every_resource_stands_on_the_page() -> None:
    """By the form of its address."""
    addresses = [template.uri_template for template in TEMPLATES]
    assert [address for address in addresses if f"| `{address}` |" not in PAGE] == []
