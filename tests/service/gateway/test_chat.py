"""The gateway as OpenAI's own client sees it: a real service before a real LLM server."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from openai import APIStatusError, AuthenticationError, ConflictError, NotFoundError, PermissionDeniedError

from tests.support.callers.gateway import (
    ask,
    ask_and_collect,
    openai_client,
    role_and_text,
    service_with_llm,
    user_message,
)
from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import LOOPBACK, RestClient, client_with_key, make_key
from tests.support.servers.llm_server import Script, llm_server
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.protocol.types import JsonObject

TOOL = {"id": "call_1", "name": "weather", "arguments": ['{"city"', ': "Oslo"}']}


def told(error: APIStatusError) -> str:
    """The code of what OpenAI's client raises."""
    return str(error.response.json()["reason"])


async def ends_of(api: RestClient) -> list[str]:
    """What closed replies, in the journal."""
    types = [row["event"]["type"] for row in await api.journal()]
    return [kind for kind in types if kind in ("llm.done", "llm.error")]


async def state_of(api: RestClient) -> str:
    return str((await api.session())["state"])


async def test_a_streamed_answer_is_heard_and_remembered(serve: Serve) -> None:
    """The client gets the LLM's chunks, and the memory has what the user and the LLM said when the stream is over."""
    async with service_with_llm(serve, Script(["Hello ", "there."])) as (api, client, llm):
        assert "Hello there." == await ask(client, "Hi.")
        assert [("user", "Hi."), ("assistant", "Hello there.")] == role_and_text(await api.contents())
        assert "Hello there." == await ask(client, "And now?")
        assert [("user", "Hi."), ("assistant", "Hello there."), ("user", "And now?")] == role_and_text(
            llm.last["messages"]
        )


async def test_a_whole_answer_is_remembered(serve: Serve) -> None:
    """Without `stream` the answer comes in one piece, and is in the memory then."""
    async with service_with_llm(serve, Script(["Hello ", "there."])) as (api, client, llm):
        answer = await client.chat.completions.create(model="any", messages=user_message("Hi."))
        assert "Hello there." == answer.choices[0].message.content
        assert [("user", "Hi."), ("assistant", "Hello there.")] == role_and_text(await api.contents())
        assert llm.last["stream"] is False


async def test_what_is_journaled(serve: Serve) -> None:
    """The words are a typed message of the next turn, chunks are deltas of a named reply, and then it is done."""
    async with service_with_llm(serve, Script(["Hello ", "there."], id="chatcmpl-x")) as (api, client, _):
        raw = await client.chat.completions.with_raw_response.create(
            model="any", messages=user_message("Hi."), stream=True
        )
        assert ("1", "chatcmpl-x") == (raw.headers["Voicemem-Turn-Id"], raw.headers["Voicemem-Item"])
        assert [chunk async for chunk in raw.parse()]
        rows = await api.journal()
    assert {("gateway", None)} == {(row["producer"], row["seq"]) for row in rows}
    first, *rest = [row["event"] for row in rows]
    assert ("message", "user", "Hi.", "message") == tuple(first[name] for name in ("type", "role", "text", "source"))
    assert "turn_id" not in first
    assert [("llm.delta", "Hello "), ("llm.delta", "there."), ("llm.done", None)] == [
        (event["type"], event.get("text")) for event in rest
    ]
    assert {(1, "chatcmpl-x")} == {(event["turn_id"], event["item"]) for event in rest}
    assert all(event["ts"] > 1_700_000_000_000 for event in (first, *rest))


@pytest.mark.parametrize("id", ["a\r\nSet-Cookie: b=c", "é", "a b"])
async def test_an_id_that_no_header_can_say_is_not_the_items(serve: Serve, id: str) -> None:
    """What an LLM calls its answer becomes a header, so the reply gets an item of its own instead."""
    async with service_with_llm(serve, Script(["Hello."], id=id)) as (_, client, _):
        raw = await client.chat.completions.with_raw_response.create(model="m", messages=user_message("Hi."))
        assert raw.headers["Voicemem-Item"].startswith("chatcmpl-")
        assert "Hello." == raw.parse().choices[0].message.content


async def test_chunks_come_as_they_are_made(serve: Serve) -> None:
    """A chunk is with the client before the next one exists, and before the journal has the end."""
    async with service_with_llm(serve, Script(["One.", "Two."], hold_after=2)) as (api, client, llm):
        stream = await client.chat.completions.create(model="any", messages=user_message("Hi."), stream=True)
        texts = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
        assert ["", "One."] == texts
        assert [("user", "Hi.")] == role_and_text(await api.contents())
        await eventually([("user", "Hi."), ("assistant", "One.")], lambda: in_progress(api))
        llm.go_on.set()
        assert "Two." == "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def in_progress(api: RestClient) -> list[tuple[str, str]]:
    """The history, with the reply that is being generated; what the client has is journaled a moment later."""
    return role_and_text(await api.contents(query="?open=true"))


async def test_chunks_pass_unchanged(serve: Serve) -> None:
    """Fields that no one here knows, line ends and Agora's first chunk of metadata arrive as they were sent."""
    first = {
        "id": "r-1",
        "object": "chat.completion.custom_metadata",
        "choices": [],
        "metadata": {"interruptable": False},
    }
    raw = b": note\r\n\r\nevent: x\r\ndata: " + json.dumps(first).encode() + b"\r\n\r\n"
    odd = (
        '{"id":"r-1","object":"chat.completion.chunk","created":1,"model":"m",'
        '  "choices":[{"index":0,"delta":{"role":"assistant","content":"a\u2028b","reasoning":1e400000},'
        '"finish_reason":"stop"}],'
        '"x":[1e999]}'
    )
    raw += f"data:{odd}\n\ndata: [DONE]\n\n".encode()
    async with service_with_llm(serve, Script(raw=raw)) as (api, _, _):
        sent = await api.post("/v1/sessions/s/chat/completions", {"messages": user_message("Hi."), "stream": True})
        assert "r-1" == sent.headers["Voicemem-Item"]
        assert f"data: {json.dumps(first)}\n\ndata: {odd}\n\ndata: [DONE]\n\n" == sent.body.decode()
        assert [("user", "Hi."), ("assistant", "a\u2028b")] == role_and_text(await api.contents())


# What the user said


async def test_speech_that_was_transcribed_is_not_taken_twice(serve: Serve) -> None:
    """A turn that the recogniser heard waits for its reply: the request's words are those of that turn."""
    async with service_with_llm(serve) as (api, client, llm):
        await api.send({"type": "asr", "turn_id": 7, "text": "Tell me a joke", "final": True})
        await ask(client, "Tell me a joke.")
        assert [("user", "Tell me a joke")] == role_and_text(llm.last["messages"])
        assert [("user", 7), ("assistant", 7)] == [(one["role"], one["turn_id"]) for one in await api.contents()]


async def test_a_transcript_that_comes_after_its_request(serve: Serve) -> None:
    """The same words as a final, while the reply is made or after it: they stand once, before the reply."""
    async with service_with_llm(serve, Script(["One.", "Two."], hold_after=2), Script(["Three."])) as (
        api,
        client,
        llm,
    ):
        asking = asyncio.create_task(ask(client, "Tell me a joke."))
        await eventually([("user", "Tell me a joke."), ("assistant", "One.")], lambda: in_progress(api))
        await api.send({"type": "asr", "text": "tell me a joke", "final": True})
        llm.go_on.set()
        await asking
        await ask(client, "Another.")
        await api.send({"type": "asr", "turn_id": 9, "item": "u", "text": "Another?", "final": True})
        assert [
            (1, "asr", "tell me a joke"), (1, "llm", "One.Two."), (2, "asr", "Another?"), (2, "llm", "Three."),
        ] == [(one["turn_id"], one["metadata"]["source"], one["content"]) for one in await api.contents()]  # fmt: skip


async def test_words_under_way_are_shown_and_not_stored(serve: Serve) -> None:
    """While the transcript has no final, the LLM gets the request's words behind the memory, which gets none."""
    async with service_with_llm(serve, llm={"vendor": "custom"}) as (api, client, llm):
        await api.send({"type": "asr", "turn_id": 1, "text": "Tell me"})
        await ask(client, "Tell me a joke.")
        assert [("user", "Tell me a joke.")] == role_and_text(llm.last["messages"])
        assert (1, 1) == (llm.last["turn_id"], llm.last["messages"][-1]["turn_id"])
        assert "message" not in {row["event"]["type"] for row in await api.journal()}
        await api.send({"type": "asr", "turn_id": 1, "text": "Tell me a joke!", "final": True})
        assert [("user", "Tell me a joke!"), ("assistant", "Hello.")] == role_and_text(await api.contents())


async def test_the_same_words_again_wait_for_the_same_reply(serve: Serve) -> None:
    """Typed words are not taken twice while they have no reply, white space apart; other words, and later ones, are."""
    async with service_with_llm(serve) as (api, client, _):
        await api.send({"type": "message", "role": "user", "text": "Hi  there", "source": "message"})
        await ask(client, " Hi there\n")
        assert ["Hi  there", "Hello."] == [text for _, text in role_and_text(await api.contents())]
        await ask(client, "Hi there")
        await api.send({"type": "message", "role": "user", "text": "One", "source": "message"})
        await ask(client, "Two")
        turns = [(one["turn_id"], one["content"]) for one in await api.contents() if one["role"] == "user"]
        assert [(1, "Hi  there"), (2, "Hi there"), (3, "One"), (4, "Two")] == turns


async def test_parts_of_text_are_lines(serve: Serve) -> None:
    """Content may come in parts; what is no text is not kept, and goes to the LLM."""
    parts: Any = [{"type": "text", "text": "One"}, {"type": "image_url", "image_url": {"url": "x"}}]
    parts.append({"type": "text", "text": "Two"})
    async with service_with_llm(serve) as (api, client, llm):
        await client.chat.completions.create(model="any", messages=[{"role": "user", "content": parts}])
        assert "One\nTwo" == (await api.contents())[0]["content"]
        assert [{"role": "user", "content": parts}] == llm.last["messages"]


async def test_instructions_go_along_and_are_not_stored(serve: Serve) -> None:
    """System and developer messages follow the session's own; what else the memory does not know is taken."""
    own = {"role": "system", "content": "Be brief."}
    async with service_with_llm(serve, llm={"system_messages": [own]}) as (api, client, llm):
        given: Any = [
            {"role": "system", "content": "You are a pirate.", "name": "p"},
            *user_message("Who are you?"),
            {"role": "assistant", "content": "A pirate."},
            {"role": "developer", "content": "Rhyme."},
            *user_message("Hi."),
        ]
        await client.chat.completions.create(model="any", messages=given)
        instructions = {"role": "system", "content": "Be brief.\n\nYou are a pirate.\n\nRhyme."}
        assert [instructions, given[1], given[2], given[4]] == llm.last["messages"]
        sources = [(one["content"], one["metadata"]["source"]) for one in await api.contents()]
        assert [
            ("Who are you?", "message"), ("A pirate.", "command"), ("Hi.", "message"), ("Hello.", "llm")
        ] == sources  # fmt: skip


@pytest.mark.parametrize("messages", [[], [{"role": "system", "content": "Greet."}]])
async def test_without_words_nothing_is_taken(serve: Serve, messages: Any) -> None:
    """A request that ends otherwise than with words only calls the LLM; before any speech its reply is of turn 0."""
    async with service_with_llm(serve) as (api, client, llm):
        await client.chat.completions.create(model="any", messages=messages)
        assert [("assistant", "Hello.", 0)] == [
            (one["role"], one["content"], one["turn_id"]) for one in await api.contents()
        ]
        assert 1 == len(llm.requests)


async def test_a_client_that_left_asks_again(serve: Serve) -> None:
    """Before the first text the reply never existed; after it, the next request withdraws it. The words stand once."""
    async with service_with_llm(serve, Script(["One ", "two."], hold_after=0)) as (api, client, llm):
        for hold, kind in ((0, None), (2, "llm.done")):
            llm.then(Script(["One ", "two."], hold_after=hold))
            asking = asyncio.create_task(ask(client, "Hi."))
            await eventually(1 + bool(kind), lambda: asyncio.sleep(0, len(llm.requests)))
            if kind is not None:
                await eventually(2, lambda: open_count(api))
            asking.cancel()
            await eventually(1 + bool(kind), lambda: asyncio.sleep(0, llm.hung_up))
            await eventually([kind] if kind else [], lambda: ends_of(api))
        llm.then(Script(["Three."]))
        assert "Three." == await ask(client, "Hi.")
        assert [("user", "Hi."), ("assistant", "Three.")] == role_and_text(await api.contents())
        assert "llm.cancel" in [row["event"]["type"] for row in await api.journal()]


async def open_count(api: RestClient) -> int:
    return len(await in_progress(api))


async def test_what_was_not_taken_is_named(serve: Serve) -> None:
    """A header names the messages that the memory does not have, and that stand before the last one it knows."""
    async with service_with_llm(serve) as (_, client, _):
        await ask(client, "Hi.")
        raw = await client.chat.completions.with_raw_response.create(
            model="any",
            messages=[{"role": "assistant", "content": "Welcome."}, *user_message("Hi."), *user_message("Well?")],
        )
        assert "messages[0]" == raw.headers["Voicemem-Ignored"]


# What the LLM gets


async def test_what_wins_among_settings(serve: Serve) -> None:
    """The request's fields win over the session's params, the session's model over the request's."""
    params = {"temperature": 0.1, "top_p": 0.5, "model": "of params", "messages": [], "stream": False}
    async with service_with_llm(serve, llm={"params": params}) as (api, client, llm):
        await ask(client, "Hi.", temperature=0.9, stream_options={"include_usage": True}, extra_body={"turn_id": 5})
        assert ("of params", 0.9, 0.5, True, 5) == tuple(
            llm.last[name] for name in ("model", "temperature", "top_p", "stream", "turn_id")
        )
        assert {"include_usage": True} == llm.last["stream_options"]
        await api.patch("/v1/sessions/s", {"llm": {"model": "of the session"}})
        await ask(client, "Hi again.")
        assert "of the session" == llm.last["model"]


@pytest.mark.parametrize(("default", "expected"), [("of the service", "of the service"), (None, "any")])
async def test_the_model_of_a_session_without_one(serve: Serve, default: str | None, expected: str) -> None:
    """The service's model, else the request's."""
    async with llm_server() as llm:
        app = await serve(llm_url=llm.url, llm_model=default)
        await RestClient(app).create()
        async with openai_client(app) as client:
            await ask(client, "Hi.")
        assert expected == llm.last["model"]


async def test_a_custom_llm_gets_every_field(serve: Serve) -> None:
    """Agora's custom call: all fields of the messages; turn, time and interruptable on top, which no one replaces."""
    async with service_with_llm(serve, llm={"vendor": "custom"}, interruptable=False) as (api, client, llm):
        await api.send(
            {
                "type": "message",
                "role": "assistant",
                "text": "How can I help?",
                "source": "greeting",
                "turn_id": 0,
                "ts": 5,
            },
            {"type": "asr", "turn_id": 1, "text": "Tell me a joke.", "final": True, "user": "u1", "ts": 10},
            {"type": "llm.done", "turn_id": 1, "text": "Why did the scarecrow win?", "ts": 20},
            {"type": "interrupt", "turn_id": 1, "heard_text": "Why did ", "ts": 30},
        )
        await ask(
            client, "Stop.", extra_body={"turn_id": 99, "timestamp": 98, "interruptable": True, "context": {"a": 1}}
        )
        contents = (await api.contents())[:-1]
        assert contents == llm.last["messages"]
        assert ("Why did ", "Why did the scarecrow win?", "u1") == (
            contents[2]["content"],
            contents[2]["metadata"]["original"],
            contents[1]["metadata"]["user"],
        )
        newest = contents[-1]
        assert (2, newest["timestamp"], False) == tuple(
            llm.last[name] for name in ("turn_id", "timestamp", "interruptable")
        )
        assert {"a": 1} == llm.last["context"]


async def test_the_sessions_own_llm_is_called(serve: Serve) -> None:
    """With its key and headers, ours winning; the path ends as it is written, or gets the endpoint's name."""
    headers = {"X-Tenant": "t", "authorization": "no", "content-TYPE": "no", "Host": "evil.example", "api-key": "k"}
    async with llm_server() as llm, llm_server() as other:
        app = await serve(allow_addresses=LOOPBACK, llm_url=other.url, llm_api_key="operator's")
        api = RestClient(app)
        await api.create(llm={"url": f"{llm.url}/chat/completions?v=1", "api_key": "sk-1", "headers": headers})
        async with openai_client(app, key="callers") as client:
            await ask(client, "Hi.")
        request = llm.requests[0]
        assert "/v1/chat/completions?v=1" == request.path
        got = {name.lower(): value for name, value in request.headers.items()}
        assert ("Bearer sk-1", "application/json", "t", "k", "voicemem") == tuple(
            got[name] for name in ("authorization", "content-type", "x-tenant", "api-key", "user-agent")
        )
        assert "evil.example" != got["host"]
        assert not [name for name in got if name.startswith(("x-stainless", "openai"))]
        shown = json.dumps(await api.session()) + json.dumps(await api.journal())
        assert "sk-1" not in shown
        assert "X-Tenant" not in shown

        await api.create("bare", llm={"url": llm.url})
        async with openai_client(app, session_id="bare") as client:
            await ask(client, "Hi.")
        assert "/v1/chat/completions" == llm.requests[1].path
        assert "Authorization" not in llm.requests[1].headers
        assert [] == other.requests


async def test_the_operators_llm_is_called_with_its_key(serve: Serve) -> None:
    """The service's default may be private, and gets the operator's key."""
    async with llm_server() as llm:
        app = await serve(llm_url=llm.url + "/", llm_api_key="operator's")
        await RestClient(app).create()
        async with openai_client(app) as client:
            await ask(client, "Hi.")
        assert "Bearer operator's" == llm.requests[0].headers["Authorization"]
        assert "/v1/chat/completions" == llm.requests[0].path


# Replies


async def test_replies_have_names_of_their_own(serve: Serve) -> None:
    """An id that the LLM gives twice, or not at all, or that is too long, is replaced, so that no reply is two."""
    scripts = [
        Script(["One."], id="same"),
        Script(["Two."], id="same"),
        Script(["Three."], id=""),
        Script(["Four."], id="x" * 129),
    ]
    async with service_with_llm(serve, *scripts) as (api, client, _):
        items = []
        for text in "abcd":
            raw = await client.chat.completions.with_raw_response.create(
                model="any", messages=user_message(text), stream=True
            )
            items.append(raw.headers["Voicemem-Item"])
            assert [chunk async for chunk in raw.parse()]
        assert "same" == items[0]
        assert 4 == len(set(items))
        assert ["One.", "Two.", "Three.", "Four."] == [
            one["content"] for one in await api.contents() if one["role"] == "assistant"
        ]


async def test_an_interruption_that_the_engine_reports_cuts_the_reply(serve: Serve) -> None:
    """In the middle of the stream, by the item of the response's head: heard text is what the user heard."""
    async with service_with_llm(serve, Script(["Why did ", "the scarecrow ", "win?"], hold_after=3)) as (
        api,
        client,
        llm,
    ):
        stream = await client.chat.completions.with_raw_response.create(
            model="any", messages=user_message("A joke."), stream=True
        )
        item, chunks = stream.headers["Voicemem-Item"], stream.parse()
        assert "the scarecrow " == [(await anext(chunks)).choices[0].delta.content for _ in range(3)][-1]
        await api.send({"type": "interrupt", "item": item, "heard_text": "Why did "})
        await chunks.close()
        await eventually(1, lambda: asyncio.sleep(0, llm.hung_up))
        await eventually(["llm.done"], lambda: ends_of(api))
        reply = (await api.contents())[-1]
        assert "Why did " == reply["content"]
        assert (True, "Why did the scarecrow ") == (reply["metadata"]["interrupted"], reply["metadata"]["original"])
        assert "the scarecrow" not in json.dumps(await api.context())
        context = await api.context("?enrich=originals")
        assert "Why did " == context["messages"][-1]["content"]


# Tools


@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_is_called_and_answers(serve: Serve, stream: bool) -> None:
    """The call passes to the client and its result to the LLM; both are in the journal, in one turn with the reply."""
    scripts = [Script(["One moment."], tools=[TOOL]), Script(["It is raining."])]
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    async with service_with_llm(serve, *scripts) as (api, client, llm):
        message = await ask_and_collect(client, user_message("The weather?"), stream, tools=tools)
        assert tools == llm.last["tools"]
        assert ("call_1", "weather", '{"city": "Oslo"}') == message.calls[0]
        result: Any = [
            *user_message("The weather?"),
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        ]
        assert "It is raining." == (await ask_and_collect(client, result, stream, tools=tools)).text
        call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
        assert [
            *user_message("The weather?"),
            {"role": "assistant", "content": "One moment."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        ] == llm.last["messages"]
        assert ["The weather?", "One moment.", "It is raining."] == [one["content"] for one in await api.contents()]
        assert {1} == {one["turn_id"] for one in await api.contents()}
        traces = [row["event"] for row in await api.journal() if row["event"]["type"].startswith("tool")]
        assert [("tool.call", 1), ("tool.result", 1)] == [(one["type"], one["turn_id"]) for one in traces]
        await ask_and_collect(client, result, stream, tools=tools)  # the same again adds nothing
        assert 2 == len([row for row in await api.journal() if row["event"]["type"].startswith("tool")])


async def test_several_tools_at_once(serve: Serve) -> None:
    """Fragments belong to the call of their index; only what was answered is shown to the LLM."""
    tools: list[JsonObject] = [TOOL, {"id": "call_2", "name": "time", "arguments": "{}"}]
    async with service_with_llm(serve, Script(tools=tools), Script(["Noon."])) as (_, client, llm):
        message = await ask_and_collect(client, user_message("Time?"), True)
        assert [("call_1", "weather", '{"city": "Oslo"}'), ("call_2", "time", "{}")] == message.calls
        results: Any = [{"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "12"}]}]
        await ask_and_collect(client, results, True)
        assert ["call_2"] == [one["tool_call_id"] for one in llm.last["messages"] if one["role"] == "tool"]


@pytest.mark.parametrize("identity", ["never called", "", None])
async def test_an_answer_to_no_call_is_refused(serve: Serve, identity: str | None) -> None:
    """The place of an unknown id is told, and nothing of the request is taken; a known one may be answered again."""
    async with service_with_llm(serve, Script(tools=[TOOL]), Script(["Rain."])) as (api, client, llm):
        await ask_and_collect(client, user_message("The weather?"), True)
        rain = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
        strange = {"role": "tool", "content": "sun"} | ({} if identity is None else {"tool_call_id": identity})
        with pytest.raises(APIStatusError) as raised:
            await ask_and_collect(
                client, [*user_message("?"), {"role": "assistant", "content": None}, rain, strange], True
            )
        assert (400, "invalid_field") == (raised.value.status_code, told(raised.value))
        assert str(raised.value).endswith("no tool call with this id: `messages[3].tool_call_id`")
        assert "tool.result" not in [row["event"]["type"] for row in await api.journal()]
        assert 1 == len(llm.requests)
        for _ in range(2):
            assert "Rain." == (await ask_and_collect(client, [rain, rain], True)).text
        assert 1 == [row["event"]["type"] for row in await api.journal()].count("tool.result")


# Who may


async def test_keys_and_tokens(serve: Serve) -> None:
    """The gateway needs the scope `ingest`; a session token reaches its session, and no other."""
    async with llm_server() as llm:
        app = await serve(admin_key="an operator's own key", llm_url=llm.url)
        admin = RestClient(app, "an operator's own key")
        await admin.create()
        await admin.create("other")
        token = (await admin.post("/v1/sessions/s/tokens", {})).json["token"]
        for key in (await make_key(app, "ingest"), token):
            async with openai_client(app, key) as client:
                assert "Hello." == await ask(client, "Hi.")
        async with openai_client(app, await make_key(app, "read")) as client:
            with pytest.raises(PermissionDeniedError):
                await ask(client, "Hi.")
        async with openai_client(app, token, session_id="other") as client:
            with pytest.raises(PermissionDeniedError):
                await ask(client, "Hi.")
        async with openai_client(app, "vm_wrong") as client:
            with pytest.raises(AuthenticationError):
                await ask(client, "Hi.")
        assert 2 == len(llm.requests)


async def test_the_llm_needs_admin(serve: Serve) -> None:
    """What makes the server call out, headers among it, is set by admins only."""
    app = await serve(admin_key="an operator's own key")
    api = await client_with_key(app, "ingest", "read")
    for llm in ({"url": "https://llm.example"}, {"api_key": "k"}, {"headers": {"X-A": "1"}}):
        assert (403, "forbidden") == (await api.post("/v1/sessions", {"llm": llm})).problem


async def test_sessions_that_cannot_speak(serve: Serve) -> None:
    """No such session, and one that has ended, are told apart; the LLM is not called."""
    async with service_with_llm(serve) as (api, client, llm):
        await api.end()
        with pytest.raises(APIStatusError) as refused:
            await ask(client, "Hi.")
        assert (410, "session_ended") == (refused.value.status_code, told(refused.value))
        async with openai_client(api.app, session_id="none") as other:
            with pytest.raises(NotFoundError) as unknown:
                await ask(other, "Hi.")
        assert "unknown_session" == told(unknown.value)
        assert [] == llm.requests


async def test_a_service_without_an_llm_says_so(serve: Serve) -> None:
    """Neither the session nor the service has one: nothing is stored."""
    app = await serve()
    api = RestClient(app)
    await api.create()
    async with openai_client(app) as client:
        with pytest.raises(ConflictError) as refused:
            await ask(client, "Hi.")
    assert "llm_not_configured" == told(refused.value)
    assert [] == await api.journal()


async def test_a_session_that_is_silent_comes_back(serve: Serve) -> None:
    """An idle close is undone by the next request, as by any event."""
    async with service_with_llm(serve, idle_timeout=0.05, reopen_window=60) as (api, client, _):
        await eventually("ended", lambda: state_of(api))
        assert "Hello." == await ask(client, "Hi.")
        assert "session.reopened" in [row["event"]["type"] for row in await api.journal()]


async def test_beside_an_engine_on_its_websocket(serve: Serve) -> None:
    """The engine's own producer goes on with its seqs; its playback of the gateway's reply is found by turn."""
    async with (
        service_with_llm(serve, Script(["Hello ", "there."])) as (api, client, _),
        connected_producer(api.app) as engine,
    ):
        await engine.open("s")
        await engine.store({"type": "asr", "seq": 1, "turn_id": 1, "text": "Hi.", "final": True})
        await ask(client, "Hi.")
        await engine.store({"type": "tts", "seq": 2, "turn_id": 1, "heard_text": "Hello "})
        await engine.store({"type": "interrupt", "seq": 3, "turn_id": 1})
        assert [("user", "Hi."), ("assistant", "Hello ")] == role_and_text(await api.contents())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"{}",
        b'{"messages":{}}',
        b'{"messages":[1]}',
        b'{"messages":[{"role":1}]}',
        b'{"messages":[{}]}',
        b'{"messages":[{"role":"user","content":5}]}',
        b'{"messages":[],"stream":"yes"}',
        b'{"messages":[],"model":7}',
        b'{"messages":[],"n":10000000000000000000}',
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b"\xff\xfe",
        b"[" * 100,
    ],
)
async def test_what_is_no_request_is_refused(serve: Serve, body: bytes) -> None:
    """Nothing of it is stored, and the LLM is not called."""
    async with service_with_llm(serve) as (api, _, llm):
        told = (await api.post("/v1/sessions/s/chat/completions", body)).problem
        assert 400 == told[0]
        assert [] == await api.journal()
        assert [] == llm.requests


async def test_too_much_is_refused(serve: Serve) -> None:
    """A body over 1 MiB, and words over 256 KiB, are refused whole."""
    async with service_with_llm(serve) as (api, _, llm):
        path = "/v1/sessions/s/chat/completions"
        assert (413, "too_big") == (
            await api.post(path, json.dumps({"messages": user_message("x" * 2**20)}).encode())
        ).problem
        assert (400, "text_too_long") == (await api.post(path, {"messages": user_message("x" * 270_000)})).problem
        assert [] == llm.requests
        assert [] == await api.contents()


@pytest.mark.parametrize("end", [{}, {"finish_reason": "stop"}])
async def test_openais_helper_reads_a_stream_without_its_fields(serve: Serve, end: JsonObject) -> None:
    """Choices without an index, chunks without id or model, a role in each, no end: the helper says what and when."""
    deltas = [{"role": "assistant", "content": "Hel"}, {"role": "assistant", "content": "lo."}, {"role": "assistant"}]
    chunks: list[JsonObject] = [{"choices": [{"delta": one}]} for one in deltas]
    chunks[-1]["choices"][0] |= end
    raw = b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in chunks)
    async with (
        service_with_llm(serve, Script(raw=raw + b"data: [DONE]\n\n")) as (_, client, _),
        client.chat.completions.stream(model="any", messages=user_message("Hi.")) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert "content.done" in kinds
    assert ("assistant", "Hello.") == (final.choices[0].message.role, final.choices[0].message.content)
    assert ("stop", "chatcmpl-") == (final.choices[0].finish_reason, final.id[:9])
