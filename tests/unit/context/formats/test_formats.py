"""The request body as a whole: what bounds it, what it is made of, and who has the last word."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given

from tests.support.rows import every_row
from tests.support.samples.formats import SEED_CALL, formats, memories, message_of, tool_use_of, tool_uses
from voicemem.context.formats import RequestFormat, request_body
from voicemem.errors import Refused
from voicemem.transcript.messages import Message, ToolUse


@given(memories, tool_uses, formats)
def test_any_input_gives_json(memory: Sequence[Message], tools: Sequence[ToolUse], format: RequestFormat) -> None:
    """Whatever was said and called, every format gives a body that can be written."""
    assert json.dumps(request_body(memory, tools, format))


@given(memories, tool_uses, formats)
def test_input_is_left_alone(memory: Sequence[Message], tools: Sequence[ToolUse], format: RequestFormat) -> None:
    """Making a body changes neither the memory nor the format."""
    before = repr((memory, tools, format))
    request_body(memory, tools, format)
    assert repr((memory, tools, format)) == before


def test_system_messages_come_first_as_they_are() -> None:
    """System messages stand before the memory, also with fields and parts that are not ours."""
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}], "name": "boss"}
    body = request_body([message_of("user", "Hi.")], [], RequestFormat(system_messages=(system,)))
    assert body == {"messages": [system, {"role": "user", "content": "Hi."}]}


@pytest.mark.parametrize(("model", "params", "expected"), [("a", {"model": "b"}, "a"), (None, {"model": "b"}, "b")])
def test_model_comes_from_the_configuration_then_from_params(model: str, params: dict[str, str], expected: str) -> None:
    """The configured model goes before the one in params."""
    assert request_body([], [], RequestFormat(model=model, params=params))["model"] == expected


def test_unknown_model_is_left_out() -> None:
    """A model that no one named is not in the body, not even as null."""
    assert request_body([], [], RequestFormat(params={"model": None})) == {"messages": []}


def test_params_stand_last_and_replace_nothing() -> None:
    """Params come after what is made here, in their order, and lose every conflict."""
    params = {"top_p": 0.5, "messages": ["forged"], "model": "b", "stop": ["x"]}
    body = request_body([], [], RequestFormat(model="a", params=params))
    assert list(body.items()) == [("messages", []), ("model", "a"), ("top_p", 0.5), ("stop", ["x"])]


def test_what_was_left_out_is_not_enriched() -> None:
    """Of a reply that is no longer shown, no note is made."""
    body = request_body(SEED_CALL[3:], [], RequestFormat(enrich=("originals",)))
    assert body["messages"][0]["content"] == SEED_CALL[3].content


def test_unknown_enricher_is_refused_even_without_messages() -> None:
    """A misspelt enricher is noticed at the first request, with the names that would do."""
    with pytest.raises(Refused, match="timestamps, users, originals") as caught:
        request_body([], [], RequestFormat(enrich=("users", "time")))
    assert caught.value.code == "invalid_query"


def test_tools_are_shown_only_when_asked_for() -> None:
    """Tool calls are no chat messages unless the reader asks."""
    assert request_body([], [tool_use_of()], RequestFormat()) == {"messages": []}
    assert len(request_body([], [tool_use_of()], RequestFormat(tools=True))["messages"]) == 2


@every_row("style", ["openai", "anthropic", "gemini"])
@every_row("vendor", [None, "custom"])
def test_vendor_alone_decides_about_fields(style: str, vendor: str | None) -> None:
    """In every style a custom LLM is told where the call stands, and no other vendor is."""
    body = request_body(SEED_CALL[:2], [], msgspec.convert({"style": style, "vendor": vendor}, RequestFormat))
    entry = body["contents" if style == "gemini" else "messages"][-1]
    assert ("turn_id" in body) == ("metadata" in entry) == (vendor == "custom")
