"""docs/working-memory.md shows what its commands really answer, and every call and setting that there is."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from processes import running_process
from programs import DOCS, fenced, shell

from voicemem.documents.document import WorkingMemoryConfig
from voicemem.server.rest.working_memory import ROUTES, VersionQuery, VersionsQuery, WorkingMemoryDocument

PAGE = "working-memory.md"
TEXT = (DOCS / PAGE).read_text()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
async def test_the_commands_answer_what_the_page_shows(tmp_path: Path) -> None:
    """Each command runs, and the JSON below it is the last answer."""
    compared = 0
    last: Any = None
    async with running_process(tmp_path / "calls.db") as process:
        for language, text in fenced(PAGE):
            if language == "sh":
                printed = await shell(text.replace("http://127.0.0.1:8080", process.rest), tmp_path)
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


def test_every_call_is_on_the_page() -> None:
    """Each route, each query parameter and each field of an answer is named."""
    calls = {(route.method, re.sub(r"^/v1/(sessions/\{id\}|users/\{user_id\})", "…", route.path)) for route in ROUTES}
    documents = [f"`{method} {path}`" for method, path in calls if "working-memory" in path]
    assert [call for call in documents if call not in TEXT] == []
    fields = WorkingMemoryDocument.__struct_fields__
    assert [name for name in fields if f'"{name}"' not in TEXT] == []
    parameters = {*VersionQuery.__struct_fields__, *VersionsQuery.__struct_fields__}
    assert [name for name in parameters if f"`{name}" not in TEXT] == []


def test_every_setting_is_documented() -> None:
    """Each field of the section `working_memory` stands in docs/rest.md."""
    rest = (DOCS / "rest.md").read_text()
    assert [n for n in WorkingMemoryConfig.__struct_fields__ if f"`working_memory.{n}`" not in rest] == []


def test_every_code_of_the_calls_is_on_the_page() -> None:
    """Codes that no other call has stand in the table of limits and errors."""
    codes = {code for route in ROUTES for code in route.codes}
    assert [code for code in codes if f"`{code}`" not in TEXT] == []
