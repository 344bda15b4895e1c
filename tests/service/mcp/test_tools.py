"""The tools and resources, used by the official client against a real service."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import jsonschema
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from tests.support.callers.mcp_client import answer_of, failure_of, in_one_task, mcp_at, mcp_client, resource_of
from tests.support.callers.rest import RestClient
from tests.support.events import delta, final, interrupt
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App

NOON = 1_790_000_000_000
"""2026-09-21T14:13:20Z."""
CALL = [
    final(1, "I am allergic to walnuts.", NOON),
    delta(1, "Noted. By the way, the marzipan is free.", NOON + 1_000),
    interrupt(1, NOON + 2_000, heard_text="Noted."),
    final(2, "My dog is called Rex.", NOON + 3_000),
]
READING = {"search_memories", "get_context", "get_history", "recent_calls"}


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service without keys, with a call of ann's and one of bob's."""
    app = await serve()
    api = RestClient(app)
    await api.create("call-1", user_id="ann", name="front desk")
    await api.send(*CALL, session_id="call-1")
    await api.create("call-2", user_id="bob")
    await api.send(final(1, "Walnuts are my favourite.", NOON), session_id="call-2")
    return app


@pytest.fixture(params=["auto", "legacy"])
async def client(app: App, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """A client of today's protocol, and one of before."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(mcp_at(f"http://{app.rest_address}"))
        yield await stack.enter_async_context(in_one_task(mcp_client(url, mode=request.param)))


async def test_every_tool_says_what_it_does(client: Client) -> None:
    """Its schemas are valid, and its annotations say whether it changes or removes something."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert READING | {"remember", "forget"} == tools.keys()
    for name, tool in tools.items():
        jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        jsonschema.Draft202012Validator.check_schema(tool.output_schema)
        assert "object" == tool.input_schema["type"]
        assert tool.description
        assert tool.annotations is not None
        assert (name in READING) is tool.annotations.read_only_hint
        assert (name == "forget") is tool.annotations.destructive_hint
        assert tool.annotations.open_world_hint is False


async def test_a_search_finds_what_was_heard(client: Client) -> None:
    """With when it was said and on which call; what the caller cut off is not there, nor what others said."""
    found = await answer_of(client, "search_memories", query="Which nuts? walnuts", user_id="ann", kinds=["message"])
    assert "I am allergic to walnuts." == found["memories"][0]["text"]
    assert "2026-09-21T14:13:20Z" == found["memories"][0]["when"]
    assert [{"session_id": "call-1", "turns": [1]}] == found["memories"][0]["heard_in"]
    assert {"call-1"} == {place["session_id"] for memory in found["memories"] for place in memory["heard_in"]}
    assert [] == (await answer_of(client, "search_memories", query="marzipan", user_id="ann"))["memories"]
    page = await answer_of(client, "search_memories", query="walnuts Rex", user_id="ann", limit=1)
    assert (1, True) == (len(page["memories"]), page["more"])


async def test_null_is_as_if_left_out(client: Client) -> None:
    """Clients in strict mode send it for each argument that they do not use, and 5.0 for 5; none for one they need."""
    plain = await answer_of(client, "search_memories", query="walnuts", user_id="ann", limit=5)
    unused = dict.fromkeys(("kinds", "since", "until"))
    found = await answer_of(client, "search_memories", query="walnuts", user_id="ann", limit=5.0, **unused)
    assert plain["memories"] == found["memories"]
    assert await answer_of(client, "get_history", session_id="call-1", last=None)
    assert await answer_of(client, "get_context", session_id="call-1", max_tokens=None)
    refused = await failure_of(client, "recent_calls", user_id=None, limit=None)
    assert "`user_id`" in refused


async def test_a_search_is_bounded_by_days(client: Client) -> None:
    """The last day counts as a whole; a day that does not exist is named."""
    wanted = {"query": "walnuts", "user_id": "ann"}
    day = await answer_of(client, "search_memories", **wanted, since="2026-09-21", until="2026-09-21")
    assert day["memories"]
    assert [] == (await answer_of(client, "search_memories", **wanted, since="2026-09-22"))["memories"]
    assert [] == (await answer_of(client, "search_memories", **wanted, until="2026-09-21T14:00:00Z"))["memories"]
    refused = await failure_of(client, "search_memories", **wanted, since="2026-02-31")
    assert "`since` must be a date that exists, such as 2026-05-03 or 2026-05-03T14:00:00Z." == refused


async def test_a_history_is_what_was_heard(client: Client) -> None:
    """The newest messages, with the cut-off one as it was heard."""
    history = await answer_of(client, "get_history", session_id="call-1")
    assert ["I am allergic to walnuts.", "Noted.", "My dog is called Rex."] == [
        message["text"] for message in history["messages"]
    ]
    assert [None, True, None] == [message.get("interrupted") for message in history["messages"]]
    assert ("running", None, False) == (history["state"], history["ended_at"], history["earlier"])
    last = await answer_of(client, "get_history", session_id="call-1", last=1)
    assert (["My dog is called Rex."], True) == ([message["text"] for message in last["messages"]], last["earlier"])


async def test_a_history_is_without_what_was_forgotten(app: App, client: Client) -> None:
    """Neither by the tool nor as a resource; what is left comes with nothing before it."""
    assert 200 == (await RestClient(app).post("/v1/sessions/call-1/forget", {"keep_last": 2})).status
    left = ["Noted.", "My dog is called Rex."]
    for given in ({}, {"last": 2}):
        history = await answer_of(client, "get_history", session_id="call-1", **given)
        assert (left, False) == ([message["text"] for message in history["messages"]], history["earlier"])
    history = await resource_of(client, "voicemem://sessions/call-1/history")
    assert left == [message["text"] for message in history["messages"]]
    assert 200 == (await RestClient(app).post("/v1/sessions/call-1/forget", {"everything": True})).status
    assert [] == (await answer_of(client, "get_history", session_id="call-1"))["messages"]


async def test_a_context_is_for_the_next_request(client: Client) -> None:
    """Messages with role and content, of as many tokens as are wanted."""
    context = await answer_of(client, "get_context", session_id="call-1")
    assert {"role": "assistant", "content": "Noted."} in context["messages"]
    short = await answer_of(client, "get_context", session_id="call-1", max_tokens=8)
    assert [{"role": "user", "content": "My dog is called Rex."}] == short["messages"]


async def test_calls_are_listed_with_a_line_about_each(app: App, client: Client) -> None:
    """Only the user's; the line is a summary, or else says what is known without one."""
    listed = await answer_of(client, "recent_calls", user_id="ann")
    assert ["call-1"] == [call["session_id"] for call in listed["calls"]]
    assert listed["calls"][0]["summary"].startswith("front desk")
    assert listed["more"] is False
    summary = {"text": "Ann asked what she may eat.", "kind": "summary", "session_id": "call-1"}
    assert 200 == (await RestClient(app).post("/v1/memories", summary)).status
    (call,) = (await answer_of(client, "recent_calls", user_id="ann"))["calls"]
    assert summary["text"] == call["summary"]


async def test_resources_are_read_by_their_addresses(client: Client) -> None:
    """A history; two templates say which addresses there are."""
    templates = (await client.list_resource_templates()).resource_templates
    assert ["voicemem://sessions/{id}/history", "voicemem://users/{id}/memories"] == [
        template.uri_template for template in templates
    ]
    assert [] == (await client.list_resources()).resources
    history = await resource_of(client, "voicemem://sessions/call-1/history")
    assert "My dog is called Rex." == history["messages"][-1]["text"]
    for wrong in ("voicemem://sessions/nobody/history", "voicemem://nothing", "voicemem://sessions/../history"):
        with pytest.raises(MCPError, match=r"There is no "):
            await client.read_resource(wrong)


@every_row(
    ("tool", "arguments", "says"),
    [
        ("search_memories", {"query": "nuts"}, "A required field is missing: `user_id`"),
        ("search_memories", {"query": "nuts", "user": "ann"}, "did you mean `user_id`?"),
        ("search_memories", {"query": 5, "user_id": "ann"}, "Expected a text: `query`"),
        ("search_memories", {"query": "nuts", "user_id": "ann", "kinds": ["facts"]}, "must be one of"),
        ("search_memories", {"query": "", "user_id": "ann"}, "length >= 1"),
        ("get_history", {"session_id": "call-1", "last": 0}, ">= 1"),
        ("get_history", {"session_id": "nobody"}, "recent_calls lists the ids"),
        ("get_history", {"session_id": ".."}, "recent_calls lists the ids"),
        ("get_history", {"session_id": "a/b?c"}, "session"),
        ("recent_calls", {"user_id": "x" * 200}, "length <= 128"),
        ("recall", {}, "there are search_memories, get_context"),
    ],
)
async def test_errors_are_sentences_to_act_on(
    client: Client, tool: str, arguments: dict[str, object], says: str
) -> None:
    """They name what is wrong and what would have been right, in the result, where the LLM sees them."""
    said = await failure_of(client, tool, **arguments)
    assert says in said
    assert "Traceback" not in said


async def test_what_is_remembered_is_forgotten_again(app: App, client: Client) -> None:
    """Once each: the same statement is the same memory; it is gone for good."""
    said = "Ann is allergic to walnuts."
    memory = await answer_of(client, "remember", text=said, user_id="ann", kind="fact")
    assert memory == await answer_of(client, "remember", text=f"{said} ", user_id="ann")
    kept = (await RestClient(app).get(f"/v1/memories/{memory['id']}")).json
    assert (said, "tool", "ann") == (kept["text"], kept["source"], kept["user_id"])
    (shown,) = (await resource_of(client, "voicemem://users/ann/memories"))["memories"]
    assert (memory["id"], "fact", said) == (shown["id"], shown["kind"], shown["text"])
    found = (await answer_of(client, "search_memories", query="walnuts", user_id="ann", kinds=["fact"]))["memories"]
    assert [(memory["id"], "fact", [])] == [(one["id"], one["kind"], one["heard_in"]) for one in found]
    assert {"forgotten": memory["id"]} == await answer_of(client, "forget", memory_id=memory["id"])
    assert [] == (await resource_of(client, "voicemem://users/ann/memories"))["memories"]
    assert "Only what was noted or given" in await failure_of(client, "forget", memory_id=memory["id"])


async def test_what_was_heard_is_not_forgotten_alone(client: Client) -> None:
    """It belongs to its call, which the sentence says."""
    found = await answer_of(client, "search_memories", query="walnuts", user_id="ann", kinds=["message"])
    said = await failure_of(client, "forget", memory_id=found["memories"][0]["id"])
    assert "what was heard (kind message) belongs to its call" in said
    assert "no memory" in (await failure_of(client, "forget", memory_id="..")).lower()
