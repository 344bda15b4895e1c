"""The example of a live call of Google's ADK runs offline, and shows what was heard."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.documentation import TEXTS, code_blocks
from tests.support.examples import output_of
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "google_adk.py"
IS_ABSENT = find_spec("google") is None or find_spec("google.adk") is None


@pytest.mark.skipif(IS_ABSENT, reason="it runs in an environment of its own (make packaging)")
async def test_the_memory_has_what_was_heard(tmp_path: Path) -> None:
    """The forecast ends where the player was."""
    out = await output_of(EXAMPLE.stem, tmp_path, timeout_s=60.0)
    assert out.splitlines() == [
        "user: 'What is the weather in Oslo?'",
        "assistant: 'In Oslo it rains '",
        "user: 'Until when?'",
    ]


def test_it_is_short() -> None:
    """An example is read in one go."""
    assert len(EXAMPLE.read_text().splitlines()) < 100


def test_the_programs_of_the_page_are_programs() -> None:
    """They can be compiled; what they need of a model is not here."""
    for program in code_blocks(TEXTS["google-adk.md"], "python"):
        ast.parse(program)
