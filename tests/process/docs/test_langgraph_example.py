"""The example of an agent on LangGraph runs offline, and so does the program of its page."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.client_sessions import client_to
from tests.support.callers.rest import RestClient
from tests.support.documentation import TEXTS, code_blocks
from tests.support.examples import output_of
from tests.support.paths import ROOT
from tests.support.services import Serve

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    pytest.importorskip("langchain", reason="LangChain is not installed")
    from tests.support.callers.scripted_chat_model import scripted

EXAMPLE = ROOT / "examples" / "langgraph.py"
PROGRAMS = list(code_blocks(TEXTS["langgraph.md"], "python"))


async def test_the_next_model_call_has_what_was_heard(tmp_path: Path) -> None:
    """After the barge-in, the model gets the forecast without its end, and the caller's words."""
    out = await output_of(EXAMPLE.stem, tmp_path, timeout_s=60.0)
    assert [line.strip() for line in out.splitlines()] == [
        "The model got:",
        "human: 'What is the weather in Oslo?'",
        "ai: 'In Oslo it rains '",
        "human: 'Until when?'",
    ]


def test_it_is_short() -> None:
    """An example is read in one go."""
    assert len(EXAMPLE.read_text().splitlines()) < 60


def test_the_programs_of_the_page_are_programs() -> None:
    """They can be compiled; what they need of a voice is not here."""
    for program in PROGRAMS:
        ast.parse(program)


@pytest.mark.filterwarnings("default")  # the framework's own are not ours
async def test_the_first_program_speaks_and_is_cut(serve: Serve) -> None:
    """Each token goes to the voice, and the player names the reply that was cut."""
    app = await serve()
    spoken: list[str] = []

    async def speak(word: str, item: str | None) -> None:
        spoken.append(word)

    names: dict[str, Any] = {}
    exec(next(program for program in PROGRAMS if "async def call" in program), names)
    async with client_to(app) as client:
        await names["call"](client, scripted("In Oslo it rains until the evening."), "call-1", speak)
    assert "".join(spoken).strip() == "In Oslo it rains until the evening."
    messages = await RestClient(app).contents("call-1")
    assert [one["content"] for one in messages] == ["What is the weather in Oslo?", "In Oslo it "]
