"""What strict LLMs take: one system message, alternating roles, their own fields, results that they can see."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from openai import BadRequestError, InternalServerError

from tests.support.callers.gateway import (
    ask,
    ask_and_collect,
    openai_client,
    role_and_text,
    service_with_llm,
    user_message,
)
from tests.support.callers.rest import RestClient
from tests.support.servers.llm_server import Script, llm_server
from tests.support.services import Serve
from voicemem.protocol.types import JsonObject

REFUSAL = Script(status=400, error={"error": {"message": "Conversation roles must alternate"}})
TWICE = user_message("A table.") + user_message("For two.")
IMAGE: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TOOL: Any = {"type": "function", "function": {"name": "menu", "parameters": {}}}


def roles(body: JsonObject) -> list[str]:
    return [message["role"] for message in body["messages"]]


async def test_one_system_message_says_it_all(serve: Serve) -> None:
    """The session's, then the request's, then what is remembered; apart where it is configured so."""
    memory = {"working_memory": {"template": "- Name:"}, "user_id": "ann", "memory": {"memories": {}}}
    async with service_with_llm(serve, system_messages=[{"role": "system", "content": "Be brief."}], **memory) as (
        api,
        client,
        llm,
    ):
        await api.post("/v1/memories", {"text": "Ann likes tea.", "user_id": "ann"})
        asked: Any = [{"role": "developer", "content": "Rhyme."}, *user_message("Hi.")]
        await client.chat.completions.create(model="any", messages=asked)
        assert ["system", "user"] == roles(llm.last)
        text = llm.last["messages"][0]["content"]
        places = [text.index(part) for part in ("Be brief.", "Rhyme.", "- Name:", "Ann likes tea.")]
        assert sorted(places) == places
        await api.patch("/v1/sessions/s", {"llm": {"system": "separate"}})
        await client.chat.completions.create(model="any", messages=asked)
        assert ["system", "developer", "system", "system"] == roles(llm.last)[:4]


async def test_a_request_begins_as_the_one_before(serve: Serve) -> None:
    """With tools, instructions and a document: what a provider has cached of a request is the next one's beginning."""
    call = Script(["One moment."], tools=[{"id": "c", "name": "menu", "arguments": "{}"}])
    memory = {"working_memory": {"template": "- Name:"}, "memory": {"policy": "full"}}
    asked: Any = [{"role": "system", "content": "Be brief."}]
    async with service_with_llm(serve, Script(["Hi."]), call, Script(["Soup."]), **memory) as (_, client, llm):
        for words in ("Hello.", "The menu?", None, "And?", "More?"):
            asked += user_message(words) if words else [{"role": "tool", "tool_call_id": "c", "content": "Soup"}]
            message = await ask_and_collect(client, asked, words != "And?", tools=[TOOL])
            calls = [
                {"id": id, "type": "function", "function": {"name": name, "arguments": text}}
                for id, name, text in message.calls
            ]
            asked.append({"role": "assistant", "content": message.text} | ({"tool_calls": calls} if calls else {}))
        bodies = [request.body["messages"] for request in llm.requests]
        assert 5 == len(bodies)
        for before, after in pairwise(bodies):
            assert before == after[: len(before)]


async def test_an_agent_that_speaks_first_is_answered(serve: Serve) -> None:
    """By a model that needs a user's message too: it is told that the call has started."""
    async with service_with_llm(serve, REFUSAL, Script(["Hello!"])) as (_, client, llm):
        greet: Any = [{"role": "developer", "content": "Greet the caller."}]
        assert "Hello!" == (await ask_and_collect(client, greet, stream=False)).text
        assert [["system"], ["system", "user"]] == [roles(request.body) for request in llm.requests]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_llm_that_refuses_is_asked_alternately_from_then_on(serve: Serve, stream: bool) -> None:
    """Once more in this request, and at once in later ones; the client sees one answer."""
    async with service_with_llm(serve, REFUSAL, Script(["Fine."])) as (api, client, llm):
        assert "Fine." == (await ask_and_collect(client, TWICE, stream)).text
        assert [["user", "user"], ["user"]] == [roles(request.body) for request in llm.requests]
        assert user_message("A table.\nFor two.") == llm.last["messages"]
        await ask_and_collect(client, user_message("Hello?") + user_message("Hello??"), stream)
        assert (3, ["user", "assistant", "user"]) == (len(llm.requests), roles(llm.last))
        assert [*role_and_text(TWICE), ("assistant", "Fine.")] == role_and_text(await api.contents())[:3]


@pytest.mark.parametrize(
    ("status", "messages", "alternate"), [(400, user_message("Hi."), "auto"), (500, TWICE, "auto"), (400, TWICE, False)]
)
async def test_nothing_else_is_tried_again(serve: Serve, status: int, messages: Any, alternate: Any) -> None:
    """Messages that alternate already, other failures, and sessions that do not want it."""
    async with service_with_llm(serve, Script(status=status), llm={"alternate": alternate}) as (_, client, llm):
        with pytest.raises((BadRequestError, InternalServerError)):
            await client.chat.completions.create(model="any", messages=messages)
        assert 1 == len(llm.requests)


@pytest.mark.parametrize(("model", "alternate"), [("mistralai/Devstral-2", "auto"), ("gemma-4", "auto"), ("any", True)])
async def test_roles_alternate_where_it_is_known(serve: Serve, model: str, alternate: Any) -> None:
    """By the name of the model, or the session's configuration: nothing is refused before."""
    async with service_with_llm(serve, llm={"model": model, "alternate": alternate}) as (api, client, llm):
        await api.send({"type": "message", "role": "assistant", "text": "Welcome.", "source": "greeting", "turn_id": 0})
        await client.chat.completions.create(model="any", messages=TWICE)
        assert ["user", "assistant", "user"] == roles(llm.last)


@pytest.mark.parametrize("failure_message", [None, "Sorry."])
async def test_an_image_for_an_llm_that_takes_none_is_refused(serve: Serve, failure_message: str | None) -> None:
    """As an image alone is; the words stand once, and are answered without the image."""
    parts: Any = [{"type": "text", "text": "What is this?"}, IMAGE]
    config = {"failure_message": failure_message}
    async with service_with_llm(serve, Script(status=400), Script(["A cat."]), llm=config) as (api, client, _):
        with pytest.raises(BadRequestError) as refused:
            await client.chat.completions.create(model="any", messages=[{"role": "user", "content": parts}])
        assert "invalid_field" == refused.value.response.json()["reason"]
        assert "A cat." == await ask(client, "What is this?")
        assert [("user", "What is this?"), ("assistant", "A cat.")] == role_and_text(await api.contents())


async def test_an_image_stays_with_its_words_where_they_are_joined(serve: Serve) -> None:
    """Behind the text of the words before."""
    parts: Any = [{"type": "text", "text": "And this?"}, IMAGE]
    async with service_with_llm(serve, llm={"alternate": True}) as (_, client, llm):
        messages: Any = [*user_message("Look."), {"role": "user", "content": parts}]
        await client.chat.completions.create(model="any", messages=messages)
        assert [{"type": "text", "text": "Look."}, *parts] == llm.last["messages"][0]["content"]


async def test_an_image_does_not_mind_messages_in_front(serve: Serve) -> None:
    """A session may begin with a message of the user's that has parts itself."""
    first, parts = [{"type": "text", "text": "I am Ann."}], [{"type": "text", "text": "And this?"}, IMAGE]
    async with service_with_llm(serve, system_messages=[{"role": "user", "content": first}]) as (_, client, llm):
        messages: Any = [{"role": "user", "content": parts}]
        await client.chat.completions.create(model="any", messages=messages)
        assert [first, parts] == [message["content"] for message in llm.last["messages"]]


async def test_calls_of_one_message_are_shown_in_one(serve: Serve) -> None:
    """Also in later turns, with the signature that came with the first alone; calls of other messages are apart."""
    function = {"name": "menu", "arguments": "{}"}
    calls = [{"id": id, "type": "function", "function": function} for id in "ab"]
    calls[0]["extra_content"] = {"google": {"thought_signature": "s"}}
    choice = {"index": 0, "message": {"role": "assistant", "tool_calls": calls}, "finish_reason": "tool_calls"}
    together = Script(raw=json.dumps({"id": "x", "choices": [choice]}).encode())
    async with service_with_llm(serve, together) as (_, client, llm):
        ask_whole = client.chat.completions.create
        await ask_whole(model="any", messages=user_message("The menu?"), tools=[TOOL])
        results: Any = [{"role": "tool", "tool_call_id": id, "content": id} for id in "ab"]
        llm.then(Script(tools=[{"id": "c", "name": "menu", "arguments": "{}"}]))
        await ask_whole(model="any", messages=results, tools=[TOOL])
        assert ["user", "assistant", "tool", "tool"] == roles(llm.last)
        assert calls == llm.last["messages"][1]["tool_calls"]
        llm.then(Script(["Soup."]))
        await ask_whole(model="any", messages=[{"role": "tool", "tool_call_id": "c", "content": "c"}], tools=[TOOL])
        await ask_whole(model="any", messages=user_message("And?"), tools=[TOOL])
        assert ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "user"] == roles(llm.last)


@pytest.mark.parametrize("words", [4, 400, 4000])
async def test_no_tool_is_called_again_because_its_result_is_out_of_sight(serve: Serve, words: int) -> None:
    """Whatever it takes of the budget, and whatever the caller says meanwhile; a huge one is cut in the middle."""
    async with llm_server(Script(tools=[{"id": "c", "name": "menu", "arguments": "{}"}]), Script(["Soup."])) as llm:
        app = await serve(llm_url=llm.url)
        api = RestClient(app)
        await api.create(memory={"policy": "window", "max_tokens": 200})
        async with openai_client(app) as client:
            await ask(client, "The menu?", tools=[TOOL])
            result: Any = {"role": "tool", "tool_call_id": "c", "content": f"Soup, {'fish, ' * words}and bread."}
            await ask_and_collect(client, [result, *user_message("Hello?")], True, tools=[TOOL])
        (shown,) = [one["content"] for one in llm.last["messages"] if one["role"] == "tool"]
        assert (shown.startswith("Soup"), shown.endswith("bread."), shown == result["content"]) == (
            True,
            True,
            words == 4,
        )
        assert "user" == roles(llm.last)[-1]


async def test_usage_is_that_of_all_requests_for_an_answer(serve: Serve) -> None:
    """Of those for tools of the service too; nested counts as well."""
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def script(delta: JsonObject, reason: str) -> Script:
        chunks: list[JsonObject] = [
            {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            {**head, "choices": [], "usage": usage},
        ]
        lines = [*map(json.dumps, chunks), "[DONE]"]
        return Script(raw="".join(f"data: {line}\n\n" for line in lines).encode())

    function = {"name": "get_working_memory", "arguments": "{}"}
    call = {"index": 0, "id": "g", "type": "function", "function": function}
    scripts = script({"tool_calls": [call]}, "tool_calls"), script({"content": "Hello."}, "stop")
    async with service_with_llm(serve, *scripts, working_memory={"tools": True}) as (_, client, _llm):
        stream = await client.chat.completions.create(
            model="any", messages=user_message("Hi."), stream=True, stream_options={"include_usage": True}
        )
        (found,) = [chunk.usage async for chunk in stream if chunk.usage is not None]
        details = found.prompt_tokens_details
        assert details is not None
        assert (10, 4, 14, 2) == (
            found.prompt_tokens,
            found.completion_tokens,
            found.total_tokens,
            details.cached_tokens,
        )
