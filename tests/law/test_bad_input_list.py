"""Whether the suite of bad input is whole: 145 numbers, each in one place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.paths import TESTS

FOLDERS = ("service/hostile", "process/hostile")


def test_every_number_is_in_one_place() -> None:
    """Of the 145 bad inputs each is in one file."""
    places: dict[int, set[str]] = {}
    for folder in FOLDERS:
        for path in sorted((TESTS / folder).glob("test_*.py")):
            for number in numbers(ast.parse(path.read_text("utf-8"))):
                places.setdefault(number, set()).add(path.name)
    assert sorted(places) == list(range(1, 146))
    assert {number: files for number, files in places.items() if len(files) > 1} == {}


def numbers(tree: ast.AST) -> Iterator[int]:
    """The numbers in the names of a file's tests, and those that the names of its cases begin with."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield from map(int, re.findall(r"(?<=test_)\d+|(?<=\d_)\d+", node.name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from map(int, re.findall(r"^(\d+) (?!\d+$)", node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "host":
            yield from (one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, int))
