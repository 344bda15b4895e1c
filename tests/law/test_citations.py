"""What comments and docstrings cite is there: pages of docs/, their headings, and the rules of docs/memory.md."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.support.documentation import TEXTS
from tests.support.paths import ROOT

FOLDERS = ("voicemem", "tests", "bench", "fixtures")
DESIGN = re.compile(r"\bdesign(?:'s)?,? (?:text|sections?\b)", re.IGNORECASE)
SECTION = re.compile(r"\bsections? \d+")
PUBLISHED = re.compile(r"(?:RFC \d+|sqlite\.org/\w+), section")
"""A standard or a manual, whose sections anyone can read."""
PAGE = re.compile(r"\bdocs/([\w-]+\.md)(?:, \"([^\"]+)\")?(?:, rules? (\d+))?")


def sources() -> dict[str, str]:
    """Each source file and page by its path, but for this file, which has bad citations as examples."""
    paths = [path for folder in FOLDERS for kind in ("*.py", "*.md") for path in (ROOT / folder).rglob(kind)]
    names = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}
    return {name: text for name, text in names.items() if name != "tests/law/test_citations.py"}


def dead_citations(text: str) -> Iterator[str]:
    """Citations in a text that lead nowhere."""
    yield from (found.group() for found in DESIGN.finditer(text))
    for line in text.splitlines():
        if not PUBLISHED.search(line) and not DESIGN.search(line):
            yield from (found.group() for found in SECTION.finditer(line))
    for found in PAGE.finditer(text):
        page, heading, rule = found.groups()
        headings = re.findall(r"^#+ (.+)$", TEXTS.get(page, ""), re.MULTILINE)
        named = not heading or heading in headings
        ruled = not rule or any(one.startswith(f"Rule {rule}:") for one in headings)
        if not headings or not named or not ruled:
            yield found.group()


def test_citations_lead_somewhere() -> None:
    """No file cites a section of a document that is not in the repository, or a page, heading or rule that is not."""
    files = {name: text for name, text in sources().items()}
    dead = {name: [*dead_citations(text)] for name, text in files.items()}
    assert {name: found for name, found in dead.items() if found} == {}


def test_dead_citations_are_caught() -> None:
    """Each kind of citation that leads nowhere is found, and those that lead somewhere are not."""
    dead = (
        "design, section 4",
        "the design's text",
        "Design, sections 2",
        "section 13",
        "docs/nowhere.md",
        'docs/ingest.md, "No such heading"',
        "docs/memory.md, rule 12",
    )
    for text in dead:
        assert [*dead_citations(text)] != [], text
    for text in (
        "RFC 6455, section 5.2",
        'docs/ingest.md, "End a session"',
        "docs/memory.md, rule 11",
        "docs/storage.md",
    ):
        assert [*dead_citations(text)] == [], text


def test_the_fold_has_eleven_rules() -> None:
    """docs/memory.md states rules 1 to 11, in this order."""
    rules = re.findall(r"^## Rule (\d+):", TEXTS["memory.md"], re.MULTILINE)
    assert [int(rule) for rule in rules] == [*range(1, 12)]
