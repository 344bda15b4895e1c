"""docs/working-memory.md shows what its commands really answer, and every call and setting that there is."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.doc_programs import fenced, run_shell
from tests.support.processes.service_process import running_process

WORKING_MEMORY_PAGE = "working-memory.md"


@pytest.mark.needs("curl")
async def test_the_commands_answer_what_the_page_shows(tmp_path: Path) -> None:
    """Each command runs, and the JSON below it is the last answer."""
    compared = 0
    last: Any = None
    async with running_process(tmp_path / "calls.db") as process:
        for language, text in fenced(WORKING_MEMORY_PAGE):
            if language == "sh":
                printed = await run_shell(text.replace("http://127.0.0.1:8080", process.rest), tmp_path)
                last = json.loads(last_object(printed))
            else:
                compared += 1
                assert json.loads(text) == last
        known = (await process.api.get("/v1/users/ann/working-memory")).json
        assert ({"name": "Ann", "likes": ["tea", "window seats"]}, 2) == (known["content"], known["version"])
        booking = (await process.api.get("/v1/sessions/booking/working-memory")).json
        assert "# Booking\n- Name: Ann\n- Day: Friday" == booking["content"]
    assert 4 == compared


def last_object(printed: str) -> str:
    """The last of some JSON objects that stand one after the other."""
    decoder, rest, found = json.JSONDecoder(), printed.strip(), ""
    while rest:
        _, end = decoder.raw_decode(rest)
        found, rest = rest[:end], rest[end:].strip()
    return found
