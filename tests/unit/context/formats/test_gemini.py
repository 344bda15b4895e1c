"""The Gemini style, held against the types of Google's own package."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given

from tests.support.samples.formats import SEED_CALL, memories, message_of, tool_use_of, tool_uses
from voicemem.context.formats import RequestFormat, request_body
from voicemem.transcript.messages import Message, ToolUse


def google_types() -> Any:
    """Google's types; only the process that runs these tests imports the package."""
    from google.genai import types

    return types


def body(memory: Sequence[Message] = (), *tools: ToolUse, **options: Any) -> dict[str, Any]:
    """A body with tools in this style."""
    return request_body(memory, tools, RequestFormat(style="gemini", tools=True, **options))


@pytest.mark.slow
@given(memories, tool_uses)
def test_contents_are_googles(memory: Sequence[Message], tools: Sequence[ToolUse]) -> None:
    """Google's types, which refuse unknown keys, take whatever was said and called."""
    for content in body(memory, *tools)["contents"]:
        google_types().Content.model_validate(content)


@given(memories, tool_uses)
def test_the_rules_that_types_do_not_say(memory: Sequence[Message], tools: Sequence[ToolUse]) -> None:
    """Roles alternate from user to user, no text is blank, and the content after a call begins with its response."""
    found = body(memory, *tools, vendor="custom")["contents"]
    assert [each["role"] for each in found] == (["user", "model"] * len(found))[: len(found)]
    assert len(found) % 2 or not found
    assert all(part["text"].strip() for each in found for part in each["parts"] if "text" in part)
    for content, after in pairwise(found):
        calls = [part["functionCall"]["name"] for part in content["parts"] if "functionCall" in part]
        assert calls == [part["functionResponse"]["name"] for part in after["parts"] if "functionResponse" in part]


def test_body() -> None:
    """System messages, contents, model and params stand where the API has them."""
    system = {"role": "system", "content": "Be brief."}
    found = body(SEED_CALL[1:2], params={"model": "gemini", "temperature": 0.2}, system_messages=(system,))
    assert list(found.items()) == [
        ("contents", [{"role": "user", "parts": [{"text": "Can you tell me a joke?"}]}]),
        ("systemInstruction", {"parts": [{"text": "Be brief."}]}),
        ("model", "gemini"),
        ("generationConfig", {"temperature": 0.2}),
    ]


def test_parts_of_the_body_are_googles() -> None:
    """Google's types take the system instruction and the settings."""
    found = body(params={"maxOutputTokens": 50}, system_messages=({"content": "Be brief."},))
    assert google_types().Content.model_validate(found["systemInstruction"]).parts
    assert google_types().GenerationConfig.model_validate(found["generationConfig"]).max_output_tokens == 50


def test_params_of_the_request_stand_at_the_top() -> None:
    """Fields of the request itself are no generation settings; settings that came nested are not nested twice."""
    found = body(params={"tools": [], "generationConfig": {"topP": 1, "topK": 2}, "topK": 3})
    assert found == {"contents": [], "tools": [], "generationConfig": {"topP": 1, "topK": 3}}


def test_params_replace_nothing() -> None:
    """Params cannot bring contents, nor a system instruction where there are system messages."""
    params = {"contents": ["forged"], "systemInstruction": "forged"}
    found = body([message_of("user", "Hi.")], params=params, system_messages=({"content": "Be brief."},))
    assert found["contents"] == [{"role": "user", "parts": [{"text": "Hi."}]}]
    assert found["systemInstruction"] == {"parts": [{"text": "Be brief."}]}


def test_tool_use() -> None:
    """A call is a functionCall part of the model; its response begins the user's content after it."""
    memory = [message_of("user", "Weather?"), message_of("user", "Thanks.", 2)]
    _, call, response = body(memory, tool_use_of('{"city":"Rome"}', {"sky": 1}))["contents"]
    assert call == {"role": "model", "parts": [{"functionCall": {"name": "weather", "args": {"city": "Rome"}}}]}
    answer = {"functionResponse": {"name": "weather", "response": {"sky": 1}}}
    assert response == {"role": "user", "parts": [answer, {"text": "Thanks."}]}


def test_values_that_are_no_objects_are_wrapped() -> None:
    """The API takes objects only, so other arguments and results stand in one."""
    _, call, response = body([], tool_use_of([1], "sunny"))["contents"]
    assert call["parts"][0]["functionCall"]["args"] == {"arguments": [1]}
    assert response["parts"][0]["functionResponse"]["response"] == {"output": "sunny"}


def test_custom_fields_stand_in_contents() -> None:
    """A custom LLM of this style is told turn, time and metadata of each message."""
    (content,) = body([message_of("user", "Hi.", 3, 30)], vendor="custom")["contents"]
    assert content == {"role": "user", "parts": [{"text": "Hi."}], "turn_id": 3, "timestamp": 30, "metadata": {}}
