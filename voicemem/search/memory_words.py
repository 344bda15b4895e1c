"""What a memory is found by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from voicemem.search.passages import MAX_WORDS, day_words
from voicemem.search.words import words_of

ABOUT_WEIGHT = 0.5
"""What a word of a topic, an entity or the day counts, beside one of the text."""
FIRST_DAY_MS, LAST_DAY_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999."""


class MemoryWords(NamedTuple):
    """The words of a memory, as one text each: of what it says, and of what it is about and when that was."""

    said: str
    about: str


def memory_words(text: str, tags: Sequence[str], day_ms: int | None) -> MemoryWords:
    """The words of a memory with these topics and entities, of something that was on a day (Unix ms; None: on none)."""
    about = [word for tag in tags for word in words_of(tag)]
    if day_ms is not None and FIRST_DAY_MS <= day_ms <= LAST_DAY_MS:
        about += words_of(day_words(day_ms))
    return MemoryWords(" ".join(words_of(text)[:MAX_WORDS]), " ".join(about[:MAX_WORDS]))
