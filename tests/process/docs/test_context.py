"""docs/context.md: its commands run, and its policy does what the page says."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.support.events import delta, done, final
from tests.support.processes.doc_programs import fenced, run_shell, save_programs
from tests.support.processes.service_process import running_process

CONTEXT_PAGE = "context.md"


@pytest.mark.needs("curl")
async def test_the_page_runs(tmp_path: Path) -> None:
    """Its commands answer, its policy is taken, and chooses as the page says."""
    save_programs(CONTEXT_PAGE, tmp_path, {})
    *commands, serve = [text for language, text in fenced(CONTEXT_PAGE) if language == "sh"]
    (chosen,) = [text for language, text in fenced(CONTEXT_PAGE) if language == "json"]
    flags = shlex.split(serve)[2:]
    async with running_process(tmp_path / "calls.db", *flags, env={"PYTHONPATH": str(tmp_path)}) as process:
        answers = [await run_shell(text.replace("http://127.0.0.1:8080", process.rest), tmp_path) for text in commands]
        assert {"policy": "window", "max_tokens": 40} == json.loads(answers[0][answers[0].rindex('{"session_id"') :])[
            "config"
        ]["memory"]
        assert {"messages": []} == json.loads(answers[1])
        assert {"memories": {"max_tokens": 300}} == json.loads(answers[2])["config"]["memory"]
        assert "window" == json.loads(answers[3])["policy"]
        await process.api.create("own", **json.loads(chosen))
        for turn in range(1, 11):
            await process.api.send(final(turn, f"{turn}"), delta(turn, f"-{turn}"), done(turn), session_id="own")
        said = [one["content"] for one in (await process.api.context(session_id="own"))["messages"]]
        assert ["1", "-1", "2", "-2", "6", "-6"] == said[:6]
        assert 14 == len(said)
