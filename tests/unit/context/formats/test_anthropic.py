"""The Anthropic style, held against the types of Anthropic's own package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from pydantic import TypeAdapter

from tests.support.samples.formats import SEED_CALL, exhausted, memories, message_of, tool_use_of, tool_uses
from voicemem.context.formats import RequestFormat, request_body
from voicemem.transcript.messages import Message, ToolUse


@cache
def message_type() -> TypeAdapter[Any]:
    """The type of a list of messages; the package takes a second to import, so only these tests pay for it."""
    from anthropic.types import MessageParam

    return TypeAdapter(list[MessageParam])


@cache
def body_type() -> TypeAdapter[Any]:
    """The type of a whole body."""
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

    return TypeAdapter(MessageCreateParamsNonStreaming)


def body(memory: Sequence[Message] = (), *tools: ToolUse, **options: Any) -> dict[str, Any]:
    """A body with tools in this style."""
    return request_body(memory, tools, RequestFormat(style="anthropic", tools=True, **options))


def blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The content of a message as blocks, which the API also makes of plain text."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


@pytest.mark.long
@given(memories, tool_uses)
def test_messages_are_anthropics(memory: Sequence[Message], tools: Sequence[ToolUse]) -> None:
    """Anthropic's types take whatever was said and called."""
    for vendor in (None, "custom"):
        exhausted(message_type().validate_python(body(memory, *tools, vendor=vendor)["messages"]))


@given(memories, tool_uses)
def test_the_rules_that_types_do_not_say(memory: Sequence[Message], tools: Sequence[ToolUse]) -> None:
    """Roles alternate from user to user, no text is blank, every call is answered first thing in the next message."""
    found = body(memory, *tools, vendor="custom")["messages"]
    assert [each["role"] for each in found] == (["user", "assistant"] * len(found))[: len(found)]
    assert len(found) % 2 or not found
    assert all(block["text"].strip() for each in found for block in blocks(each) if block["type"] == "text")
    for message, after in pairwise(found):
        calls = [block["id"] for block in blocks(message) if block["type"] == "tool_use"]
        assert calls == [block["tool_use_id"] for block in blocks(after)[: len(calls)]]


def test_body_is_anthropics() -> None:
    """The whole body is one that Anthropic's package would send."""
    system = {"role": "system", "content": "Be brief."}
    found = body(SEED_CALL, tool_use_of({"city": "Rome"}, turn_id=3), model="claude", system_messages=(system,))
    exhausted(body_type().validate_python(found))
    assert [*found] == ["messages", "system", "model", "max_tokens"]
    assert found["system"] == "Be brief."


@pytest.mark.parametrize(("params", "expected"), [({}, 1024), ({"max_tokens": 50}, 50), ({"max_tokens": None}, 1024)])
def test_max_tokens_is_always_there(params: dict[str, Any], expected: int) -> None:
    """The bound that the API requires comes from params, else it is 1024."""
    assert body(params=params)["max_tokens"] == expected


def test_empty_memory_stays_empty() -> None:
    """Before anything was said there are no messages; whoever calls adds the first."""
    assert body()["messages"] == []


def test_system_of_params_stands_only_where_there_is_no_other() -> None:
    """Params may bring `system` as blocks, but never instead of the system messages."""
    params = {"system": [{"type": "text", "text": "Be kind."}]}
    assert body(params=params)["system"] == params["system"]
    assert body(params=params, system_messages=({"content": "Be brief."},))["system"] == "Be brief."


def test_tool_use() -> None:
    """A call ends an assistant message, and its result begins the user message after it."""
    memory = [message_of("user", "Weather?"), message_of("assistant", "One moment."), message_of("user", "Thanks.", 2)]
    _, call, result = body(memory, tool_use_of('{"city":"Rome"}', {"sky": 1}, timestamp=1))["messages"]
    text = {"type": "text", "text": "One moment."}
    assert call["content"] == [text, {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Rome"}}]
    answer = {"type": "tool_result", "tool_use_id": "call_1", "content": '{"sky": 1}'}
    assert result["content"] == [answer, {"type": "text", "text": "Thanks."}]


def test_blank_result_has_no_content() -> None:
    """A result that is empty text is a result without content, since empty text is refused."""
    assert body([], tool_use_of(result=""))["messages"][-1]["content"] == [
        {"type": "tool_result", "tool_use_id": "call_1"}
    ]


def test_ids_are_spelt_in_the_letters_that_the_api_takes() -> None:
    """An id of another engine is respelt, and stays different from all others."""
    found = body([], tool_use_of(call_id="item/1"), tool_use_of(call_id="item.1"))["messages"]
    ids = [block["id"] for message in found for block in blocks(message) if block["type"] == "tool_use"]
    assert len(set(ids)) == 2
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", each) for each in ids)


def test_custom_fields_stand_in_messages() -> None:
    """A custom LLM of this style is told turn, time and metadata of each message."""
    (message,) = body([message_of("user", "Hi.", 3, 30, user="Ann")], vendor="custom")["messages"]
    assert message == {"role": "user", "content": "Hi.", "turn_id": 3, "timestamp": 30, "metadata": {"user": "Ann"}}
