"""docs/evidence.md shows what bench.heard measures."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import aiohttp

from tests.support.documentation import TEXTS, code_blocks
from tests.support.paths import ROOT
from tests.support.services import Serve
from voicemem.cli.truth import KINDS

PAGE = TEXTS["evidence.md"]


def test_the_tables_are_those_of_the_bench() -> None:
    """The same code gives the same figures everywhere; `python -m bench.heard --markdown` prints them."""
    command = [sys.executable, "-m", "bench.heard", "--markdown"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    tables = done.stdout.strip().split("\n\n")
    assert len(tables) == 2
    for table in tables:
        assert table in PAGE


async def test_the_program_for_played_ms_runs(serve: Serve) -> None:
    """Its events give the position in the reply; what was played of the first reply teaches the rate of the voice."""
    program: dict[str, Any] = {}
    exec(compile(code_blocks(PAGE, "python")[0], "evidence.md", "exec"), program)
    app = await serve()
    first, second = program["Played"]("r1"), program["Played"]("r2")
    texts = "Nine trams go there. Ask for the square. ", "Half past eleven. After that, only the night bus goes."
    events = [
        {"type": "asr", "turn_id": 1, "text": "Which trams?", "final": True},
        {"type": "llm.done", "turn_id": 1, "item": "r1", "text": texts[0]},
        *(
            first.progress(1000),
            first.sentence_ended(2000, False),
            first.progress(500),
            first.sentence_ended(2100, True),
        ),
        {"type": "asr", "turn_id": 2, "text": "Until when?", "final": True},
        {"type": "llm.done", "turn_id": 2, "item": "r2", "text": texts[1]},
        *(second.progress(1000), second.sentence_ended(1700, False), second.progress(900), second.interrupted(1400)),
    ]
    async with aiohttp.ClientSession() as http:
        root = f"http://{app.rest_address}/v1/sessions"
        await http.post(root, json={"session_id": "s"})
        timed = [event | {"ts": 1_790_000_000_000 + 1000 * place} for place, event in enumerate(events)]
        assert (await http.post(f"{root}/s/events", json=timed)).status == 200
        async with http.get(f"{root}/s/history") as history:
            replies = [one for one in (await history.json())["contents"] if one["role"] == "assistant"]
    assert [one["content"] for one in replies] == [texts[0], "Half past eleven. After that, "]


def test_the_kinds_of_the_engines_are_kinds() -> None:
    """What an engine is said to give is in the tables."""
    engines = PAGE.partition("## By engine")[2].partition("Three traps")[0]
    rows = [line for line in engines.splitlines() if line.startswith("|")][2:]
    named = {kind for row in rows for kind in re.findall(r"`(\w+)`", row.split("|")[-2])}
    assert len(rows) >= 10
    assert named
    assert named <= KINDS.keys()
