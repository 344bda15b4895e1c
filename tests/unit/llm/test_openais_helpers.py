"""Chunks of many servers, as OpenAI's own helpers read what the gateway makes of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._models import construct_type
from openai.lib.streaming.chat._completions import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from voicemem.llm.completions import CHUNK, WHOLE, LlmAnswer

HEAD = {"id": "item", "created": 1_790_000_000, "model": "m"}
LACKING = st.dictionaries(st.sampled_from(["id", "object", "created", "model", "usage", "error"]), st.none())
LEFT_OUT = st.lists(st.sampled_from(["id", "object", "created", "model", "index", "role", "finish_reason"]))
ODD_DELTAS: list[dict[str, Any]] = [
    {},
    {"role": "assistant"},
    {"role": None, "content": None},
    {"role": "assistant", "content": "", "tool_calls": []},
    {"content": "Hi ", "tool_calls": None, "function_call": None, "refusal": None},
    {"role": "assistant", "content": "there. "},
    {"content": [{"type": "text", "text": "Parts. "}]},
    {"reasoning_content": "Well", "content": None},
    {"thinking_blocks": [{"type": "thinking", "thinking": "Hm"}], "content": "And "},
    {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "x"}]},
    {
        "annotations": [
            {"type": "url_citation", "url_citation": {"url": "u", "title": "t", "start_index": 0, "end_index": 1}}
        ]
    },
    {"tool_calls": [{"id": "a", "function": {"name": "book", "arguments": "{}"}}]},
    {"tool_calls": [{"index": 0, "id": "b", "function": {"name": "book", "arguments": {"day": 5}}}], "content": None},
]
ODD_CHOICES = st.fixed_dictionaries(
    {"index": st.sampled_from([0, None, 0.0])},
    optional={"finish_reason": st.sampled_from([None, ""]), "logprobs": st.none(), "stop_reason": st.none()},
)


@st.composite
def chunks(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A stream of one server: what it leaves out, it leaves out everywhere."""
    left_out, lacking, kind = draw(LEFT_OUT), draw(LACKING), draw(st.sampled_from(["delta", "message", "both"]))
    made: list[dict[str, Any]] = []
    for delta in draw(st.lists(st.sampled_from(ODD_DELTAS), min_size=1, max_size=8)):
        choice: dict[str, Any] = draw(ODD_CHOICES)
        if draw(st.integers(0, 9)) == 0:
            choice["delta"] = None
        else:
            choice |= {"delta": delta} if kind == "delta" else {"message": delta}
            choice |= {"delta": delta} if kind == "both" else {}
        head = {"id": "c", "object": CHUNK, "created": 1, "model": "m"} | lacking
        made.append({name: value for name, value in head.items() if name not in left_out} | {"choices": [choice]})
        choice |= {} if "index" not in left_out else {"index": None}
        if draw(st.integers(0, 5)) == 0:
            made.append(
                draw(
                    st.sampled_from(
                        [
                            {"choices": []},
                            {"choices": None, "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}},
                            {},
                        ]
                    )
                )
            )
    return made


@given(chunks())
def test_a_stream_of_any_server_is_read(stream: list[dict[str, Any]]) -> None:
    """The helper's message has the text and the calls of the memory, the role once, and every field of OpenAI's."""
    answer, state = LlmAnswer(), ChatCompletionStreamState()
    for one in stream:
        data = json.dumps(one).encode()
        answer.add_chunk(data)
        shown = json.loads(answer.well_formed(data, lambda: HEAD | {"object": CHUNK}))
        assert all(choice.get("finish_reason") is None for choice in shown["choices"])
        ChatCompletionChunk.model_validate(shown)
        list(state.handle_chunk(construct_type(type_=ChatCompletionChunk, value=shown)))  # type: ignore[arg-type]
    final = state.get_final_completion()
    assert [str, int, str] == [type(one) for one in (final.id, final.created, final.model)]
    if answer.has_choice:
        message = final.choices[0].message
        assert "".join(answer.text) == (message.content or "")
        assert message.role == "assistant"
        calls = [(call.id, call.name, call.arguments) for call in answer.tool_calls]
        assert calls == [(one.id, one.function.name, one.function.arguments) for one in message.tool_calls or ()]


@given(st.sampled_from(ODD_DELTAS), ODD_CHOICES, LEFT_OUT, st.sampled_from(["delta", "message"]))
def test_a_whole_answer_of_any_server_is_read(
    message: dict[str, Any], choice: dict[str, Any], left_out: list[str], kind: str
) -> None:
    """A completion with everything that OpenAI's always has."""
    head = {"id": "c", "object": WHOLE, "created": 1, "model": "m"}
    body = {name: value for name, value in head.items() if name not in left_out}
    answer = LlmAnswer(is_stream=False)
    data = json.dumps(body | {"choices": [choice | {kind: message}]}).encode()
    answer.add_chunk(data)
    shown = json.loads(answer.well_formed(data, lambda: HEAD | {"object": WHOLE}))
    read = ChatCompletion.model_validate(shown)
    assert "".join(answer.text) == (read.choices[0].message.content or "")
    assert ("tool_calls" if answer.tool_calls else "stop") == read.choices[0].finish_reason


@pytest.mark.parametrize("reason", ["", None])
def test_thoughts_without_an_end_are_not_kept_back(reason: str | None) -> None:
    """A server whose chunks all have an empty reason to end has not ended; a chunk with thoughts says something."""
    answer = LlmAnswer()
    for delta in ({"role": "assistant"}, {"reasoning_content": "Well"}, {"reasoning_content": "…"}):
        answer.add_chunk(json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}).encode())
        assert not answer.only_finishes
    assert answer.finish_reason is None


def test_what_need_not_change_stays() -> None:
    """Of a chunk without an index, numbers beyond all floats and further fields are passed on as they came."""
    answer = LlmAnswer()
    data = b'{"id":"r","choices":[{"delta":{"content":"Hi","reasoning":1e400000}}],"x":[1e999, {"y":null}]}'
    answer.add_chunk(data)
    shown = answer.well_formed(data, lambda: HEAD | {"object": CHUNK})
    for kept in (b'"reasoning":1e400000', b'"x":[1e999, {"y":null}]', b'"index":0'):
        assert kept in shown
