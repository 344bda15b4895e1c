"""The example of a Pipecat bot runs offline, and shows what the LLM got."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.documentation import TEXTS, code_blocks
from tests.support.examples import output_of
from tests.support.needs import needs_module
from tests.support.paths import ROOT

needs_module("pipecat", "pipecat")
EXAMPLE = ROOT / "examples" / "pipecat_bot.py"


async def test_the_next_request_has_what_was_heard(tmp_path: Path) -> None:
    """After the barge-in, the LLM gets the reply without its end, and the caller's words; these later too."""
    out = await output_of(EXAMPLE.stem, tmp_path)
    requests = [block.split("\n") for block in out.split("The LLM got:\n")[1:]]
    assert len(requests) == 3
    system, asked, heard, thanked, *_ = [line.strip() for line in requests[1]]
    assert (system, asked) == ("system: 'You are a friendly clerk.'", "user: 'Where is my cab?'")
    assert heard.startswith("assistant: 'A cab will ")
    assert "traffic" not in heard
    assert thanked == "user: 'Thank you!'"
    system, said, *_ = [line.strip() for line in requests[2]]
    assert system.startswith("system: 'You are a friendly clerk.\\n\\nFrom an earlier call")
    assert "user: Where is my cab?" in system
    assert said == "user: 'The cab was late.'"


def test_it_is_short() -> None:
    """An example is read in one go."""
    assert len(EXAMPLE.read_text().splitlines()) < 60


def test_the_programs_of_the_page_are_programs() -> None:
    """They can be compiled; what they need of a pipeline is not here."""
    for program in code_blocks(TEXTS["pipecat.md"], "python"):
        ast.parse(program)
