"""docs/context.md: its commands run, and its policy does what the page says."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from calls import delta, done, final
from processes import running_process
from programs import DOCS, fenced, save, shell

from voicemem.config.memory import PARAMETERS
from voicemem.context.usage import LeftOut, Usage

PAGE = "context.md"
TEXT = (DOCS / PAGE).read_text()


def test_every_policy_is_documented_with_its_parameters() -> None:
    """Each has a row, which names what it can be told."""
    table = TEXT.partition("## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", table, re.MULTILINE))
    for policy, parameters in PARAMETERS.items():
        assert sorted(parameters) == sorted(re.findall(r"`(\w+)`", rows[policy])), policy


def test_the_account_is_documented() -> None:
    """Each field of it, and of what it says of a message that is left out."""
    names = [*Usage.__struct_fields__, *LeftOut.__struct_fields__]
    assert [name for name in names if f"`{name}`" not in TEXT] == []


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
async def test_the_page_runs(tmp_path: Path) -> None:
    """Its commands answer, its policy is taken, and chooses as the page says."""
    save(PAGE, tmp_path, {})
    *commands, serve = [text for language, text in fenced(PAGE) if language == "sh"]
    (chosen,) = [text for language, text in fenced(PAGE) if language == "json"]
    flags = shlex.split(serve)[2:]
    async with running_process(tmp_path / "calls.db", *flags, env={"PYTHONPATH": str(tmp_path)}) as process:
        answers = [await shell(text.replace("http://127.0.0.1:8080", process.rest), tmp_path) for text in commands]
        assert {"policy": "window", "max_tokens": 40} == json.loads(answers[0][answers[0].rindex('{"session_id"') :])[
            "config"
        ]["memory"]
        assert {"messages": []} == json.loads(answers[1])
        assert "window" == json.loads(answers[2])["policy"]
        await process.api.create("own", **json.loads(chosen))
        for turn in range(1, 11):
            await process.api.send(final(turn, f"{turn}"), delta(turn, f"-{turn}"), done(turn), session_id="own")
        said = [one["content"] for one in (await process.api.context(session_id="own"))["messages"]]
        assert ["1", "-1", "2", "-2", "6", "-6"] == said[:6]
        assert 14 == len(said)
