"""How many tokens a text has."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import subprocess
import sys

import pytest

from voicemem.llm.tokens import ESTIMATE, counter

WITHOUT = """
import sys
sys.modules["rs_bpe"] = sys.modules["rs_bpe.bpe"] = None
from voicemem.llm.tokens import counter
print(counter("o200k").name)
"""


@pytest.mark.parametrize(
    ("text", "o200k", "cl100k"),
    [
        ("", 0, 0),
        ("hello world", 2, 2),
        ("antidisestablishmentarianism", 6, 6),
        ("お誕生日おめでとう", 8, 9),
    ],
)
def test_exact_counts(text: str, o200k: int, cl100k: int) -> None:
    """Those of OpenAI's tokenizers; the examples are from the OpenAI cookbook's page on tiktoken."""
    assert (o200k, cl100k) == (counter("o200k").count(text), counter("cl100k").count(text))


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2)])
def test_the_estimate(text: str, tokens: int) -> None:
    """Four characters are a token, and what is begun counts."""
    assert tokens == ESTIMATE.count(text)


def test_without_the_extra_it_is_estimated() -> None:
    """And the name of the counter says so."""
    told = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert "estimate" == told.stdout.strip()
