"""Who may come in over HTTP, and what a key or a session token opens."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import io
from typing import Any

import aiohttp
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from tests.support.callers.mcp_client import answer_of, failure_of, mcp_at, mcp_client, resource_of
from tests.support.callers.rest import RestClient, client_with_key, make_key
from tests.support.events import final
from tests.support.services import Serve
from voicemem.app import App
from voicemem.config.service import Address
from voicemem.errors import CannotStart
from voicemem.mcp.client import Service
from voicemem.mcp.http import HttpSettings, check_reach

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}
WELL_KNOWN = "/.well-known/oauth-protected-resource"


async def with_calls(app: App, project: str = "default") -> RestClient:
    """A caller with all rights in a project, in which ann has called twice and bob once."""
    api = await client_with_key(app, "admin", project=project)
    for session_id, user_id, text in (
        ("ann-1", "ann", f"I am allergic to walnuts, says {project}."),
        ("ann-2", "ann", "My walnut tree has died."),
        ("bob-1", "bob", "Walnuts are my favourite."),
    ):
        await api.create(session_id, user_id=user_id)
        await api.send(final(1, text, 1_790_000_000_000), session_id=session_id)
    return api


async def token_of(api: RestClient, session_id: str, **more: Any) -> str:
    answered = await api.post(f"/v1/sessions/{session_id}/tokens", more)
    assert 201 == answered.status, answered.body
    return str(answered.json["token"])


async def post(url: str, **headers: str) -> tuple[int, dict[str, str], Any]:
    """Status, headers and body of the answer to a client's first request."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=INITIALIZE, headers=ACCEPT | headers) as answer,
    ):
        return answer.status, dict(answer.headers), await answer.text()


async def get_json(url: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert 200 == answer.status
        return await answer.json()


def url_of(app: App) -> str:
    return f"http://{app.rest_address}"


async def texts_found(client: Client, **arguments: Any) -> list[str]:
    found = await answer_of(client, "search_memories", query="walnuts", **arguments)
    return sorted(memory["text"] for memory in found["memories"])


async def test_a_wrong_key_is_told_where_to_read_how_to_get_in(serve: Serve) -> None:
    """401 with the address of the metadata (RFC 9728), for no key, a wrong one and what cannot be one."""
    app = await serve()
    await with_calls(app)
    async with mcp_at(url_of(app)) as url:
        metadata = url.replace("/mcp", f"{WELL_KNOWN}/mcp")
        for sent in ({}, {"Authorization": "Bearer vm_000000000000_" + "x" * 40}, {"Authorization": "Bearer a.b.c"}):
            status, headers, body = await post(url, **sent)
            assert 401 == status
            assert f'resource_metadata="{metadata}"' in headers["WWW-Authenticate"]
            assert "invalid_token" in body
        assert 401 == (await post(url, Authorization="Basic YTpi"))[0]
        assert 200 == (await post(url, **(await client_with_key(app, "read")).headers))[0]
        document = await get_json(metadata)
        assert (url, ["header"]) == (document["resource"], document["bearer_methods_supported"])
        assert "authorization_servers" not in document


async def test_metadata_name_the_issuer_and_the_public_address(serve: Serve) -> None:
    """As an operator has set them."""
    app = await serve()
    await with_calls(app)
    public, issuer = "https://mcp.example.com/memory/mcp", "https://login.example.com"
    async with mcp_at(url_of(app), public_url=public, issuer=issuer, address=Address("127.0.0.1", 0)) as url:
        assert public == url
    async with mcp_at(url_of(app), issuer=issuer) as url:
        assert [issuer] == (await get_json(url.replace("/mcp", WELL_KNOWN)))["authorization_servers"]


async def test_a_key_opens_its_project_only(serve: Serve) -> None:
    """Several clients at once, each with its own key: each finds its own, and never another's."""
    app = await serve()
    for project in ("default", "shop", "bank"):
        await with_calls(app, project)
    keys = {project: await make_key(app, "read", project=project) for project in ("default", "shop", "bank")}

    async def ask(url: str, project: str) -> list[list[str]]:
        async with mcp_client(url, keys[project]) as client:
            return list(await asyncio.gather(*(texts_found(client, user_id="ann") for _ in range(3))))

    async with mcp_at(url_of(app)) as url:
        projects = ["default", "shop", "bank"] * 2
        for project, answers in zip(
            projects, await asyncio.gather(*(ask(url, project) for project in projects)), strict=True
        ):
            assert [[f"I am allergic to walnuts, says {project}.", "My walnut tree has died."]] * 3 == answers


async def test_a_session_token_has_fixed_the_session(serve: Serve) -> None:
    """Its tools have no user and no session to choose; other sessions and what the user said on them stay closed."""
    app = await serve()
    api = await with_calls(app)
    token = await token_of(api, "ann-1")
    async with mcp_at(url_of(app)) as url, mcp_client(url, token) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"search_memories", "get_context", "get_history", "remember", "forget"} == tools.keys()
        for tool in tools.values():
            assert tool.input_schema["properties"].keys().isdisjoint({"user_id", "session_id"})
        assert ["I am allergic to walnuts, says default."] == await texts_found(client)
        assert "no field `user_id`" in await failure_of(client, "search_memories", query="x", user_id="bob")
        assert "no field `session_id`" in await failure_of(client, "get_history", session_id="ann-2")
        assert "there are search_memories" in await failure_of(client, "recent_calls", user_id="ann")
        assert 1 == len((await answer_of(client, "get_history"))["messages"])
        assert 1 == len((await answer_of(client, "get_context"))["messages"])
        (resource,) = (await client.list_resources()).resources
        assert "voicemem://sessions/ann-1/history" == resource.uri
        assert "ann-1" == (await resource_of(client, resource.uri))["session_id"]
        assert [] == (await client.list_resource_templates()).resource_templates
        for closed in ("voicemem://sessions/ann-2/history", "voicemem://users/ann/memories"):
            with pytest.raises(MCPError, match="session token"):
                await client.read_resource(closed)


async def test_a_token_may_reach_the_memories_of_its_user(serve: Serve) -> None:
    """Made with `memories`, it finds what the user said on every call, and lists these; nothing of other users."""
    app = await serve()
    api = await with_calls(app)
    token = await token_of(api, "ann-1", memories="user")
    async with mcp_at(url_of(app)) as url, mcp_client(url, token) as client:
        assert ["I am allergic to walnuts, says default.", "My walnut tree has died."] == await texts_found(client)
        calls = (await answer_of(client, "recent_calls"))["calls"]
        assert ["ann-1", "ann-2"] == sorted(call["session_id"] for call in calls)
        assert "no field `session_id`" in await failure_of(client, "get_history", session_id="ann-2")
        with pytest.raises(MCPError, match="does not reach the memories of this user"):
            await client.read_resource("voicemem://users/bob/memories")


async def test_a_key_may_lack_a_scope(serve: Serve) -> None:
    """The tool says which, and whom to ask."""
    app = await serve()
    await with_calls(app)
    async with mcp_at(url_of(app)) as url, mcp_client(url, await make_key(app, "ingest")) as client:
        said = await failure_of(client, "get_history", session_id="ann-1")
        assert "The key does not have the scope read." in said
        assert "ask the person who set it up" in said


async def test_a_key_that_is_revoked_opens_nothing_more(serve: Serve) -> None:
    """Also for a client that is connected."""
    app = await serve()
    await with_calls(app)
    key, text = await app.services.access.create_key("default", "test", ("read",))
    async with mcp_at(url_of(app)) as url, mcp_client(url, text) as client:
        assert await texts_found(client, user_id="ann")
        await app.services.access.revoke_key("default", key.id)
        assert "does not accept the key" in await failure_of(client, "search_memories", query="x", user_id="ann")


async def test_a_service_that_is_away_is_said_so(serve: Serve) -> None:
    """Clients still connect and list the tools; each call says to go on without the memory, and whether it was done."""
    async with mcp_at("http://127.0.0.1:9") as url, mcp_client(url, "vm_any_key") as client:
        assert 6 == len((await client.list_tools()).tools)
        for tool, arguments in (
            ("search_memories", {"query": "nuts", "user_id": "ann"}),
            ("get_history", {"session_id": "s"}),
            ("recent_calls", {"user_id": "ann"}),
        ):
            said = await failure_of(client, tool, **arguments)
            assert "did not answer (connection refused)" in said
            assert "Go on without the memory" in said
        said = await failure_of(client, "remember", text="Ann likes tea.", user_id="ann")
        assert "it is not certain whether this was done" in said
        with pytest.raises(MCPError, match="did not answer"):
            await client.read_resource("voicemem://sessions/s/history")


async def test_an_open_memory_is_not_opened_to_others(serve: Serve) -> None:
    """Without keys, only loopback may ask, unless an operator allows it; with the first key, whoever has one."""
    app = await serve()
    everywhere = Address("0.0.0.0", 0)
    async with mcp_at(url_of(app), address=everywhere) as url:
        reached = url.replace("0.0.0.0", "127.0.0.1")
        for sent in ({}, {"Authorization": "Bearer anything"}):
            status, _, body = await post(reached, **sent)
            assert 403 == status
            assert "The memory service has no keys" in body
        key = await make_key(app, "read")
        assert 200 == (await post(reached, Authorization=f"Bearer {key}"))[0]
        assert 401 == (await post(reached))[0]


async def test_a_start_says_that_a_memory_without_keys_would_be_open_to_all(serve: Serve) -> None:
    """It is refused; a service that has keys, or is away, is asked again at each request."""
    everywhere = HttpSettings(Address("0.0.0.0", 0))
    app = await serve()
    open_to_all, away = Service(url_of(app)), Service("http://127.0.0.1:9")
    try:
        with pytest.raises(CannotStart, match=r"has no keys.*--insecure"):
            await check_reach(open_to_all, everywhere)
        await check_reach(open_to_all, everywhere._replace(insecure=True))
        await check_reach(away, everywhere)
        await make_key(app, "read")
        await check_reach(open_to_all, everywhere)
    finally:
        await open_to_all.close()
        await away.close()


async def test_an_operator_may_open_it_to_all(serve: Serve) -> None:
    """As `--insecure` does for the service."""
    app = await serve()
    async with mcp_at(url_of(app), address=Address("0.0.0.0", 0), insecure=True) as url:
        assert 200 == (await post(url.replace("0.0.0.0", "127.0.0.1")))[0]


async def test_web_pages_do_not_come_in_through_a_browser(serve: Serve) -> None:
    """On loopback, other names and the pages of others are refused, as the service itself does."""
    app = await serve()
    async with mcp_at(url_of(app)) as url:
        assert 200 == (await post(url))[0]
        assert 421 == (await post(url, Host="rebound.example.com"))[0]
        assert 403 == (await post(url, Origin="https://evil.example.com"))[0]
        assert 200 == (await post(url, Origin="http://localhost:6274"))[0]


async def test_requests_that_are_none_are_refused(serve: Serve) -> None:
    """A stream that no one would write to, a body that is no JSON, or one that is too large."""
    app = await serve()
    async with mcp_at(url_of(app)) as url, aiohttp.ClientSession() as session:
        async with session.get(url, headers=ACCEPT) as answer:
            assert 405 == answer.status
        async with session.post(url, data=b"{", headers=ACCEPT | {"Content-Type": "application/json"}) as answer:
            assert 400 == answer.status
        async with session.post(url, data=io.BytesIO(b" " * (5 << 20)), headers=ACCEPT) as answer:
            assert 413 == answer.status
