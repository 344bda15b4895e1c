"""The words of texts, and texts that may be the same speech: case and marks do not count."""

from __future__ import annotations

import re

from voicemem.dialects.wording import plain

WORD = re.compile(r"\w+")
LIKE = 0.5
"""The share of the words of the shorter text that the other has too."""


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
