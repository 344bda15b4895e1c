"""The gateway with tools of its own: the LLM keeps its working memory, and the caller hears one answer."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.support.callers.gateway import (
    ask,
    ask_and_collect,
    openai_client,
    role_and_text,
    service_with_llm,
    user_message,
)
from tests.support.servers.llm_server import Script
from tests.support.services import Serve
from voicemem.protocol.types import JsonObject

UPDATE = {"id": "u1", "name": "update_working_memory", "arguments": ['{"content":', ' {"name": "Ann"}}']}
GET = {"id": "g1", "name": "get_working_memory", "arguments": "{}"}
THEIRS = {"id": "t1", "name": "find_room", "arguments": '{"nights": 2}'}
RAIN = {"role": "assistant", "content": "Rain."}
ROOM: Any = {"type": "function", "function": {"name": "find_room", "parameters": {"type": "object"}}}
JSON_MEMORY = {"schema": {"type": "object"}, "tools": True}


def names(body: JsonObject) -> list[str]:
    return [tool["function"]["name"] for tool in body.get("tools", ())]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_llm_keeps_its_memory(serve: Serve, stream: bool) -> None:
    """Its call is done, journaled with its result, and not shown to the caller, who gets one answer, named once."""
    scripts = Script(["One moment. "], tools=[UPDATE]), Script(["Hello Ann."])
    async with service_with_llm(serve, *scripts, working_memory=JSON_MEMORY) as (api, client, llm):
        assert ("One moment. Hello Ann.", []) == await ask_and_collect(client, user_message("I am Ann."), stream)
        document = (await api.get("/v1/sessions/s/working-memory")).json
        assert {"name": "Ann"} == document["content"]
        assert ["get_working_memory", "update_working_memory", "clear_working_memory"] == names(llm.requests[0].body)
        second = llm.requests[1].body["messages"]
        assert ["system", "user", "assistant", "tool"] == [one["role"] for one in second]
        assert "Ann" in second[0]["content"]
        assert "The working memory is updated." == second[-1]["content"]
        history = await api.contents()
        assert ("user", "I am Ann.") == role_and_text(history)[0]
        assert "One moment. Hello Ann." == history[-1]["content"]
        items = {row["event"].get("item") for row in await api.journal() if row["event"]["type"].startswith("llm.")}
        assert 1 == len(items)


async def test_openais_helper_reads_one_message(serve: Serve) -> None:
    """Of all requests for an answer: its text, and its role once."""
    scripts = Script(["One moment. "], tools=[UPDATE]), Script(["Hello Ann."])
    async with (
        service_with_llm(serve, *scripts, working_memory=JSON_MEMORY) as (_, client, _),
        client.chat.completions.stream(model="any", messages=user_message("I am Ann.")) as stream,
    ):
        final = (await stream.get_final_completion()).choices[0]
    assert ("assistant", "One moment. Hello Ann.") == (final.message.role, final.message.content)
    assert "stop" == final.finish_reason


async def test_what_the_caller_calls_is_the_callers(serve: Serve) -> None:
    """Of tools of both, ours are done and taken out, and the caller goes on with its own."""
    scripts = Script([], tools=[UPDATE, THEIRS]), Script(["Two nights, Ann."])
    async with service_with_llm(serve, *scripts, working_memory=JSON_MEMORY) as (api, client, llm):
        definition: Any = {"type": "function", "function": {"name": "find_room", "parameters": {"type": "object"}}}
        message = await ask_and_collect(client, user_message("A room for Ann."), True, tools=[definition])
        assert [("t1", "find_room", '{"nights": 2}')] == message.calls
        assert "find_room" == names(llm.requests[0].body)[0]
        assert {"name": "Ann"} == (await api.get("/v1/sessions/s/working-memory")).json["content"]
        result: Any = [{"role": "tool", "tool_call_id": "t1", "content": "Room 4."}]
        assert "Two nights, Ann." == (await ask_and_collect(client, result, True, tools=[definition])).text
        roles = [one["role"] for one in llm.requests[1].body["messages"]]
        assert 2 == roles.count("tool")


async def test_an_llm_that_only_calls_comes_to_an_end(serve: Serve) -> None:
    """After a number of rounds it is asked once more, without our tools."""
    async with service_with_llm(serve, Script(["x"], tools=[GET]), working_memory=JSON_MEMORY) as (api, client, llm):
        message = await ask_and_collect(client, user_message("Hi."), True)
        assert 8 == len(llm.requests)
        assert [] == names(llm.requests[-1].body)
        assert "x" * 8 == message.text
        assert "x" * 8 == (await api.contents())[-1]["content"]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_last_round_passes_on_no_call_of_ours(serve: Serve, stream: bool) -> None:
    """An LLM that goes on calling has its text passed on, and its answer stops; what no one did is not journaled."""
    async with service_with_llm(serve, Script(["x"], tools=[GET]), working_memory=JSON_MEMORY) as (api, client, llm):
        assert ("stop", []) == await ending(client, stream)
        assert 8 == len(llm.requests)
        kinds = [row["event"]["type"] for row in await api.journal()]
        assert 7 == kinds.count("tool.call") == kinds.count("tool.result")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_of_ours_that_was_not_offered_is_nobodys(serve: Serve, stream: bool) -> None:
    """Where no one says whose memory it is; a caller that has a tool of this name gets its calls."""
    memory = {"scope": "user", "tools": True}
    async with service_with_llm(serve, Script(["x"], tools=[GET]), working_memory=memory) as (_, client, llm):
        assert ("stop", []) == await ending(client, stream)
        definition: Any = {"type": "function", "function": {"name": GET["name"], "parameters": {"type": "object"}}}
        assert ("tool_calls", [GET["name"]]) == await ending(client, stream, tools=[definition])
        assert 2 == len(llm.requests)


async def ending(client: AsyncOpenAI, stream: bool, **more: Any) -> tuple[str | None, list[str | None]]:
    """Why an answer ends, and the names of the tools that it calls."""
    asked: Any = {"model": "any", "messages": user_message("Hi."), **more}
    if not stream:
        (choice,) = (await client.chat.completions.create(**asked)).choices
        return choice.finish_reason, [c.function.name for c in choice.message.tool_calls or () if c.type == "function"]
    reason, names = None, list[str | None]()
    async for chunk in await client.chat.completions.create(stream=True, **asked):
        for part in chunk.choices:
            reason = part.finish_reason or reason
            calls = part.delta.tool_calls or ()
            names += [one.function.name for one in calls if one.function is not None and one.function.name]
    return reason, names


async def test_a_wrong_call_is_told_to_the_llm(serve: Serve) -> None:
    """It can mend it; the call goes on."""
    wrong = UPDATE | {"arguments": '{"content": "no object"}'}
    scripts = Script([], tools=[wrong]), Script(["Sorry."])
    async with service_with_llm(serve, *scripts, working_memory=JSON_MEMORY) as (_, client, llm):
        assert "Sorry." == await ask(client, "Hi.")
        assert "Error: " in llm.requests[1].body["messages"][-1]["content"]


async def test_an_llm_that_dies_after_our_tool(serve: Serve) -> None:
    """What it had said stays, and the failure is told."""
    scripts = Script(["Well, "], tools=[GET]), Script(status=500)
    async with service_with_llm(serve, *scripts, working_memory=JSON_MEMORY, llm={"failure_message": "Sorry!"}) as (
        api,
        client,
        _,
    ):
        assert "Well, Sorry!" == await ask(client, "Hi.")
        assert ["Hi.", "Well, ", "Sorry!"] == [one["content"] for one in await api.contents()]


@pytest.mark.parametrize(("first", "whole"), [(["Noted."], True), ([], False)])
async def test_an_llm_that_says_nothing_after_our_tool(serve: Serve, first: list[str], whole: bool) -> None:
    """When it had said something before, that is the answer; else it has failed."""
    scripts = Script(first, tools=[GET]), Script()
    async with service_with_llm(serve, *scripts, working_memory=JSON_MEMORY, llm={"failure_message": "Sorry!"}) as (
        api,
        client,
        _,
    ):
        expected = "Noted." if whole else "Sorry!"
        assert expected == await ask(client, "Hi.")
        assert ["Hi.", expected] == [one["content"] for one in await api.contents()]


@pytest.mark.parametrize("memory", [{"template": "# Name"}, {"tools": True, "scope": "user"}])
async def test_without_tools_nothing_is_added(serve: Serve, memory: JsonObject) -> None:
    """Where they are not wanted, or there is no document for them, the request is as it would be."""
    async with service_with_llm(serve, Script(["Hello."]), working_memory=memory) as (_, client, llm):
        assert "Hello." == await ask(client, "Hi.")
        assert "tools" not in llm.last


async def test_a_users_document(serve: Serve) -> None:
    """What an agent keeps of a user in one call is in the next call's context."""
    memory = {"scope": "user", "template": "# Preferences", "tools": True}
    update = UPDATE | {"arguments": json.dumps({"content": "Likes window seats."})}
    scripts = Script([], tools=[update]), Script(["Noted."]), Script(["A window seat?"])
    async with service_with_llm(serve, *scripts, working_memory=memory, user_id="ann") as (api, client, llm):
        assert "Noted." == await ask(client, "I like window seats.")
        await api.create("next", working_memory=memory, user_id="ann")
        async with openai_client(api.app, session_id="next") as other:
            assert "A window seat?" == await ask(other, "A flight, please.")
        assert "Likes window seats." in llm.last["messages"][0]["content"]


async def test_what_the_llm_wants_back_with_a_tool_call(serve: Serve) -> None:
    """Fields of its message and of the call come back in this turn and in later ones, and are in no message."""
    signature = {"google": {"thought_signature": "c2ln"}}
    call: JsonObject = {"index": 0, "id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    deltas: list[JsonObject] = [{"reasoning_content": "A tool."}, {"tool_calls": [call | {"extra_content": signature}]}]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    raw = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    async with service_with_llm(serve, Script(raw=raw.encode()), Script(["Rain."])) as (api, client, llm):
        await ask(client, "The weather?")
        await ask_and_collect(client, [{"role": "tool", "tool_call_id": "c", "content": "rain"}], True)
        for _ in range(2):
            sent = next(one for one in llm.last["messages"] if one.get("tool_calls"))
            assert ("A tool.", signature) == (sent["reasoning_content"], sent["tool_calls"][0]["extra_content"])
            await ask(client, "And now?")
        assert "A tool." not in json.dumps(await api.contents())


async def test_what_an_llm_wants_back_of_calls_that_only_the_client_knows(serve: Serve) -> None:
    """Of a call before the session began, as of one of its own: also in later requests, which do not have it."""
    signature = {"google": {"thought_signature": "c2ln"}}
    function = {"name": "weather", "arguments": "{}"}
    calls = [{"id": id, "type": "function", "function": function} for id in "cd"]
    calls[0]["extra_content"] = signature
    asked: Any = [
        *user_message("The weather?"),
        {"role": "assistant", "content": None, "reasoning_content": "A tool.", "name": "bot", "tool_calls": calls},
        *({"role": "tool", "tool_call_id": id, "content": "rain"} for id in "cd"),
    ]
    async with service_with_llm(serve, Script(["Rain."])) as (api, client, llm):
        await ask_and_collect(client, asked, True)
        for _ in range(2):
            assert asked[1:] == [one for one in llm.last["messages"] if one["role"] != "user" and one != RAIN][:3]
            await ask(client, "And now?")
        assert "A tool." not in json.dumps(await api.contents())


async def test_a_tool_of_the_caller_s_that_is_called_without_end(serve: Serve) -> None:
    """Each request is one of the LLM's; each call stands once, under an id of its own, and the words stand once."""
    again = Script(tools=[{"id": "c", "name": "find_room", "arguments": '{"nights": 2}'}])
    conversation: Any = user_message("A room.")
    async with service_with_llm(serve, again, memory={"policy": "window", "max_tokens": 300}) as (api, client, llm):
        for number in range(40):
            message = await ask_and_collect(client, conversation, number % 2 == 0, tools=[ROOM])
            ((id, name, arguments),) = message.calls
            call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            conversation += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": id, "content": f"none {number}"},
            ]
        assert 40 == len(llm.requests) == len({one["tool_call_id"] for one in conversation if one["role"] == "tool"})
        shown = [one["content"] for one in llm.last["messages"] if one["role"] == "tool"]
        assert [f"none {number}" for number in range(39)] == shown
        llm.then(Script(["No room."]))
        assert "No room." == (await ask_and_collect(client, conversation, True, tools=[ROOM])).text
        assert [("user", "A room."), ("assistant", "No room.")] == role_and_text(await api.contents())
        kinds = [row["event"]["type"] for row in await api.journal()]
        assert 40 == kinds.count("tool.call") == kinds.count("tool.result")


@pytest.mark.parametrize("more", [{}, {"tool_choice": "required"}, {"parallel_tool_calls": False}])
async def test_the_last_request_has_nothing_about_tools(serve: Serve, more: Any) -> None:
    """An LLM that calls our tool again and again is asked without it in the end, and without what only tools allow."""
    tool = {"id": "c", "name": "update_working_memory", "arguments": '{"content":"x"}'}
    scripts = [Script(tools=[tool])] * 7 + [Script(["At last."])]
    async with service_with_llm(serve, *scripts, working_memory={"format": "text", "tools": True}) as (_, client, llm):
        raw = await client.chat.completions.create(model="any", messages=user_message("Hi."), extra_body=more)
        assert "At last." == raw.choices[0].message.content
        assert not {"tools", "tool_choice", "parallel_tool_calls"} & llm.last.keys()


async def test_the_end_comes_last(serve: Serve) -> None:
    """Neither our tools nor a server that ends too early makes a client stop reading before all of the text."""
    early: list[JsonObject] = [
        {"delta": {}, "finish_reason": "stop"},
        {"delta": {"content": "Ann."}, "finish_reason": None},
    ]
    chunks = [{"choices": [{"index": 0, **choice}]} for choice in early]
    raw = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    tool = {"id": "c", "name": "update_working_memory", "arguments": '{"content":"x"}'}
    scripts = Script(tools=[tool]), Script(raw=raw.encode())
    async with service_with_llm(serve, *scripts, working_memory={"format": "text", "tools": True}) as (_, client, _):
        text = ""
        async for chunk in await client.chat.completions.create(
            model="any", messages=user_message("I am Ann."), stream=True
        ):
            text += chunk.choices[0].delta.content or ""
            if chunk.choices[0].finish_reason:
                break
        assert "Ann." == text
