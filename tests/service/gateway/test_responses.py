"""OpenAI's Responses API before the gateway, as the clients of OpenAI and LangChain speak it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from openai import APIError, APIStatusError, AsyncOpenAI
from openai.types.responses import Response, ResponseCompletedEvent, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.support.callers.gateway import role_and_text
from tests.support.callers.rest import RestClient
from tests.support.needs import needs_module
from tests.support.rows import every_row
from tests.support.servers.llm_server import LlmServer, Script, llm_server
from tests.support.services import Serve
from voicemem.app import App
from voicemem.protocol.types import JsonObject

HEADERS = {"X-Voicemem-Session": "s"}
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
CALL = {"id": "call_1", "name": "weather", "arguments": ['{"city"', ': "Oslo"}']}


@asynccontextmanager
async def service(serve: Serve, *scripts: Script) -> AsyncIterator[tuple[App, AsyncOpenAI, LlmServer]]:
    """A service, and OpenAI's client at its one URL."""
    async with llm_server(*scripts) as llm:
        app = await serve(llm_url=llm.url)
        url = f"http://{app.rest_address}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", default_headers=HEADERS, max_retries=0) as client:
            yield app, client, llm


async def said(app: App) -> list[tuple[str, str]]:
    return role_and_text(await RestClient(app).contents())


async def test_a_text_is_answered_and_remembered(serve: Serve) -> None:
    """In one piece; instructions are a system message, and the LLM gets the memory."""
    async with service(serve, Script(["Hello ", "there."])) as (app, client, llm):
        first = await client.responses.create(model="any", input="Hi.", instructions="Be brief.")
        assert ("Hello there.", "completed") == (first.output_text, first.status)
        again = await client.responses.create(model="any", input="And now?", previous_response_id=first.id)
        assert "Hello there." == again.output_text
        assert [("user", "Hi."), ("assistant", "Hello there.")] == (await said(app))[:2]
        assert [("user", "Hi."), ("assistant", "Hello there."), ("user", "And now?")] == role_and_text(
            llm.last["messages"]
        )
        assert {"role": "system", "content": "Be brief."} == llm.requests[0].body["messages"][0]


async def test_a_stream_has_openais_events(serve: Serve) -> None:
    """Each is valid by the types of OpenAI's package, numbered in order, and `.stream()` joins them."""
    async with service(serve, Script(["Hello ", "there."], tools=[CALL])) as (app, client, _):
        kinds: Any = TypeAdapter(ResponseStreamEvent)
        events = []
        stream = await client.responses.create(model="any", input="Hi.", tools=[WEATHER], stream=True)
        async for event in stream:
            kinds.validate_python(event.model_dump(), strict=False)
            events.append(event)
        assert list(range(len(events))) == [event.sequence_number for event in events]
        assert [
            "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
            "response.output_text.delta", "response.output_text.delta", "response.output_item.added",
            "response.function_call_arguments.delta", "response.function_call_arguments.delta",
            "response.output_text.done", "response.content_part.done", "response.output_item.done",
            "response.function_call_arguments.done", "response.output_item.done", "response.completed",
        ] == [event.type for event in events]  # fmt: skip
        last = events[-1]
        assert isinstance(last, ResponseCompletedEvent)
        Response.model_validate(last.response.model_dump())
        call: Any = last.response.output[1]
        assert "Hello there." == last.response.output_text
        assert ("function_call", "call_1", "weather", '{"city": "Oslo"}') == (
            call.type, call.call_id, call.name, call.arguments
        )  # fmt: skip
        async with client.responses.stream(model="any", input="Again.", tools=[WEATHER]) as helper:
            async for _ in helper:
                pass
            final = await helper.get_final_response()
        assert "Hello there." == final.output_text
        assert [("user", "Hi."), ("assistant", "Hello there.")] == (await said(app))[:2]


@every_row("stream", [True, False])
async def test_tools_and_their_results(serve: Serve, stream: bool) -> None:
    """A call goes out and its output comes in, alone or with the whole conversation; the memory has both once."""
    async with service(serve, Script(["Let me see."], tools=[CALL])) as (app, client, llm):
        asked: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "The weather in Oslo?"}]}]
        response = await answer(client, stream, input=asked, tools=[WEATHER], tool_choice="required")
        function = {name: value for name, value in WEATHER.items() if name != "type"}
        assert [{"type": "function", "function": function}] == llm.last["tools"]
        assert "required" == llm.last["tool_choice"]
        output = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
        history = [*asked, *(one.model_dump(exclude_none=True) for one in response.output), output]
        llm.then(Script(["It rains."]))
        for items in (history, [output]):
            assert "It rains." == (await answer(client, stream, input=items, tools=[WEATHER])).output_text
            results = [one for one in llm.last["messages"] if one["role"] == "tool"]
            assert [("call_1", "rain")] == [(one["tool_call_id"], one["content"]) for one in results]
        assert ("user", "The weather in Oslo?") == (await said(app))[0]
        assert 1 == (await said(app)).count(("assistant", "Let me see."))


async def answer(client: Any, stream: bool, **more: Any) -> Any:
    if not stream:
        return await client.responses.create(model="any", **more)
    response: Any = None
    async for event in await client.responses.create(model="any", stream=True, **more):
        response = getattr(event, "response", response)
    assert response is not None
    return response


class Weather(BaseModel):
    """An answer by a schema."""

    city: str
    rains: bool


async def test_fields_become_those_of_a_chat_completion(serve: Serve) -> None:
    """Schemas, reasoning, limits and choices; what only OpenAI's store means goes nowhere."""
    async with service(serve, Script(['{"city": "Oslo", ', '"rains": true}'])) as (_, client, llm):
        parsed = await client.responses.parse(
            model="any",
            input="Oslo?",
            text_format=Weather,
            reasoning={"effort": "low"},
            max_output_tokens=50,
            temperature=0.5,
            tools=[WEATHER],
            tool_choice={"type": "function", "name": "weather"},
            store=False,
            include=["reasoning.encrypted_content"],
            truncation="auto",
            metadata={"session_id": "s"},
            user="ann",
            extra_body={"top_k": 4, "call": {"id": "x"}},
        )
        assert Weather(city="Oslo", rains=True) == parsed.output_parsed
        sent = llm.last
        assert {
            "messages", "model", "stream", "response_format", "reasoning_effort", "max_completion_tokens",
            "temperature", "tools", "tool_choice", "top_k",
        } == set(sent)  # fmt: skip
        assert "json_schema" == sent["response_format"]["type"]
        assert "Weather" == sent["response_format"]["json_schema"]["name"]
        assert ("low", 50, 0.5) == (sent["reasoning_effort"], sent["max_completion_tokens"], sent["temperature"])
        assert {"type": "function", "function": {"name": "weather"}} == sent["tool_choice"]


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}


def completion(**choice: Any) -> bytes:
    message = {"role": "assistant", "content": "Hello."}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"} | choice]
    return TypeAdapter(Any).dump_json({"id": "c", "model": "m", "created": 5, "choices": choices, "usage": USAGE})


async def test_an_incomplete_answer_and_its_usage(serve: Serve) -> None:
    """The LLM's word for it becomes OpenAI's; tokens are counted under the names of a response."""
    async with service(serve, Script(raw=completion(finish_reason="length"))) as (_, client, _):
        response = await client.responses.create(model="any", input="Hi.")
        assert response.incomplete_details is not None
        assert response.usage is not None
        assert ("incomplete", "max_output_tokens") == (response.status, response.incomplete_details.reason)
        usage = response.usage
        assert (7, 2, 3, 10) == (
            usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens, usage.total_tokens
        )  # fmt: skip


async def test_a_refusal(serve: Serve) -> None:
    """What the LLM refuses is a part of its own type."""
    raw = completion(message={"role": "assistant", "content": None, "refusal": "I may not."})
    async with service(serve, Script(raw=raw)) as (_, client, _):
        response = await client.responses.create(model="any", input="Hi.")
        message: Any = response.output[0]
        assert "refusal" == message.content[0].type


@every_row(
    ("place", "body"),
    [
        ("`input`", {}),
        ("`input`", {"input": 7}),
        ("`input[0].type`", {"input": ["Hi."]}),
        ("`input[1].type`", {"input": [{"role": "user", "content": "Hi."}, {"type": "item_reference", "id": "x"}]}),
        ("`input[0].type`", {"input": [{"type": "computer_call"}]}),
        ("`input[0].role`", {"input": [{"role": "robot", "content": "Hi."}]}),
        ("`input[0].role`", {"input": [{"content": "Hi."}]}),
        ("`input[0].content`", {"input": [{"role": "user", "content": 7}]}),
        ("`input[0].content[0]`", {"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
        ("`input[0].content[0]`", {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}),
        ("`input[0].call_id`", {"input": [{"type": "function_call_output", "call_id": 7, "output": "x"}]}),
        ("`input[0].call_id`", {"input": [{"type": "function_call", "name": "x", "arguments": "{}"}]}),
        ("`instructions`", {"input": "Hi.", "instructions": ["Be brief."]}),
        ("`background`", {"input": "Hi.", "background": True}),
        ("`conversation`", {"input": "Hi.", "conversation": "conv_1"}),
        ("`prompt`", {"input": "Hi.", "prompt": {"id": "pmpt_1"}}),
        ("`tools[0].type`", {"input": "Hi.", "tools": [{"type": "web_search"}]}),
        ("`tools[0].type`", {"input": "Hi.", "tools": {"type": "function"}}),
        ("`tool_choice`", {"input": "Hi.", "tools": [WEATHER], "tool_choice": {"type": "file_search"}}),
        ("`text`", {"input": "Hi.", "text": "json"}),
    ],
)
async def test_what_is_not_taken_is_refused(serve: Serve, place: str, body: JsonObject) -> None:
    """The sentence says where, no session begins, and the LLM is not asked."""
    async with service(serve) as (app, _, llm):
        api = RestClient(app)
        refused = await api.call("POST", "/v1/responses", HEADERS, json=body)
        assert 400 == refused.problem[0]
        assert place in refused.json["detail"]
        assert [] == llm.requests
        assert 404 == (await api.get("/v1/sessions/s")).status


async def test_errors_reach_openais_client(serve: Serve) -> None:
    """Before the answer as a status, in the middle of it as an event that the client raises."""
    async with service(serve, Script(status=429), Script(["One.", "Two."], drop_after=2)) as (_, client, _):
        with pytest.raises(APIStatusError) as failed:
            await client.responses.create(model="any", input="Hi.", stream=True)
        assert 502 == failed.value.status_code
        stream = await client.responses.create(model="any", input="Hi.", stream=True)
        with pytest.raises(APIError, match="LLM"):
            assert [event async for event in stream]


async def test_the_path_of_a_session(serve: Serve) -> None:
    """The same under the base URL of a session, which must exist."""
    async with service(serve) as (app, _, _):
        await RestClient(app).create()
        url = f"http://{app.rest_address}/v1/sessions"
        async with AsyncOpenAI(base_url=f"{url}/s", api_key="none") as client:
            assert "Hello." == (await client.responses.create(model="any", input="Hi.")).output_text
        assert 2 == len(await said(app))
        async with AsyncOpenAI(base_url=f"{url}/t", api_key="none") as client:
            with pytest.raises(APIStatusError, match="no such session"):
                await client.responses.create(model="any", input="Hi.")


@pytest.mark.filterwarnings("default")  # the framework's own are not ours
@pytest.mark.parametrize("stream", [True, False])
async def test_langchains_model(serve: Serve, stream: bool) -> None:
    """LangChain's own model of the Responses API, with a tool, its result, and the whole conversation each time."""
    needs_module("langchain_openai", "test")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the framework imports is not ours
        import langchain_openai
        from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
    async with service(serve, Script(["Let me see."], tools=[CALL])) as (app, _, llm):
        url = f"http://{app.rest_address}/v1"
        async with httpx2.AsyncClient() as http:
            make: Any = langchain_openai.ChatOpenAI
            model = make(
                model="any", base_url=url, api_key="none", use_responses_api=True, streaming=stream,
                default_headers=HEADERS, http_async_client=http,
            ).bind_tools([WEATHER])  # fmt: skip
            messages: list[Any] = [SystemMessage("Be brief."), HumanMessage("The weather in Oslo?")]
            messages.append(await model.ainvoke(messages))
            assert [("weather", {"city": "Oslo"}, "call_1")] == [
                (one["name"], one["args"], one["id"]) for one in messages[-1].tool_calls
            ]
            llm.then(Script(["It rains."]))
            messages.append(ToolMessage("rain", tool_call_id="call_1"))
            assert "It rains." == (await model.ainvoke(messages)).text
        expected = [("user", "The weather in Oslo?"), ("assistant", "Let me see."), ("assistant", "It rains.")]
        assert expected == await said(app)
