"""The timed words of a reply's audio, and where they stand in its text (docs/memory.md, rule 4)."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import lt

from voicemem.transcript.cutting import after_closing_marks, without_outer_marks
from voicemem.transcript.replies.evidence import TimedWord

SEARCH_AHEAD = 48
"""How far ahead a word is looked for: room for a few words that the engine left out. A word that is missing must not be
found in a later sentence, which would skip everything up to there."""


class WordMatch:
    """The words of one reply in the order of their starts, and where each ends in a text."""

    def __init__(self, words: Iterable[TimedWord], text: str, counts: Sequence[int] = ()) -> None:
        self.text = text
        self.counts = counts
        """How many words of each source are in it."""
        self.ends_ms = array("q")
        """When the audio of each word that was found ends, in ms; sorted."""
        self.places = array("q")
        """How far the text goes through the words that had ended by then."""
        self.has_estimates = False
        """Whether the times of any word are an estimate."""
        self.newest: TimedWord | None = None
        """The word that starts last, whether or not it was found."""
        self.reached = 0
        """Where the last word that was found ends in the text."""
        self.early: list[tuple[int, int]] = []
        """Words that end before others which started earlier, still to be put among them."""
        for word in newest_by_start(words):
            self.add(word)

    def extend(self, known: Sequence[Sequence[TimedWord]], counts: Sequence[int], text: str) -> bool:
        """Add the words that are new, if they start after the others; False where all must be matched again."""
        if text != self.text or len(counts) != len(self.counts) or any(map(lt, counts, self.counts)):
            return False
        fresh = newest_by_start(word for words, count in zip(known, self.counts, strict=True) for word in words[count:])
        if fresh and self.newest is not None and fresh[0].start_ms <= self.newest.start_ms:
            return False
        self.counts = counts
        for word in fresh:
            self.add(word)
        return True

    def add(self, word: TimedWord) -> None:
        """Find one more word, which starts after the others."""
        self.newest = word
        self.has_estimates |= word.estimated
        place = find_word(self.text, word.text.strip(), self.reached)
        if place is None:
            return
        self.reached = place
        if self.ends_ms and word.end_ms < self.ends_ms[-1]:
            self.early.append((word.end_ms, place))
        else:
            self.ends_ms.append(word.end_ms)
            self.places.append(place)

    def end_at(self, position_ms: int) -> int:
        """Where the last word that had ended at a position ends in the text."""
        if self.early:
            pairs = sorted([*zip(self.ends_ms, self.places, strict=True), *self.early])
            self.ends_ms = array("q", (end_ms for end_ms, _ in pairs))
            self.places = array("q", accumulate((place for _, place in pairs), max))
            self.early = []
        count = bisect_right(self.ends_ms, position_ms)
        return self.places[count - 1] if count else 0

    @property
    def whole_ms(self) -> int | None:
        """When the last word of the text ends; None while it is not among the words."""
        if not self.reached or after_closing_marks(self.text, self.reached) < len(self.text):
            return None
        self.end_at(0)
        return self.ends_ms[bisect_left(self.places, self.reached)]


def newest_by_start(words: Iterable[TimedWord]) -> list[TimedWord]:
    """The words by their starts; of two with one start a stated one, then that of the later `ts`, then the later."""
    by_start: dict[int, TimedWord] = {}
    for word in words:
        known = by_start.get(word.start_ms)
        if known is None or rank(word) >= rank(known):
            by_start[word.start_ms] = word
    return [by_start[start_ms] for start_ms in sorted(by_start)]


def rank(word: TimedWord) -> tuple[bool, int, int]:
    return not word.estimated, word.ts, word.order


def find_word(text: str, word: str, start: int) -> int | None:
    """Where `word` ends in `text` from `start` on, as it stands, else without case and outer marks; or None."""
    if not word:
        return None
    window = text[start : start + len(word) + SEARCH_AHEAD]
    found = window.find(word)
    if found >= 0:
        return start + found + len(word)
    bare = without_outer_marks(word)
    match = re.search(re.escape(bare), window, re.IGNORECASE) if bare else None
    return start + match.end() if match else None
