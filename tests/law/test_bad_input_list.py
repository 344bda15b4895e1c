"""Whether the suite of bad input is whole: 132 numbers, each in one place."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_every_number_is_in_one_place() -> None:
    """Of the 132 bad inputs each is in one file."""
    places: dict[int, set[str]] = {}
    for file, name in collected():
        for number in numbers(name):
            places.setdefault(number, set()).add(file)
    assert sorted(places) == list(range(1, 133))
    assert {number: files for number, files in places.items() if len(files) > 1} == {}


def collected() -> list[tuple[str, str]]:
    """The file and the name of each test of this folder, as pytest finds them."""
    command = (sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", str(HERE))
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return re.findall(r"^\S*?(\w+\.py)::(.+)$", found, re.MULTILINE)


def numbers(name: str) -> list[int]:
    """The numbers of a test: at the beginning of its name, or of the name of its case."""
    function, _, case = name.partition("[")
    found = re.findall(r"(?<=test_)\d+|(?<=\d_)\d+", function) + re.findall(r"^\d+(?= )", case)
    return [int(number) for number in found]
