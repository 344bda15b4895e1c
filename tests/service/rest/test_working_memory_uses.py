"""Working memory over REST: contexts, tools, tokens, races, and the end of a user."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.raw_http import raw_exchange
from tests.support.callers.rest import RestClient, fresh_id
from tests.support.callers.working_memory import (
    DATA,
    OF_ANN,
    OF_SESSION,
    PROFILE,
    TEMPLATE,
    append,
    content,
    put,
    two,
    use,
)
from tests.support.events import final
from tests.support.rows import every_row
from tests.support.services import Serve, running_service
from tests.support.stores.contract import start_alone
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.protocol.types import JsonObject

KIND = {"role": "system", "content": "Be kind."}


# Context


async def test_where_it_stands_in_the_context(api: RestClient) -> None:
    """After the session's own system messages, before what was said; an empty one shows its template."""
    await api.create(system_messages=[KIND], working_memory={"template": TEMPLATE, "tools": True})
    await api.send(final(1, "Hi."))
    system, said = (message["content"] for message in (await api.context())["messages"])
    assert "Hi." == said
    assert system.startswith(f"{KIND['content']}\n\n")
    assert TEMPLATE in system
    assert "update_working_memory" in system
    await put(api, OF_SESSION, {"content": "# Caller\n- Name: Ann"})
    assert "- Name: Ann" in (await api.context())["messages"][0]["content"]
    assert "- Booking:" not in (await api.context())["messages"][0]["content"]
    anthropic = await api.context("?style=anthropic")
    assert "- Name: Ann" in anthropic["system"]


async def test_a_session_without_working_memory_has_nothing_of_it(api: RestClient) -> None:
    """Until someone writes a document of its own."""
    await api.create(user_id="ann")
    await append(api, OF_ANN, "Likes tea.")
    assert {"messages": []} == await api.context()
    await append(api, OF_SESSION, "Wants a table.")
    assert "Wants a table." in (await api.context())["messages"][0]["content"]


async def test_documents_count_as_system_tokens(api: RestClient) -> None:
    """What a document takes of the window is in the account of the context."""
    await api.create(working_memory={})
    before = (await api.context("?usage=true"))["system_tokens"]
    await append(api, OF_SESSION, "many words " * 500)
    assert (await api.context("?usage=true"))["system_tokens"] > before + 900


# Tools


async def test_an_agent_fills_a_template_through_its_tools(api: RestClient) -> None:
    """It reads the template, puts it back filled, adds to it, and reads what it knows."""
    await api.create(working_memory={"template": TEMPLATE})
    tools = (await api.get(f"{OF_SESSION}/tools")).json["tools"]
    names = [tool["function"]["name"] for tool in tools]
    assert ["get_working_memory", "update_working_memory", "clear_working_memory"] == names
    empty = await use(api, "get_working_memory")
    assert TEMPLATE == empty
    await use(api, "update_working_memory", content=empty.replace("Name:", "Name: Ann"), mode="replace")
    await use(api, "update_working_memory", content="Prefers the terrace.")
    filled = "# Caller\n- Name: Ann\n- Booking:\n\n\nPrefers the terrace."
    assert filled == await use(api, "get_working_memory") == await content(api)
    await use(api, "clear_working_memory")
    assert (None, TEMPLATE) == (await content(api), await use(api, "get_working_memory"))


async def test_what_an_llm_fills_in_takes_nothing_away(api: RestClient) -> None:
    """In strict mode it fills in each field: null, an empty list and an empty object keep what there is."""
    await put(api, OF_ANN, {"format": "json"})
    first = {"name": "Ann", "home": {"city": "Bonn", "street": None}, "likes": None, "job": {"title": None}}
    await use(api, "update_working_memory", OF_ANN, content=first)
    known = {"name": "Ann", "home": {"city": "Bonn"}}
    assert known == (await api.get(OF_ANN)).json["content"]
    updates: list[JsonObject] = [{"name": None, "home": None}, {"home": {"city": None}, "likes": []}, {"home": {}}, {}]
    for padded in updates:
        await use(api, "update_working_memory", OF_ANN, content=padded, mode=None)
        assert known == (await api.get(OF_ANN)).json["content"]
    await use(api, "update_working_memory", OF_ANN, content=json.dumps({"name": None, "likes": ["sun"]}))
    assert known | {"likes": ["sun"]} == (await api.get(OF_ANN)).json["content"]
    await api.patch(OF_ANN, {"content": {"name": None}})  # a caller of REST means it
    assert (await api.get(OF_ANN)).json["content"]["name"] is None


async def test_the_schema_is_in_the_tool(api: RestClient) -> None:
    """The LLM gets the document's schema as that of the content, with its references at their new place."""
    await put(api, OF_ANN, {"schema": PROFILE})
    update = (await api.get(f"{OF_ANN}/tools")).json["tools"][1]["function"]["parameters"]
    shown = update["properties"]["content"]
    assert PROFILE["properties"]["name"] == shown["properties"]["name"]
    assert {"$ref": "#/properties/content/$defs/thing"} == shown["properties"]["likes"]["items"]
    await use(api, "update_working_memory", OF_ANN, content={"likes": ["tea"]})
    told = await use(api, "update_working_memory", OF_ANN, content={"likes": [7]})
    assert "`$.likes[1]`" in told
    assert '{"likes":["tea"]}' == await use(api, "get_working_memory", OF_ANN)


BAD_CALLS: list[Any] = [
    {"name": "forget_everything", "arguments": "{}"},
    {"name": "update_working_memory", "arguments": "{not json"},
    {"name": "update_working_memory", "arguments": "{}"},
    {"name": "update_working_memory", "arguments": '{"content": 7}'},
    {"name": "update_working_memory", "arguments": '{"content": "x", "mode": "merge"}'},
    {"name": "update_working_memory", "arguments": '{"content": {"likes": 7}}'},
    {"name": "update_working_memory", "arguments": '{"content": "a text"}'},
    {"name": "update_working_memory", "arguments": ""},
    {"name": "update_working_memory", "arguments": {"content": {"name": ["hush"]}}},
]


@every_row("function", BAD_CALLS, ids=lambda function: str(function)[9:60])
async def test_what_is_wrong_with_a_call_is_told_to_the_llm(api: RestClient, function: JsonObject) -> None:
    """In the tool message, so that the LLM can do better; nothing is stored."""
    of_user = f"/v1/users/{fresh_id()}/working-memory"
    await put(api, of_user, {"schema": PROFILE})
    answered = await api.post(f"{of_user}/tools", {"id": "c", "type": "function", "function": function})
    assert 200 == answered.status
    assert answered.json["content"].startswith("Error: ")
    assert "hush" not in answered.json["content"]
    assert 1 == (await api.get(of_user)).json["version"]


@pytest.mark.parametrize("body", [{}, {"id": "c"}, {"id": 7, "function": {"name": "x"}}, {"id": "", "function": {}}])
async def test_what_is_no_tool_call_is_an_error_of_the_caller(api: RestClient, body: JsonObject) -> None:
    """There is no one to tell it to but the caller."""
    assert (400, "invalid_field") == (await api.post(f"{OF_ANN}/tools", body)).problem


# Data


async def test_data_are_the_caller_s_own(api: RestClient) -> None:
    """Any object, changed by merge patches or replaced, and shown to the LLM only when that is asked for."""
    await api.create()
    assert {} == (await api.get(DATA)).json
    assert {"a": {"b": 1, "c": [1]}, "n": None} == (await put(api, DATA, {"a": {"b": 1, "c": [1]}, "n": None})).json
    assert {"a": {"c": [2]}, "n": None} == (await api.patch(DATA, {"a": {"b": None, "c": [2]}})).json
    assert {"a": {"c": [2]}, "n": None} == (await api.get(DATA)).json
    assert {"messages": []} == await api.context()
    assert '{"a":{"c":[2]},"n":null}' in (await api.context("?data=true"))["messages"][0]["content"]
    assert {} == (await put(api, DATA, {})).json
    assert {"messages": []} == await api.context("?data=true")


async def test_forty_writers_of_data_lose_nothing(api: RestClient) -> None:
    """Each patch is there, whoever came first."""
    await api.create()
    await asyncio.gather(*(api.patch(DATA, {f"w{number}": number}) for number in range(40)))
    assert {f"w{number}": number for number in range(40)} == (await api.get(DATA)).json


# Access, and the end


async def test_a_session_token_works_on_the_document_of_its_session(app: App, serve: Serve) -> None:
    """It reads and updates, but gives no form, since it sets nothing, and reaches no user by name."""
    app = await serve(admin_key="k" * 40)
    admin = RestClient(app, "k" * 40)
    await admin.create(user_id="ann", working_memory={"scope": "user"})
    api = RestClient(app, (await admin.post("/v1/sessions/s/tokens")).json["token"])
    assert "x" == (await append(api, OF_SESSION, "x"))["content"] == await content(admin, OF_ANN)
    assert (403, "forbidden") == (await put(api, OF_SESSION, {"template": "y"})).problem
    assert (403, "forbidden") == (await api.get(OF_ANN)).problem
    assert (403, "forbidden") == (await api.delete("/v1/users/ann")).problem
    assert {"a": 1} == (await api.patch(DATA, {"a": 1})).json


async def test_a_user_is_erased_with_all_sessions(app: App, api: RestClient) -> None:
    """The answer comes when nothing can be read any more; others stay, and who comes back begins again."""
    for session_id, user_id in (("s", "ann"), ("t", "ann"), ("u", "bob")):
        await api.create(session_id, user_id=user_id, working_memory={"scope": "user"})
        await append(api, f"/v1/sessions/{session_id}/working-memory", f"of {session_id}")
    await api.end("t")
    user = await app.services.store.journal.find_user("default", "ann")
    assert user is not None
    assert user.key in app.services.read_models.cached
    assert 204 == (await api.delete("/v1/users/ann")).status
    assert user.key not in app.services.read_models.cached
    for session_id in ("s", "t"):
        for path in ("", "/history", "/working-memory", "/data", "/context"):
            assert (404, "unknown_session") == (await api.get(f"/v1/sessions/{session_id}{path}")).problem
    assert (None, 0) == await two(api, "GET", OF_ANN, "content", "version")
    assert (404, "unknown_version") == (await api.get(f"{OF_ANN}?version=1")).problem
    assert ["u"] == [one["session_id"] for one in (await api.get("/v1/sessions")).json["sessions"]]
    assert "of u" == await content(api, "/v1/users/bob/working-memory")
    assert 204 == (await api.delete("/v1/users/ann")).status
    assert 1 == (await append(api, OF_ANN, "back"))["version"]
    assert "back" == await content(api, OF_ANN)


async def test_nothing_of_an_erased_user_stays_in_the_file(tmp_path: Path) -> None:
    """Neither what was written nor the user's id is in the database or its log."""
    file = tmp_path / "calls.db"
    async with running_service(store=f"sqlite:{file}") as app:
        api = RestClient(app)
        await append(api, "/v1/users/flamingo-user/working-memory", {"secret": "flamingo-words " * 50})
        await append(api, OF_ANN, "stays")

        def found() -> int:
            return sum(path.read_bytes().count(b"flamingo") for path in tmp_path.iterdir() if path.is_file())

        async def traces() -> int:
            return await asyncio.to_thread(found)

        assert await traces() > 0
        assert 204 == (await api.delete("/v1/users/flamingo-user")).status
        await eventually(0, traces, timeout_s=60)
        assert "stays" == await content(api, OF_ANN)


async def test_users_are_no_sessions(app: App, api: RestClient) -> None:
    """Nothing that is about sessions sees them: lists, figures, closing, restarts."""
    await append(api, OF_ANN, "Likes tea.")
    assert [] == (await api.get("/v1/sessions")).json["sessions"]
    assert (404, "unknown_session") == (await api.get("/v1/sessions/ann")).problem
    assert 0 == (await app.services.store.read_figures(app.services.runtime.clock())).running
    await start_alone(app.services.store, app.services.runtime.clock() + 10**12)
    assert [] == await app.services.store.journal.find_due(app.services.runtime.clock() + 10**13, 10)
    assert b"HTTP/1.1 200" in await raw_exchange(
        app, b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    assert "Likes tea." == await content(api, OF_ANN)
