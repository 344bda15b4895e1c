"""The official MCP client, against a server over either transport."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent, TextResourceContents

from tests.support.callers.rest import client_with_key
from tests.support.events import final
from tests.support.services import Serve
from voicemem.app import App
from voicemem.config.service import Address
from voicemem.mcp.client import Service
from voicemem.mcp.http import HttpSettings, http_server

T = TypeVar("T")
TIMEOUT_S = 60.0
LOOPBACK = Address("127.0.0.1", 0)


@asynccontextmanager
async def mcp_at(service_url: str, **settings: Any) -> AsyncIterator[str]:
    """The URL of an MCP server over HTTP, for the service at this URL."""
    service = Service(service_url)
    try:
        async with http_server(service, HttpSettings(**{"address": LOOPBACK, **settings})) as url:
            yield url
    finally:
        await service.close()


@asynccontextmanager
async def mcp_client(url: str, key: str | None = None, mode: str = "auto") -> AsyncIterator[Client]:
    """A client that sends this key with each request; `legacy` is how clients of 2025 connect."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


def text_of(result: CallToolResult) -> str:
    """The text of a result."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def answer_of(client: Client, tool: str, **arguments: Any) -> Any:
    """What a tool gives, which is the same as text and as a structure."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    assert json.loads(text_of(result)) == result.structured_content
    return result.structured_content


async def failure_of(client: Client, tool: str, **arguments: Any) -> str:
    """The sentences with which a tool refuses."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, text_of(result)
    return text_of(result)


async def resource_of(client: Client, uri: str) -> Any:
    """The JSON of a resource."""
    (content,) = (await client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    assert "application/json" == content.mime_type
    return json.loads(content.text)


@asynccontextmanager
async def in_one_task(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """A context that is entered and left by one task, as the SDK wants; fixtures are set up and torn down by two."""
    entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()

    async def hold() -> None:
        try:
            async with context as value:
                entered.set_result(value)
                await done.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)

    holding = asyncio.create_task(hold())
    try:
        yield await entered
    finally:
        done.set()
        await holding


async def app_with_call(serve: Serve) -> App:
    """A service with keys, and a call of ann's."""
    app = await serve()
    api = await client_with_key(app, "admin")
    await api.create("call-1", user_id="ann")
    await api.send(final(1, "I am allergic to walnuts.", 1_790_000_000_000), session_id="call-1")
    return app
