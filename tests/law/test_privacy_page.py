"""docs/privacy.md says where data of people are, so it must know every place."""

from __future__ import annotations

import re
from typing import get_args

import msgspec
import pytest

from tests.support.documentation import TEXTS, code_blocks
from tests.support.paths import PACKAGE
from voicemem.memory.exports import ExportLine
from voicemem.store.sqlite.words import SCHEMA
from voicemem.telemetry.metrics import Metrics

PAGE = TEXTS["privacy.md"]
CREATED = re.compile(r"create (?:virtual )?table (?:if not exists )?(\w+)(?! partition of)", re.IGNORECASE)
GONE = re.compile(r"drop table (?:if exists )?(\w+)", re.IGNORECASE)
RENAMED = re.compile(r"alter table (\w+) rename to (\w+)", re.IGNORECASE)


def tables(statements: list[str]) -> set[str]:
    """The tables that are there after these, in their order."""
    there: set[str] = set()
    for text in statements:
        there |= set(CREATED.findall(text))
        there -= set(GONE.findall(text))
        for old, new in RENAMED.findall(text):
            there = there - {old} | {new}
    return there


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_every_table_is_on_the_page(engine: str) -> None:
    """Whoever adds a table says on the page what of people is in it, and whether it goes with a session."""
    migrations = [path.read_text() for path in sorted((PACKAGE / "store" / engine / "migrations").glob("*.sql"))]
    there = tables([*migrations, *([SCHEMA] if engine == "sqlite" else [])])
    assert len(there) > 15
    rows = " ".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `"))
    assert sorted(name for name in there if f"`{name}`" not in rows) == []


def test_every_line_of_an_export_is_on_the_page() -> None:
    """Each type has its row, and those that are shown are what they should be."""
    types = [kind.__struct_config__.tag for kind in get_args(ExportLine)]
    assert [name for name in types if f"| `{name}` |" not in PAGE] == []
    shown = [line for block in code_blocks(PAGE, "jsonl") for line in block.splitlines()]
    lines = [msgspec.json.decode(line, type=ExportLine) for line in shown]
    assert {line.__struct_config__.tag for line in lines} >= {"export", "document", "session", "message", "end"}
    assert lines[-1].lines == len(lines) - 1


def test_metrics_name_nobody() -> None:
    """No label of a metric is an id of a session, a user or a project."""
    labels = {label for _, names, _ in Metrics().describe() for label in names}
    assert labels
    assert [label for label in labels if re.search("session|user|project|text|_id$", label)] == []
