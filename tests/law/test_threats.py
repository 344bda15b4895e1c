"""docs/threats.md: each claim names tests, and they are there."""

from __future__ import annotations

import re

from tests.support.documentation import TEXTS
from tests.support.paths import TESTS

CITED = re.compile(r"`(test_\w+\.py)::(test_\w+)`")
HOLDERS = (
    "An admin key",
    "An ingest key",
    "A read key",
    "A session token",
    "A webhook secret",
    "A caller of the proxy",
)


def test_every_test_that_is_named_exists() -> None:
    """In a file of that name, as a function of that name."""
    files: dict[str, str] = {}
    for path in TESTS.rglob("test_*.py"):
        files[path.name] = files.get(path.name, "") + path.read_text("utf-8")
    cited = CITED.findall(TEXTS["threats.md"])
    assert [one for one in cited if f"def {one[1]}(" not in files.get(one[0], "")] == []


def test_every_holder_has_a_test() -> None:
    """A section without one would only be a promise; and no test is named in another form."""
    sections = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", TEXTS["threats.md"], re.MULTILINE))
    assert [name for name in HOLDERS if not CITED.search(sections.get(name, ""))] == []
    names = re.findall(r"\btest_\w+\b(?!\.py)", TEXTS["threats.md"])
    assert len(names) == len(CITED.findall(TEXTS["threats.md"]))
