"""Texts of a certain form: the pattern that they match, and the sentence for one that does not."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Meta

REFUSALS: dict[str, str] = {}
"""Our sentences by msgspec's, which show the pattern."""


EXPECTED = re.compile(r"Expected `(int \| float|int|float|bool)(?: \| null)?`(?:, got `\w+`)?")
KINDS = {"int": "a whole number", "float": "a number", "int | float": "a number", "bool": "true or false"}


def matching(pattern: str, sentence: str, **more: Any) -> Meta:
    """What a text must match; `sentence` says so in plain words, without a full stop."""
    REFUSALS[f"Expected `str` matching regex {pattern!r}"] = sentence
    return Meta(pattern=pattern, **more)


def in_words(sentence: str) -> str:
    """One of msgspec's sentences in plain words, where there are some for it."""
    return REFUSALS.get(sentence) or EXPECTED.sub(lambda found: f"Expected {KINDS[found[1]]}", sentence)
