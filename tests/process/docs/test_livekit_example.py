"""The example of a LiveKit agent runs offline, and shows what the LLM got."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.documentation import TEXTS, code_blocks
from tests.support.examples import output_of
from tests.support.needs import needs_module
from tests.support.paths import ROOT

needs_module("livekit.agents", "livekit")
EXAMPLE = ROOT / "examples" / "livekit_agent.py"


async def test_the_next_request_has_what_was_heard(tmp_path: Path) -> None:
    """After the barge-in, the LLM gets a joke without its end, and the caller's words; these on the next call too."""
    out = await output_of(EXAMPLE.stem, tmp_path)
    requests = [block.split("\n") for block in out.split("The LLM gets:\n")[1:]]
    assert len(requests) == 3
    system, asked, heard, stopped, *_ = [line.strip() for line in requests[1]]
    assert (system, asked) == ("system: 'You are funny.'", "user: 'Tell me a joke'")
    assert heard.startswith("assistant: 'Why did the scarecrow win an award? ")
    assert "field" not in heard
    assert stopped == "user: 'Stop that please'"
    system, asked, *_ = [line.strip() for line in requests[2]]
    assert system.startswith("system: 'You are funny.\\n\\nFrom an earlier call")
    assert "user: Tell me a joke" in system
    assert asked == "user: 'Another joke please'"


def test_it_is_short() -> None:
    """An example is read in one go."""
    assert len(EXAMPLE.read_text().splitlines()) < 60


def test_the_programs_of_the_page_are_programs() -> None:
    """They can be compiled; what they need of a room is not here."""
    for program in code_blocks(TEXTS["livekit.md"], "python"):
        ast.parse(program)
