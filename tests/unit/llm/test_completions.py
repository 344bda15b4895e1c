"""Chat completions, as the gateway reads and writes them."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat._completions import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from tests.support.rows import every_row
from voicemem.errors import LlmFailed, Refused
from voicemem.gateway.chat_request import build_llm_request, read_request, text_chunks, text_completion
from voicemem.llm.background import read_completion
from voicemem.llm.completions import MAX_NAME_CHARACTERS, MAX_TOOL_CALLS, LlmAnswer, content_text
from voicemem.llm.endpoints import LlmEndpoint

TEXTS = st.text(max_size=8)
HEAD = {"id": "id", "object": "chat.completion", "created": 1, "model": "m"}
CALLS = st.lists(st.tuples(st.text(min_size=1, max_size=5), st.lists(TEXTS, max_size=4)), max_size=4)


def chunk(delta: Any, **more: Any) -> bytes:
    return json.dumps({"id": "c", "choices": [{"index": 0, "delta": delta, **more}]}).encode()


@given(st.lists(TEXTS, max_size=10))
def test_chunks_make_the_text(texts: list[str]) -> None:
    """Every chunk adds its text, whatever is in it; the sum is the reply."""
    answer = LlmAnswer()
    assert texts == [answer.add_chunk(chunk({"content": text})) for text in texts]
    assert "".join(texts) == "".join(answer.text)


@given(CALLS, st.randoms(use_true_random=False))
def test_fragments_make_the_calls(calls: list[tuple[str, list[str]]], random: Any) -> None:
    """Fragments of several calls may come mixed: each belongs to the call of its index, in its order."""
    waiting = []
    for index, (name, pieces) in enumerate(calls):
        begin = {"index": index, "id": f"call_{index}", "function": {"name": name, "arguments": ""}}
        waiting.append([begin, *({"index": index, "function": {"arguments": piece}} for piece in pieces)])
    answer = LlmAnswer()
    while any(waiting):
        answer.add_chunk(chunk({"tool_calls": [random.choice([one for one in waiting if one]).pop(0)]}))
    found = {call.id: (call.name, call.arguments) for call in answer.tool_calls}
    assert {f"call_{index}": (name, "".join(pieces)) for index, (name, pieces) in enumerate(calls)} == found


@given(CALLS)
def test_calls_without_index_come_one_after_the_other(calls: list[tuple[str, list[str]]]) -> None:
    """Servers that count nothing give each call an id: what has none goes on with the last."""
    answer = LlmAnswer()
    for number, (name, pieces) in enumerate(calls):
        answer.add_chunk(chunk({"tool_calls": [{"id": f"call_{number}", "function": {"name": name}}]}))
        for piece in pieces:
            answer.add_chunk(chunk({"tool_calls": [{"function": {"arguments": piece}}]}))
    assert [(name, "".join(pieces)) for name, pieces in calls] == [
        (call.name, call.arguments) for call in answer.tool_calls
    ]


def part(index: int | None, **function: str) -> bytes:
    return chunk({"tool_calls": [{"index": index, "id": f"call_{index}", "function": function}]})


TOO_LONG: dict[str, list[bytes]] = {
    "tool calls in one chunk": [
        chunk({"tool_calls": [{"index": index} for index in range(MAX_TOOL_CALLS)]}),
        part(MAX_TOOL_CALLS),
    ],
    "tool calls without index": [
        *(chunk({"tool_calls": [{"id": str(number)}]}) for number in range(MAX_TOOL_CALLS)),
        chunk({"tool_calls": [{"id": "one more"}]}),
    ],
    "a name that grows": [part(0, name="x" * 500), part(0, name="x" * (MAX_NAME_CHARACTERS - 500))],
    "arguments": [part(0, arguments="x" * 200_000), part(1, arguments="x" * 100_000)],
    "text and arguments": [chunk({"content": "x" * 200_000}), part(1, arguments="x" * 100_000)],
    "values": [b'{"choices":[' + b"{}," * 70_000 + b"{}]}"],
}


@every_row("chunks", TOO_LONG.values(), ids=TOO_LONG)
def test_an_answer_has_bounds(chunks: list[bytes]) -> None:
    """Everything but the last chunk is taken; that one is more than an answer may have."""
    answer = LlmAnswer()
    for data in chunks[:-1]:
        answer.add_chunk(data)
    with pytest.raises(LlmFailed, match="too_long"):
        answer.add_chunk(chunks[-1])


def test_what_adds_nothing_takes_nothing() -> None:
    """A stream of chunks without text or calls leaves nothing behind."""
    answer = LlmAnswer()
    for _ in range(100):
        answer.add_chunk(chunk({}))
    assert (answer.text, answer.tool_calls, answer.size) == ([], [], 0)


def test_only_the_first_choice_is_the_reply() -> None:
    """With several choices the others go by."""
    answer = LlmAnswer()
    choices = [{"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "yes"}}]
    assert "yes" == answer.add_chunk(json.dumps({"choices": choices}).encode())
    assert answer.finish_reason is None


@given(st.binary(max_size=40) | st.recursive(st.none() | st.integers() | TEXTS, st.lists, max_leaves=5).map(json.dumps))
def test_garbage_is_garbage(data: bytes | str) -> None:
    """What is no completion fails as such, and never otherwise."""
    with pytest.raises(LlmFailed) as failed:
        LlmAnswer().add_chunk(data if isinstance(data, bytes) else data.encode())
    assert "invalid_answer" == failed.value.why


@pytest.mark.parametrize(
    ("error", "why"),
    [
        ({"code": 503}, 503),
        ({"code": "429"}, 429),
        ({"code": "rate"}, "error"),
        ({"code": 7}, "error"),
        ("no", "error"),
    ],
)
def test_errors_in_an_answer(error: Any, why: int | str) -> None:
    """A status that stands in it is the code; its texts are not told."""
    with pytest.raises(LlmFailed) as failed:
        LlmAnswer().add_chunk(json.dumps({"error": error}).encode())
    assert why == failed.value.why


@given(TEXTS)
def test_what_the_gateway_says_can_be_read(text: str) -> None:
    """Its own chunks and completions are such as it takes."""
    streamed, whole = LlmAnswer(), LlmAnswer()
    for data in text_chunks(HEAD | {"object": "chat.completion.chunk"}, text):
        streamed.add_chunk(data)
    whole.add_chunk(text_completion(HEAD, text))
    assert (text, text) == ("".join(streamed.text), "".join(whole.text))
    assert ("stop", "stop", "id", "id") == (streamed.finish_reason, whole.finish_reason, streamed.id, whole.id)


def test_text_of_contents() -> None:
    """A text, or the text among parts, a line each."""
    parts = [{"type": "text", "text": "a"}, {"type": "thinking", "text": "no"}, "b", {"type": "text"}]
    assert ("x", "a", "", "") == (content_text("x"), content_text(parts), content_text(None), content_text(7))


def test_fields_are_named_where_they_are_wrong() -> None:
    """What is missing, and what has the wrong type, without the value."""
    for body, code in (({}, "missing_field"), ({"messages": "hush"}, "invalid_field")):
        with pytest.raises(Refused) as refused:
            read_request(body)
        assert code == refused.value.code
        assert "messages" in refused.value.detail
        assert "hush" not in refused.value.detail


@given(
    st.dictionaries(
        st.sampled_from(["messages", "turn_id", "timestamp", "interruptable", "n", "stream_options"]), st.none()
    )
)
def test_what_makes_the_body_is_never_replaced(fields: dict[str, None]) -> None:
    """Of a custom call four fields are ours, of any other the messages."""
    context = {"messages": [{"role": "user", "content": "Hi."}], "turn_id": 1, "timestamp": 2, "interruptable": True}
    chat_turn = read_request({**fields, "messages": []})
    body = build_llm_request(context, chat_turn, None, custom=True)
    assert context == {name: body[name] for name in context}
    assert ("n" in fields, False) == ("n" in body, "stream_options" in body)


@every_row(
    ("url", "endpoint"),
    [
        ("https://a.example", "https://a.example/chat/completions"),
        ("https://a.example/v1/", "https://a.example/v1/chat/completions"),
        ("https://a.example/v1/chat/completions", "https://a.example/v1/chat/completions"),
        ("https://a.example/v1/chat/completions/", "https://a.example/v1/chat/completions"),
        ("https://a.example/x/chat/completions?v=1", "https://a.example/x/chat/completions?v=1"),
        ("https://a.example/x?v=a/chat/completions", "https://a.example/x/chat/completions?v=a/chat/completions"),
    ],
)
def test_where_a_completion_is_asked_for(url: str, endpoint: str) -> None:
    """The path decides whether a URL is whole."""
    assert endpoint == LlmEndpoint(url).request_url


@every_row(
    ("messages", "said"),
    [
        ([{"role": "user", "content": "Hi."}, {"role": "narrator", "content": "x"}], "`messages[1].role`"),
        (
            [{"role": "User", "content": "Hi."}],
            "must be one of system, developer, user, assistant, tool, function: `messages[0].role`",
        ),
        ([{"role": "user", "content": ""}], "has no text"),
        ([{"role": "user", "content": " \n"}], "has no text"),
        ([{"role": "user"}], "has no text"),
        ([{"role": "user", "content": []}], "has no text"),
        (
            [{"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "`messages[1].content`",
        ),
    ],
)
def test_what_cannot_be_taken_is_refused(messages: Any, said: str) -> None:
    """A role that no one has, and a last message of the user's without any text; the sentence names the place."""
    with pytest.raises(Refused) as refused:
        read_request({"messages": messages})
    assert ("invalid_field", True) == (refused.value.code, said in refused.value.detail)


@every_row("role", ["system", "developer", "user", "assistant", "tool", "function"])
def test_every_role_of_openai_is_taken(role: str) -> None:
    """Before the last message, whatever their content is."""
    asked = read_request({"messages": [{"role": role}, {"role": "user", "content": "Hi."}]}).messages
    assert [role, "user"] == [message.role for message in asked]


@pytest.mark.parametrize("delta", [{}, {"content": ""}, {"content": None, "refusal": None}, {"reasoning_content": "x"}])
def test_an_answer_may_be_empty(delta: Any) -> None:
    """Nothing was said, and no tool called; what is passed on without being kept is something."""
    answer = LlmAnswer()
    answer.add_chunk(chunk(delta, finish_reason="stop"))
    assert answer.is_empty
    for more in ({"content": " "}, {"tool_calls": [{"id": "c"}]}, {"refusal": "No."}, {"audio": {"id": "a"}}):
        full = LlmAnswer()
        full.add_chunk(chunk(delta | more))
        assert not full.is_empty


A, B = '{"city":"Bonn"}', '{"zone":"CET"}'


def fragment(id: Any = None, name: str | None = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """A fragment of a tool call, with an index only where one is given."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {"function": function} | ({} if id is None else {"id": id}) | more


@every_row(
    "chunks",
    [
        [[fragment("a", "weather", A, index=0)], [fragment("b", "clock", B, index=0)]],
        [
            [fragment("a", "weather", A[:5], index=0)],
            [fragment(arguments=A[5:], index=0)],
            [fragment("b", "clock", B, index=0)],
        ],
        [
            [fragment("a", "weather", A[:5], index=0)],
            [fragment("a", "weather", A[5:], index=0)],
            [fragment("b", "clock", B)],
        ],
        [[fragment("a", "weather", {"city": "Bonn"}, index=1)], [fragment("b", "clock", B, index=7)]],
        [[fragment(None, "weather", A, index=0)], [fragment(None, "clock", B, index=1)]],
        [[fragment(5, "weather", A, index=None), fragment(6, "clock", B, index=None)]],
        [[fragment(None, "weather", A), fragment(None, "clock", B)]],
        [[fragment(None, "weather", A)], [fragment(None, "clock", B[:4])], [fragment(None, None, B[4:])]],
        [
            [fragment("", "weather", A[:4], index=0), fragment("", "clock", "", index=1)],
            [fragment(None, None, A[4:], index=0), fragment("", "", B, index=1)],
        ],
        [[fragment("c", "weather", A, index=0)], [fragment("c", "clock", B, index=0)]],
        [[fragment("c", "weather", A, index=0)], [fragment("c", "clock", B, index=1)]],
        [[fragment("known", "weather", A, index=0), fragment("b", "clock", B, index=1)]],
        [
            [fragment("a", "weather", "")],
            [fragment("b", "clock", "")],
            [fragment("a", None, A)],
            [fragment("b", None, B)],
        ],
        [
            [fragment("a", "wea", None, index="0")],
            [fragment(None, "ther", A, index="0")],
            [fragment("b", "clock", B, index="1")],
        ],
        [
            [fragment("a", "weather", A, index=0.0), fragment("b", "clock", B, index=1.0)],
            [fragment("b", "clock", B, index=1)],
        ],
        [
            [{"index": 0, "id": None, "type": None, "function": None}],
            [fragment("a", "weather", A, index=0)],
            [fragment("b", "clock", B, index=1)],
        ],
    ],
)
def test_tool_calls_of_many_servers(chunks: list[Any]) -> None:
    """Each call is one, whatever index, id and name its fragments have; a client gets them as OpenAI sends them."""
    names = iter(("x", "y"))
    answer, calls = LlmAnswer(lambda: next(names), {"known"}), dict[int, list[str]]()
    stream = ChatCompletionStreamState()
    for parts in chunks:
        data = json.dumps({"id": 7, "choices": [{"index": None, "delta": {"tool_calls": parts}}]}).encode()
        answer.add_chunk(data)
        shown = json.loads(answer.well_formed(data))
        shown["choices"][0]["index"] = 0
        list(
            stream.handle_chunk(
                ChatCompletionChunk.model_validate(
                    {"object": "chat.completion.chunk", "created": 1, "model": "m", **shown, "id": "c"}
                )
            )
        )
        for one in shown["choices"][0]["delta"]["tool_calls"]:
            call = calls.setdefault(one["index"], ["", "", ""])
            call[0] += one.get("id") or ""
            call[1] += one["function"].get("name") or ""
            call[2] += one["function"].get("arguments") or ""
    assert [("weather", A), ("clock", B)] == [(call.name, call.arguments) for call in answer.tool_calls]
    assert [[call.id, call.name, call.arguments] for call in answer.tool_calls] == list(calls.values())
    assert 2 == len({call.id for call in answer.tool_calls} - {"", "known"})
    joined = stream.current_completion_snapshot.choices[0].message.tool_calls or ()
    assert [[call.id, call.function.name, call.function.arguments] for call in joined] == list(calls.values())


def test_a_character_in_two_chunks_is_one() -> None:
    """A server that cuts its text between the halves of a character does not end the answer; clients get it whole."""
    answer, sent = LlmAnswer(), list[str]()
    for half in ("Hi \\ud83d", "\\ude00!", "\\ud83d"):
        data = b'{"choices":[{"delta":{"content":"%s"}}]}' % half.encode()
        answer.add_chunk(data)
        sent.append(json.loads(answer.well_formed(data))["choices"][0]["delta"]["content"])
    assert "Hi \U0001f600!" == "".join(answer.text)
    assert ["Hi ", "\U0001f600!", ""] == sent


@pytest.mark.parametrize("is_stream", [True, False])
def test_halves_of_characters_are_read_and_sent_as_replaced(is_stream: bool) -> None:
    """Wherever a server has cut a character, what is kept and passed on is text."""
    answer = LlmAnswer(lambda: "new", is_stream=is_stream)
    call = {"id": "\ud800", "function": {"name": "f\udc00", "arguments": '{"a":"\udfff"}', "\ud801": "\ud800"}}
    message = {"content": "a\ud800b", "reasoning_content": ["\udbff"], "tool_calls": [call]}
    name = "delta" if is_stream else "message"
    data = json.dumps({"id": "\ud800", "model": "m", "choices": [{name: message}]}).encode()
    assert "a\ufffdb" == answer.add_chunk(data)
    assert [("f\ufffd", '{"a":"\ufffd"}')] == [(one.name, one.arguments) for one in answer.tool_calls]
    assert "\ufffd" == answer.id
    json.dumps(answer.wanted_back(answer.tool_calls[0]), ensure_ascii=False).encode()
    sent = json.loads(answer.well_formed(data))["choices"][0][name]
    assert ("a\ufffdb", "f\ufffd") == (sent["content"], sent["tool_calls"][0]["function"]["name"])


@pytest.mark.parametrize("fields", [{}, {"choices": None}, {"choices": [{"index": 0, "delta": None}]}])
def test_chunks_of_nothing_are_read_by_openais_helper(fields: dict[str, Any]) -> None:
    """Null instead of choices or of what one adds is an empty list or object to a client."""
    answer, stream = LlmAnswer(), ChatCompletionStreamState()
    head = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    for more in (fields, {"choices": [{"index": 0, "delta": {"content": "Hi."}, "finish_reason": None}]}, fields):
        data = json.dumps(head | more).encode()
        answer.add_chunk(data)
        stream.handle_chunk(ChatCompletionChunk.construct(**json.loads(answer.well_formed(data))))
    assert "Hi." == "".join(answer.text) == stream.current_completion_snapshot.choices[0].message.content


def test_what_came_with_a_tool_call_is_kept() -> None:
    """Fields of the message are joined over its chunks; beyond a size none is kept."""
    answer = LlmAnswer()
    for text in ("I need ", "a tool."):
        answer.add_chunk(json.dumps({"choices": [{"delta": {"reasoning_content": text}}]}).encode())
    call = fragment("a", "weather", A, index=0, extra_content={"google": {"thought_signature": "c2ln"}})
    answer.add_chunk(json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}).encode())
    assert {
        "message": {"reasoning_content": "I need a tool."},
        "call": {"extra_content": {"google": {"thought_signature": "c2ln"}}},
    } == answer.wanted_back(answer.tool_calls[0])
    answer.add_chunk(json.dumps({"choices": [{"delta": {"reasoning_content": "x" * 70_000}}]}).encode())
    assert {} == answer.wanted_back(answer.tool_calls[0])


THOUGHTS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "OpenRouter": (
        [
            {"reasoning": "I ", "reasoning_details": [{"type": "reasoning.text", "text": "I ", "index": 0}]},
            {"reasoning": "see", "reasoning_details": [{"type": "reasoning.text", "text": "see", "index": 0}]},
            {"reasoning_details": [{"type": "reasoning.text", "signature": "s", "index": 0, "format": "a"}]},
            {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "id": "r", "index": 1}]},
        ],
        {
            "reasoning": "I see",
            "reasoning_details": [
                {"type": "reasoning.text", "text": "I see", "index": 0, "signature": "s", "format": "a"},
                {"type": "reasoning.encrypted", "data": "x", "id": "r", "index": 1},
            ],
        },
    ),
    "blocks of Claude's": (
        [
            {"thinking_blocks": [{"type": "thinking", "thinking": "I ", "signature": ""}]},
            {"thinking_blocks": [{"type": "thinking", "thinking": "see", "signature": None}]},
            {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "s"}]},
            {"thinking_blocks": [{"type": "thinking", "thinking": "Two"}, {"type": "redacted_thinking", "data": "x"}]},
        ],
        {
            "thinking_blocks": [
                {"type": "thinking", "thinking": "I see", "signature": "s"},
                {"type": "thinking", "thinking": "Two"},
                {"type": "redacted_thinking", "data": "x"},
            ]
        },
    ),
    "DeepSeek, Kimi, Qwen": (
        [
            {"role": "assistant", "content": None, "reasoning_content": ""},
            {"content": None, "reasoning_content": "I "},
            {"content": "", "reasoning_content": "see"},
            {"content": "Yes.", "reasoning_content": None},
        ],
        {"reasoning_content": "I see"},
    ),
    "nothing": ([{"content": "", "refusal": None, "annotations": [], "audio": None, "reasoning": ""}], {}),
}


@every_row(("deltas", "kept"), THOUGHTS.values(), ids=THOUGHTS)
def test_thoughts_are_kept_as_if_they_had_come_whole(deltas: list[Any], kept: dict[str, Any]) -> None:
    """Fragments of a text or of a block are joined; a signature ends a block."""
    answer = LlmAnswer()
    for delta in (*deltas, {"tool_calls": [fragment("a", "weather", A, index=0)]}):
        answer.add_chunk(chunk(delta))
    assert kept == answer.wanted_back(answer.tool_calls[0]).get("message", {})


@every_row(
    "extra",
    [
        {"extra_content": {"google": {"thought_signature": "s"}}},
        {"thought_signature": "s"},
        {"provider_specific_fields": {"thought_signature": "s"}, "function": {"thought_signature": "t"}},
    ],
)
def test_further_fields_of_a_call_are_kept_and_passed_on(extra: dict[str, Any]) -> None:
    """Whichever they are, beside the call or in its function, also where its fragments have to be mended."""
    for index in (0, None):
        answer, call = LlmAnswer(), fragment("a", "weather", A[:4], index=index)
        data = chunk({"tool_calls": [extra | call | {"function": extra.get("function", {}) | call["function"]}]})
        answer.add_chunk(data)
        shown = json.loads(answer.well_formed(data))["choices"][0]["delta"]["tool_calls"][0]
        assert extra.get("function", {}).items() <= shown["function"].items()
        assert {name: value for name, value in extra.items() if name != "function"}.items() <= shown.items()
        answer.add_chunk(chunk({"tool_calls": [fragment(None, None, A[4:], index=index)]}))
        assert {"call": extra} == answer.wanted_back(answer.tool_calls[0])


def test_parts_of_a_content_are_shown_as_text() -> None:
    """OpenAI's clients join texts; a part that thinks is none."""
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "Hi."}]
    answer, data = LlmAnswer(), chunk({"content": parts})
    assert "Hi." == answer.add_chunk(data)
    assert "Hi." == json.loads(answer.well_formed(data))["choices"][0]["delta"]["content"]


@every_row(
    ("text", "answer"),
    [
        ("Ann wants a table.", "Ann wants a table."),
        ("<think>\nHm. {no}\n</think>\n\nAnn.", "Ann."),
        ("<think>One.</think><Thinking>Two.</Thinking> Ann.", "Ann."),
        ("Hm.\n</think>\nAnn.", "Ann."),
        ("<think>Let me see", ""),
        ("<think >Let me see", ""),
        ("[THINK]Hm.[/THINK]Ann.", "Ann."),
        ("◁think▷Hm.◁/think▷Ann.", "Ann."),
        ("<seed:think>Hm.</seed:think>\nAnn.", "Ann."),
        ('<analysis type="a">Hm.</analysis>Ann.', "Ann."),
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Ann.<|return|>", "Ann."),
        ("<|channel|>analysis<|message|>Hm", ""),
        ("[reasons] Ann.", "[reasons] Ann."),
        ("\ufeffAnn.", "Ann."),
        ("She said <think> and </think> twice.", "She said <think> and </think> twice."),
        ("<think></think>" * 10_000 + "Ann.", "Ann."),
    ],
)
def test_what_an_llm_thinks_is_no_answer(text: str, answer: str) -> None:
    """Before the answer, with both tags or the closing one; an answer may be missing."""
    assert answer == read_completion(text_completion(HEAD, text)).text


@every_row(("reason", "why"), [("length", "cut_off"), ("content_filter", "filtered")])
def test_an_answer_that_is_not_whole_is_none(reason: str, why: str) -> None:
    """No summary and no memory is made of it."""
    data = text_completion(HEAD, "Ann wants").replace(b'"stop"', f'"{reason}"'.encode())
    with pytest.raises(LlmFailed) as failed:
        read_completion(data)
    assert why == failed.value.why
