"""The example of an engine of Agora's kind runs offline, and shows what its LLM got."""

from __future__ import annotations

from pathlib import Path

from tests.support.examples import output_of
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "agora_engine.py"


async def test_the_next_request_has_what_was_heard(tmp_path: Path) -> None:
    """After the barge-in, the LLM gets the forecast as far as it was heard, and the caller's words."""
    out = await output_of(EXAMPLE.stem, tmp_path)
    assert [line.strip() for line in out.splitlines()] == [
        "The LLM got, in turn 1:",
        "user: 'What is the weather in Oslo?'",
        "The LLM got, in turn 2:",
        "user: 'What is the weather in Oslo?'",
        "assistant: 'In Oslo it rains '",
        "user: 'Until when?'",
    ]


def test_it_is_short() -> None:
    """An example is read in one go."""
    assert len(EXAMPLE.read_text().splitlines()) < 60
