"""The example of a Pipecat bot runs offline, and shows what the LLM got."""

from __future__ import annotations

import ast
import asyncio
import sys
from pathlib import Path

from tests.support.documentation import TEXTS, code_blocks
from tests.support.needs import needs_module
from tests.support.paths import ROOT
from tests.support.processes.ports import free_ports
from tests.support.processes.service_process import running_process

needs_module("pipecat", "pipecat")
EXAMPLE = ROOT / "examples" / "pipecat_bot.py"
END_S = 90.0


async def test_the_next_request_has_what_was_heard(tmp_path: Path) -> None:
    """After the barge-in, the LLM gets the reply without its end, and the caller's words."""
    rest, ingest = free_ports(2)
    async with running_process(tmp_path / "calls.db", rest=rest, ingest=ingest):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "examples.pipecat_bot", f"ws://127.0.0.1:{ingest}", f"http://127.0.0.1:{rest}"),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await asyncio.wait_for(process.communicate(), END_S)
    assert process.returncode == 0, errors.decode()
    requests = [block.split("\n") for block in out.decode().split("The LLM got:\n")[1:]]
    assert len(requests) == 2
    system, asked, heard, thanked, *_ = [line.strip() for line in requests[1]]
    assert (system, asked) == ("system: 'You are a friendly clerk.'", "user: 'Where is my cab?'")
    assert heard.startswith("assistant: 'A cab will ")
    assert "traffic" not in heard
    assert thanked == "user: 'Thank you!'"


def test_it_is_short() -> None:
    """An example is read in one go."""
    assert len(EXAMPLE.read_text().splitlines()) < 60


def test_the_programs_of_the_page_are_programs() -> None:
    """They can be compiled; what they need of a pipeline is not here."""
    for program in code_blocks(TEXTS["pipecat.md"], "python"):
        ast.parse(program)
