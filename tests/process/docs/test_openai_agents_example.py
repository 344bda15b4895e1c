"""The example of an agent of the OpenAI Agents SDK runs offline, and shows what the model got."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.documentation import TEXTS, code_blocks
from tests.support.examples import output_of
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "openai_agents.py"


@pytest.mark.skipif(find_spec("agents") is None, reason="it runs in an environment of its own (make packaging)")
async def test_the_next_run_has_what_was_heard(tmp_path: Path) -> None:
    """After the barge-in, the model gets the forecast without its end, and the caller's words."""
    out = await output_of(EXAMPLE.stem, tmp_path, timeout_s=60.0)
    assert [line.strip() for line in out.splitlines()] == [
        "The model got:",
        "user: 'What is the weather in Oslo?'",
        "assistant: 'In Oslo it rains '",
        "user: 'Until when?'",
    ]


def test_it_is_short() -> None:
    """An example is read in one go."""
    assert len(EXAMPLE.read_text().splitlines()) < 60


def test_the_programs_of_the_page_are_programs() -> None:
    """They can be compiled; what they need of a model is not here."""
    for program in code_blocks(TEXTS["openai-agents.md"], "python"):
        ast.parse(program)
