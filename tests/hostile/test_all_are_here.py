"""Whether the suite of bad input is whole: 132 numbers, each in one place."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NOT_YET = {
    96: "an expired JWT: there are no session tokens yet; what looks like one is a wrong key (test_bad_auth.py)",
    97: "a JWT without exp: the same",
    98: "a JWT of alg none: the same",
    99: "a JWT of another alg: the same",
    102: "a token that expires while connected: the same; a key that is revoked lets its open connections go on",
    104: "the rate of guesses: a wrong key costs one look-up and is never slowed down; a key has 238 random bits",
}
"""What cannot be tested yet, and why."""


def test_every_number_is_in_one_place_or_said_to_be_missing() -> None:
    """Of the 132 bad inputs each is in one file, or in the table of what is not there yet."""
    places: dict[int, set[str]] = {}
    for file, name in collected():
        for number in numbers(name):
            places.setdefault(number, set()).add(file)
    assert sorted([*places, *NOT_YET]) == list(range(1, 133))
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
