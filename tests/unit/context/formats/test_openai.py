"""The OpenAI style, held against the types of OpenAI's own package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from hypothesis import given
from pydantic import TypeAdapter

from tests.support.samples.formats import SEED_CALL, exhausted, memories, message_of, tool_use_of, tool_uses
from voicemem.context.formats import RequestFormat, request_body
from voicemem.transcript.messages import Message, ToolUse

SYSTEM = {"role": "system", "content": "Be brief."}


@cache
def message_type() -> TypeAdapter[Any]:
    """The type of a list of messages; only the process that runs these tests imports the package."""
    from openai.types.chat import ChatCompletionMessageParam

    return TypeAdapter(list[ChatCompletionMessageParam])


@cache
def body_type() -> TypeAdapter[Any]:
    """The type of a whole body."""
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

    return TypeAdapter(CompletionCreateParamsNonStreaming)


def messages(memory: Sequence[Message], *tools: ToolUse, **options: Any) -> list[dict[str, Any]]:
    """The messages of a body with tools."""
    made: list[dict[str, Any]] = request_body(memory, tools, RequestFormat(tools=True, **options))["messages"]
    return made


@given(memories, tool_uses)
def test_messages_are_openais(memory: Sequence[Message], tools: Sequence[ToolUse]) -> None:
    """OpenAI's types take whatever was said and called, alternating or not, for every vendor."""
    for vendor in (None, "custom"):
        for alternate in (False, True):
            exhausted(message_type().validate_python(messages(memory, *tools, vendor=vendor, alternate=alternate)))


def test_body_is_openais() -> None:
    """The whole body is one that OpenAI's package would send."""
    format = RequestFormat(model="gpt-4.1", params={"temperature": 0.2}, system_messages=(SYSTEM,), tools=True)
    body = request_body(SEED_CALL, [tool_use_of({"city": "Rome"}, turn_id=3)], format)
    exhausted(body_type().validate_python(body))
    assert [*body] == ["messages", "model", "temperature"]


def test_tool_use() -> None:
    """A call is an assistant message of its own, directly followed by its result."""
    call, result = messages([], tool_use_of({"city": "Rom"}, {"sky": "blau ☀"}))
    function = {"name": "weather", "arguments": '{"city": "Rom"}'}
    assert call["tool_calls"] == [{"id": "call_1", "type": "function", "function": function}]
    assert result == {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "blau ☀"}'}


def test_arguments_and_result_as_text_pass_as_they_are() -> None:
    """What the producer gave as text is not encoded twice."""
    call, result = messages([], tool_use_of('{"city":', "sunny"))
    assert (call["tool_calls"][0]["function"]["arguments"], result["content"]) == ('{"city":', "sunny")


def test_missing_arguments_are_an_empty_object() -> None:
    """A call without arguments is sent with `{}`."""
    assert json.loads(messages([], tool_use_of(None))[0]["tool_calls"][0]["function"]["arguments"]) == {}


def test_neighbours_stay_apart_without_alternate() -> None:
    """What is not asked for is not joined or framed."""
    assert [entry["role"] for entry in messages(SEED_CALL[-2:])] == ["assistant", "assistant"]


def test_alternate_frames_and_joins() -> None:
    """With alternate, the seed call starts and ends with the user, and its last two replies are one."""
    found = messages(SEED_CALL, alternate=True)
    assert [found[0]["content"], found[-1]["content"]] == ["(call started)", "(silence)"]
    assert found[-2]["content"] == f"{SEED_CALL[-2].content}\n{SEED_CALL[-1].content}"


def test_alternate_leaves_system_messages_first() -> None:
    """System messages take no part in the alternation."""
    found = messages([message_of("assistant", "Hi.")], system_messages=(SYSTEM,), alternate=True)
    assert [entry["role"] for entry in found] == ["system", "user", "assistant", "user"]


def test_system_messages_are_one() -> None:
    """The first one's role and the texts of all, unless they are asked for as they are; `custom` has them so too."""
    given = (SYSTEM, {"role": "developer", "content": "Rhyme."}, {"role": "system", "content": None})
    assert messages([], system_messages=given) == [{"role": "system", "content": "Be brief.\n\nRhyme."}]
    assert messages([], system_messages=given, system="separate") == [*given]
    assert messages([], system_messages=given, vendor="custom") == [*given]


def test_parts_of_system_messages_stay_parts() -> None:
    """They may say what is to be cached; messages of other roles stand behind, and a single one stays as it is."""
    part = {"type": "text", "text": "Rhyme.", "cache_control": {"type": "ephemeral"}}
    example, single = {"role": "user", "content": "Hi."}, {"role": "system", "content": "Be brief.", "name": "house"}
    joined = [{"type": "text", "text": "Be brief."}, part]
    found = messages([], system_messages=(example, SYSTEM, {"role": "system", "content": [part]}))
    assert found == [{"role": "system", "content": joined}, example]
    assert messages([], system_messages=(example, single)) == [single, example]


def test_alternate_calls_within_what_was_said() -> None:
    """With alternate, a call belongs to the assistant message before it, and its result stays directly after it."""
    found = messages([message_of("assistant", "Let me see.", timestamp=-1)], tool_use_of(), alternate=True)
    assert [(entry["role"], "tool_calls" in entry) for entry in found] == [
        ("user", False),
        ("assistant", True),
        ("tool", False),
    ]


@given(memories)
def test_alternate_alternates(memory: Sequence[Message]) -> None:
    """Without tools, roles strictly alternate from a user to a user."""
    roles = [entry["role"] for entry in messages(memory, alternate=True)]
    assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
    assert len(roles) % 2 or not roles
