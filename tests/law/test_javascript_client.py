"""The tests of the JavaScript client are those of the Python client, by name, but for those that this page explains."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from tests.support.paths import DOCS, ROOT, TESTS

PYTHON = [TESTS / "unit" / "client", TESTS / "service" / "client"]
JAVASCRIPT = ROOT / "clients" / "javascript" / "tests"

SYNCHRONOUS = "JavaScript has no synchronous client"
REPLAY = "`voicemem demo` and `replay` are Python's; nothing in JavaScript replays files"
FAILING_STORE = "a store is made to fail inside a service's own process, and these services are processes of their own"
PROXY = "room that many calls share, and gaps for what has none, are for `voicemem proxy`, which is Python's"
ABSENT = {
    "room.test.js": PROXY,
    "sync.test.js": SYNCHRONOUS,
    "replay.test.js": REPLAY,
    "reading-in-time.test.js the_synchronous_client_keeps_the_same_times": SYNCHRONOUS,
    "reading-in-time.test.js a_backlog_that_is_full_counts_too": "Node accepts connections whatever the backlog is",
    "changing.test.js the_same_from_synchronous_code": SYNCHRONOUS,
    "waiting-in-time.test.js a_loop_that_was_closed_is_an_ack_with_an_error": "no loop of JavaScript can be closed",
    "client.test.js an_error_in_the_block_is_not_hidden": "a client is not used as a block",
    "client.test.js a_store_that_is_down_acknowledges_nothing": FAILING_STORE,
    "http-fallback.test.js a_store_that_is_down": FAILING_STORE,
}
"""Tests of Python, or whole files of them, that JavaScript does not have, and why."""


def javascript_file(path: Path) -> str:
    return path.stem.removeprefix("test_").replace("_", "-") + ".test.js"


def python_tests() -> set[str]:
    files = [path for folder in PYTHON for path in folder.rglob("test_*.py")]
    return {
        f"{javascript_file(path)} {name}"
        for path in files
        for name in re.findall(r"^(?:async )?def test_(\w+)", path.read_text(), re.MULTILINE)
    }


def javascript_tests() -> set[str]:
    return {
        f"{path.name} {name}"
        for path in JAVASCRIPT.glob("*.test.js")
        for name in re.findall(r"^test\(\"(\w+)\"", path.read_text(), re.MULTILINE)
    }


def is_absent(test: str) -> bool:
    return test in ABSENT or test.partition(" ")[0] in ABSENT


def test_each_test_of_the_python_client_is_one_of_javascripts() -> None:
    """A test that the Python client has, the JavaScript client has under the same name, or the table says why not."""
    assert {test for test in python_tests() if not is_absent(test)} <= javascript_tests()


def test_the_table_says_nothing_else() -> None:
    """What the table excuses is a test of Python's, and none of JavaScript's."""
    python, javascript = python_tests(), javascript_tests()
    files = {test.partition(" ")[0] for test in python}
    assert all(excused in python or excused in files for excused in ABSENT)
    assert not [test for test in javascript if is_absent(test)]


def test_each_test_of_javascript_says_what_it_shows() -> None:
    """A sentence stands above each test."""
    for path in JAVASCRIPT.glob("*.test.js"):
        lines = path.read_text().splitlines()
        bare = [line for before, line in pairwise(lines) if line.startswith("test(") and not before.endswith("*/")]
        assert bare == [], path.name


def test_every_option_is_documented_with_its_default() -> None:
    """The table of docs/client-javascript.md has each option, with the value that it has without being given."""
    source = (ROOT / "clients" / "javascript" / "source" / "options.js").read_text()
    table = (DOCS / "client-javascript.md").read_text().partition("## Options")[2]
    rows = {line.split("|")[1]: line.split("|")[2] for line in table.splitlines() if line.startswith("| `")}
    defaults = re.search(r"const DEFAULTS = \{(.*?)\};", source, re.DOTALL)
    assert defaults is not None
    for name, value in re.findall(r"^  (\w+): (.+),$", defaults[1], re.MULTILINE):
        (default,) = [default for names, default in rows.items() if f"`{name}`" in names]
        shown = value.replace("_", ",").replace("8 * 1024 * 1024", "8 MiB")
        assert shown in default.strip().split(", "), name
