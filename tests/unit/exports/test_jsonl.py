"""JSON lines: exactly what the memory has."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json

from hypothesis import given

from tests.support.samples.exported_calls import EVENTS, START, TEXTS, call_after, said
from tests.support.transcripts import messages_after
from voicemem.exports.jsonl import jsonl


def test_the_call_comes_first_and_then_all_that_happened_in_order() -> None:
    """Messages are those of the history, with the time in which they could be heard."""
    lines = [json.loads(line) for line in jsonl(call_after(*EVENTS, user_id="ann", name="desk")).splitlines()]
    assert ["call", "message", "message", "tool_call", "message"] == [line["type"] for line in lines]
    assert {"session_id": "call-1", "user_id": "ann", "name": "desk", "summary": None}.items() <= lines[0].items()
    messages = [line for line in lines if line["type"] == "message"]
    assert all(known.items() <= line.items() for known, line in zip(messages_after(*EVENTS), messages, strict=True))
    assert (START + 2_000, START + 5_000) == (messages[1]["start_at"], messages[1]["end_at"])
    assert ({"nut": "walnut"}, ["none"]) == (lines[3]["arguments"], lines[3]["result"])


@given(TEXTS)
def test_texts_are_as_they_were_said(text: str) -> None:
    """Nothing is taken out or changed."""
    call = said(text)
    lines = jsonl(call).split("\n")
    assert [one.heard for one in call.utterances] == [json.loads(line)["content"] for line in lines[1:-1]]
