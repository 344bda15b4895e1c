"""The examples of a tee run offline, and show what the next request to the model got; the page's programs compile."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.documentation import TEXTS, code_blocks
from tests.support.examples import output_of
from tests.support.paths import ROOT

ASKED = "What is the weather in Oslo?"


async def test_the_next_response_has_what_was_heard(tmp_path: Path) -> None:
    """OpenAI Realtime: after the barge-in, the instructions have the forecast as far as it was played."""
    out = await output_of("openai_realtime", tmp_path)
    assert [line for line in out.splitlines() if line][1:] == [
        "You are on the phone.",
        f"user: {ASKED}",
        "assistant: In Oslo it rains ",
        "user: Until when?",
    ]


async def test_the_next_prompt_has_what_was_heard(tmp_path: Path) -> None:
    """ConversationRelay: after the barge-in, the LLM gets the words that Twilio has spoken."""
    out = await output_of("conversation_relay", tmp_path)
    requests = [block.split("\n") for block in out.split("The LLM got:\n")[1:]]
    assert [[line.strip() for line in request if line] for request in requests] == [
        [f"user: {ASKED!r}"],
        [f"user: {ASKED!r}", "assistant: 'In Oslo it rains'", "user: 'Until when?'"],
    ]


@pytest.mark.parametrize("name", ["openai_realtime", "conversation_relay"])
def test_they_are_short(name: str) -> None:
    """An example is read in one go."""
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) < 60


def test_the_programs_of_the_page_are_programs() -> None:
    """They can be compiled; what they need of a vendor is not here."""
    programs = code_blocks(TEXTS["tee.md"], "python")
    assert programs
    for program in programs:
        ast.parse(program)
