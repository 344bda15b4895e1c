"""The list of faults that voicemem is tested against, and which tests show what becomes of each.

A test says so by `@pytest.mark.fault(number)`, by its name (`test_a7_…`) or, in a folder `faults`, by its docstring
(`30, 32: …`). `python -m tests.law.test_fault_list` prints the table.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import TESTS

FAULTS = {
    "A. Network and client": {
        1: "reset in the middle of a message",
        2: "half-open peer, no FIN",
        3: "TCP segments of 1 byte",
        4: "latency and jitter",
        5: "narrow bandwidth",
        6: "slow close",
        7: "cut after N bytes",
        8: "listener down, then up",
        9: "events sent again that were acknowledged",
        10: "gap in seq",
        11: "ack lost after the commit",
        12: "two live sockets for one producer",
        13: "resume on another node",
        14: "all clients come back at once",
        15: "client vanishes without an end",
        16: "peer that reads nothing",
    },
    "B. Process": {
        17: "kill -9 at random points",
        18: "kill between commit and ack",
        19: "kill between the end and the first webhook",
        20: "kill between the webhook's 2xx and its marking",
        21: "SIGTERM under load",
        22: "SIGSTOP longer than any lease, then SIGCONT",
        23: "out of memory",
        24: "cancelled inside a transaction",
        25: "no descriptors left (EMFILE)",
        26: "restart with an older schema",
    },
    "C. Disk": {
        27: "power cut",
        28: "torn log at every byte",
        29: "bit flips",
        30: "disk full",
        31: "EIO on fsync",
        32: "EIO on write",
        33: "fsync takes 5 s",
        34: "file turned read-only",
        35: "long reader pins the log",
        36: "restore of an older backup",
    },
    "E. Webhook receiver": {
        47: "refuses connections",
        48: "name does not resolve",
        49: "bad TLS certificate",
        50: "accepts and never answers",
        51: "drips bytes",
        52: "500",
        53: "503 with Retry-After",
        54: "429",
        55: "410",
        56: "redirect to an internal address",
        57: "huge answer, gzip bomb",
        58: "processed, then a reset",
        59: "DNS rebinding between check and connect",
        60: "endpoint disabled or deleted between attempts",
        61: "secret changed between attempts",
        62: "dead for five days",
    },
    "F. Time": {63: "clock back 1 h", 64: "clock forward 1 day", 65: "nodes 10 minutes apart"},
}
"""Numbered as in the list that they come from.

Its part D (37 to 46, a PostgreSQL that fails) is shown by tests/contract/postgresql and tests/process/nodes as a whole.
"""
NUMBERS = {number: what for faults in FAULTS.values() for number, what in faults.items()}


@cache
def shown() -> dict[int, list[str]]:
    """The tests (or whole files of them) that show each fault."""
    found: dict[int, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for number, test in sorted(shown_in(path)):
            found.setdefault(number, []).append(test)
    return found


def shown_in(path: Path) -> set[tuple[int, str]]:
    """The faults of one file's tests, each with the test."""
    source = path.read_text("utf-8")
    if path.parent.name != "faults" and not re.search(r"\bfault\(|\bCase\(|def test_a\d", source):
        return set()  # to parse every file takes long
    tree = ast.parse(source)
    name = str(path.relative_to(TESTS))
    found = {(number, name) for node in tree.body if not isinstance(node, FUNCTION) for number in marked(node)}
    for node in tree.body:
        if isinstance(node, FUNCTION) and node.name.startswith("test_"):
            numbers = {number for decorator in node.decorator_list for number in marked(decorator)}
            named = re.match(r"test_a(\d+)_", node.name)
            numbers |= {int(named[1])} if named else set()
            docstring = ast.get_docstring(node) or ""
            told = re.match(r"((?:\d+(?:, | and )?)+): ", docstring) if path.parent.name == "faults" else None
            numbers |= {int(number) for number in re.findall(r"\d+", told[1])} if told else set()
            found |= {(number, f"{name}::{node.name}") for number in numbers}
    return found


FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
CALLED = ("fault", "Case")
"""The marker, and the rows of a table of cases that begin with the number of a fault."""


def marked(tree: ast.AST) -> Iterator[int]:
    """The numbers in `pytest.mark.fault(number)`, and in the rows of tables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            number = node.args[0].value
            if called in CALLED and isinstance(number, int):
                yield number


def test_the_list_is_whole() -> None:
    """All numbers but those of PostgreSQL are there."""
    assert [number for number in range(1, 66) if not 37 <= number <= 46] == sorted(NUMBERS)


@pytest.mark.parametrize("faults", FAULTS)
def test_every_fault_is_shown(faults: str) -> None:
    """Each fault of a list has a test that says so."""
    assert [what for number, what in FAULTS[faults].items() if number not in shown()] == []


def test_no_test_shows_a_fault_that_is_not_listed() -> None:
    """A number that a test gives is one of the list's."""
    assert {number: tests for number, tests in shown().items() if number not in NUMBERS} == {}


if __name__ == "__main__":
    for number, tests in sorted(shown().items()):
        print(f"{number:3} {NUMBERS[number]}", *tests, sep="\n      ")  # noqa: T201
