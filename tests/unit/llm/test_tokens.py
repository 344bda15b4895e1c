"""How many tokens a text has, and what is known of models."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.support.rows import every_row
from voicemem.llm.tokens import ESTIMATE, context_window_of, counter, encoding_of


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


@every_row(
    ("model", "window"),
    [
        (None, None),
        ("nobody-knows-it", None),
        ("gpt-4", 8_192),
        ("gpt-4-0613", 8_192),
        ("gpt-4o-mini-2024-07-18", 128_000),
        ("openai/GPT-4.1-mini", 1_047_576),
        ("llama-3.3-70b", 131_072),
    ],
)
def test_windows(model: str | None, window: int | None) -> None:
    """The longest known beginning of a name counts, without the provider before it."""
    assert window == context_window_of(model, {})


def test_a_services_own_windows_come_first() -> None:
    """They extend the table, and correct it."""
    own = {"mine": 5, "gpt-4o": 7, "gpt-4o-mini": 9}
    assert [5, 7, 9, 8_192] == [context_window_of(model, own) for model in ("mine-2", "gpt-4o", "gpt-4o-mini", "gpt-4")]


@every_row(
    ("model", "encoding"),
    [(None, "o200k"), ("gpt-4", "cl100k"), ("gpt-4-turbo", "cl100k"), ("gpt-3.5-turbo", "cl100k")]
    + [(name, "o200k") for name in ("gpt-4o", "openai/gpt-4.1", "gpt-5", "o3", "claude-3", "qwen")],
)
def test_encodings(model: str | None, encoding: str) -> None:
    """Old models of OpenAI have cl100k."""
    assert encoding == encoding_of(model)
