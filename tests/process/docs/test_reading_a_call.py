"""docs/reading-a-call.md shows what its commands really answer, and what the journal of its call really has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.doc_programs import fenced, run_shell, save_programs
from tests.support.processes.service_process import running_process

PAGE = "reading-a-call.md"
pytestmark = pytest.mark.needs("curl")


async def test_the_commands_answer_what_the_page_shows(tmp_path: Path) -> None:
    """Each command runs, and what stands below it is its answer, or the part of it that the page says."""
    save_programs(PAGE, tmp_path, {})
    answers: list[str] = []
    shown: list[tuple[str, str]] = []
    async with running_process(tmp_path / "calls.db") as process:
        for language, text in fenced(PAGE)[1:]:
            if language == "sh":
                answers.append(await run_shell(text.replace("http://127.0.0.1:8080", process.rest), tmp_path))
            else:
                shown.append((language, text))
        rows = await process.api.journal("hotel")
    sent, history, turns, journal = answers
    (_, taken), (_, heard), (_, two_turns), (_, evidence) = shown
    assert json.loads(taken) == lines(sent)[-1]
    assert json.loads(heard)["contents"] == json.loads(history)["contents"]
    assert json.loads(two_turns) == json.loads(turns)["turns"][1:3]
    assert without_arrival(lines(evidence)) == without_arrival(lines(journal))
    assert [rows[position - 1]["event"]["type"] for position in (13, 14, 16)] == ["interrupt", "resume", "refused"]
    assert rows[15]["event"] == {"type": "refused", "code": "invalid_field"}
    assert (rows[-1]["event"]["type"], rows[-1]["producer"]) == ("session.closed", None)


def lines(text: str) -> list[Any]:
    """The objects of JSON that stands one after the other."""
    found, rest = [], text.strip()
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        found.append(value)
        rest = rest[end:].strip()
    return found


def without_arrival(rows: list[Any]) -> list[Any]:
    """Journal rows but for when they were received."""
    return [{name: value for name, value in row.items() if name != "received_ms"} for row in rows]
