"""Texts of Vapi's that say the same: white space and, for likeness, case and marks do not count."""

from __future__ import annotations

import re

WORD = re.compile(r"\w+")
LIKE = 0.5
"""The share of the words of the shorter text that the other has too."""


def plain(text: str) -> str:
    return " ".join(text.split())


def begins(text: str, beginning: str) -> bool:
    """Whether a text begins so."""
    return plain(text).startswith(plain(beginning))


def completed(heard: str, full: str) -> str:
    """A text as it was heard, and what of the full text comes after it; only the first, where the full one is other."""
    return heard + plain(full)[len(plain(heard)) :] if begins(full, heard) else heard


def first_words(text: str, count: int) -> str:
    """The beginning of a text that has so many words."""
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    return text[: ends[count - 1]] if 0 < count <= len(ends) else text if count else ""


def word_count(text: str) -> int:
    return len(text.split())


def is_similar(one: str, other: str) -> bool:
    """Whether two texts may be the same speech, heard twice."""
    first, second = (WORD.findall(text.casefold()) for text in (one, other))
    if not first or not second:
        return plain(one) == plain(other)
    if len(first) > len(second):
        first, second = second, first
    known = set(second)
    return sum(word in known for word in first) >= LIKE * len(first)
