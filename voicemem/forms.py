"""Texts of a certain form: the pattern that they match, and the sentence for one that does not."""

from __future__ import annotations

from typing import Any

from msgspec import Meta

REFUSALS: dict[str, str] = {}
"""Our sentences by msgspec's, which show the pattern."""


def matching(pattern: str, sentence: str, **more: Any) -> Meta:
    """What a text must match; `sentence` says so in plain words, without a full stop."""
    REFUSALS[f"Expected `str` matching regex {pattern!r}"] = sentence
    return Meta(pattern=pattern, **more)
