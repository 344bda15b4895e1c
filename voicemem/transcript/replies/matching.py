"""The matching of timed words with the text of a reply (docs/memory.md, rules 4, 5).

Only what has been added since is searched, so that an event costs no more when a reply has become long.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import attrgetter, lt
from typing import NamedTuple

from voicemem.protocol.types import MAX_INTEGER
from voicemem.transcript.replies.evidence import BY_TIME, TimedWord
from voicemem.transcript.whole_words import after_closing_marks, is_inside_word, whole_word_end, without_outer_marks

SEARCH_AHEAD = 48
"""How far ahead a word is searched for: room for a few words that the engine left out. A missing word must not be found
in a later sentence, which would skip everything up to there."""
A_LETTER = re.compile(r"[\w█]")


class WordTimeline:
    """The times of a reply's words on one timeline, although the vendor's times start again with each sentence.

    Words are taken in the order of their reports. A new stretch begins with a word that starts before the last one, is
    not known with this start, and continues the text; its times count from the end of all words before it.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        """Where the last word that was found ends in the text."""
        self.offset = self.end_ms = 0
        """When this stretch begins, and when the last of all words ends, in ms."""
        self.first: TimedWord | None = None
        """The first word of this stretch; `last` is the one that starts last."""
        self.last: TimedWord | None = None
        self.known: dict[tuple[int, str], int] = {}
        """By start and text of a word: the offset of its stretch."""
        self.held: list[TimedWord] = []
        """Known words that also continue the text: they are repeats, unless a new word follows that continues it."""
        self.held_place = 0

    def take(self, word: TimedWord) -> list[TimedWord]:
        """Take one more word. Return the words whose times, from the start of the reply's audio, are certain now."""
        known = self.known.get((word.start_ms, word.text))
        place = self.held_place if self.held else self.place
        span = find_word(self.text, word.text, place)
        continues = bool(place) and span is not None and not A_LETTER.search(self.text, place, span[0])
        if continues and (self.held or self.goes_back(word)):
            assert span is not None
            if known is not None:
                self.held.append(word)
                self.held_place = span[1]
                return []
            held, self.held = self.held, []
            self.offset, self.first, self.last = min(self.end_ms, MAX_INTEGER), None, None
            return [self.forward(one) for one in (*held, word)]
        again, self.held = [self.put(one, self.known[one.start_ms, one.text]) for one in self.held], []
        return [*again, self.forward(word) if known is None or continues else self.put(word, known)]

    def goes_back(self, word: TimedWord) -> bool:
        """Return whether a word starts before the last one, or with the only one so far but ends elsewhere."""
        last = self.last
        if last is None or word.start_ms < last.start_ms:
            return last is not None
        return last is self.first and word.start_ms == last.start_ms and word.end_ms != last.end_ms

    def forward(self, word: TimedWord) -> TimedWord:
        """Add the next word of this stretch."""
        span = find_word(self.text, word.text, self.place)
        self.place = self.place if span is None else span[1]
        if self.last is None or word.start_ms > self.last.start_ms:
            self.last = word
            self.first = self.first or word
        return self.put(word, self.offset)

    def put(self, word: TimedWord, offset: int) -> TimedWord:
        self.known[word.start_ms, word.text] = offset
        self.end_ms = max(self.end_ms, offset + word.end_ms)
        if not offset:
            return word
        return TimedWord(word.ts, word.order, offset + word.start_ms, offset + word.end_ms, word.text, word.estimated)


class Clause(NamedTuple):
    """An entry of several words: its times in the audio, and its place in the text."""

    start_ms: int
    end_ms: int
    begin: int
    end: int


class WordMatch:
    """The words of one reply in the order of their starts, with the end of each in the text."""

    def __init__(self, words: Iterable[TimedWord], text: str, counts: Sequence[int] = ()) -> None:
        self.text = text
        self.counts = counts
        """The number of words from each source."""
        self.timeline = WordTimeline(text)
        self.ends_ms = array("q")
        """When the audio of each word found ends, in ms; sorted."""
        self.places = array("q")
        """The end in the text of the words that had ended by then."""
        self.clauses: list[Clause] = []
        """The entries of several words, by start."""
        self.has_estimates = False
        """True if the times of any word are estimated."""
        self.newest: TimedWord | None = None
        """The word that starts last, whether or not it was found."""
        self.reached = 0
        """The end of the last word that was found in the text."""
        self.early: list[tuple[int, int]] = []
        """Words that end before others that started earlier, not yet sorted in."""
        reported = sorted(words, key=BY_TIME)
        self.reported = reported[-1] if reported else None
        """The word reported last."""
        for word in newest_by_start(self.placed(reported)):
            self.add(word)

    def placed(self, reported: Iterable[TimedWord]) -> Iterator[TimedWord]:
        return chain.from_iterable(map(self.timeline.take, reported))

    def extend(self, known: Sequence[Sequence[TimedWord]], counts: Sequence[int], text: str) -> bool:
        """Add the new words, if they start after the others. Return False if all must be matched again."""
        if text != self.text or len(counts) != len(self.counts) or any(map(lt, counts, self.counts)):
            return False
        new = [word for words, count in zip(known, self.counts, strict=True) for word in words[count:]]
        new.sort(key=BY_TIME)
        if new and self.reported is not None and BY_TIME(new[0]) < BY_TIME(self.reported):
            return False
        self.reported = new[-1] if new else self.reported
        fresh = newest_by_start(self.placed(new))
        if fresh and self.newest is not None and fresh[0].start_ms <= self.newest.start_ms:
            return False
        self.counts = counts
        for word in fresh:
            self.add(word)
        return True

    def add(self, word: TimedWord) -> None:
        """Match one more word, which starts after the others."""
        self.newest = word
        self.has_estimates |= word.estimated
        span = find_word(self.text, word.text, self.reached)
        if span is None:
            return
        begin, self.reached = span
        if has_several_words(self.text[begin : self.reached]):
            self.clauses.append(Clause(word.start_ms, word.end_ms, begin, self.reached))
        if self.ends_ms and word.end_ms < self.ends_ms[-1]:
            self.early.append((word.end_ms, self.reached))
        else:
            self.ends_ms.append(word.end_ms)
            self.places.append(self.reached)

    def end_at(self, position_ms: int) -> int:
        """Return the end in the text of the last word heard at a position."""
        if self.early:
            pairs = sorted([*zip(self.ends_ms, self.places, strict=True), *self.early])
            self.ends_ms = array("q", (end_ms for end_ms, _ in pairs))
            self.places = array("q", accumulate((place for _, place in pairs), max))
            self.early = []
        count = bisect_right(self.ends_ms, position_ms)
        ended = self.places[count - 1] if count else 0
        clause = self.clause_at(position_ms)
        if clause is None:
            return ended
        share = (clause.end - clause.begin) * (position_ms - clause.start_ms) // (clause.end_ms - clause.start_ms)
        end = whole_word_end(self.text, clause.begin + share)
        while end and self.text[end - 1].isspace():
            end -= 1
        return max(ended, end)

    def clause_at(self, position_ms: int) -> Clause | None:
        """Return the entry of several words that was playing at a position: which of them were heard is a guess."""
        place = bisect_left(self.clauses, position_ms, key=START_MS)
        clause = self.clauses[place - 1] if place else None
        return clause if clause is not None and position_ms < clause.end_ms else None

    @property
    def whole_ms(self) -> int | None:
        """The end of the audio of the text's last word; None while that is not among the words."""
        if not self.reached or after_closing_marks(self.text, self.reached) < len(self.text):
            return None
        self.end_at(0)
        return self.ends_ms[bisect_left(self.places, self.reached)]


START_MS = attrgetter("start_ms")


def newest_by_start(words: Iterable[TimedWord]) -> list[TimedWord]:
    """Return the words by start; of equal starts a stated one wins, then the later `ts`, then the later arrival."""
    ranked = sorted(words, key=lambda word: (word.start_ms, not word.estimated, word.ts, word.order))
    return [*{word.start_ms: word for word in ranked}.values()]


def find_word(text: str, word: str, start: int) -> tuple[int, int] | None:
    """Return the span of a whole word in `text` from `start` on, exact, else without case and marks; None if none."""
    word, bare = word.strip(), without_outer_marks(word.strip())
    if not A_LETTER.search(bare):
        return None  # marks belong to the word before them
    stop = start + len(word) + SEARCH_AHEAD
    place = text.find(word, start, stop)
    while place >= 0:
        if is_whole(text, place, place + len(word)):
            return place, place + len(word)
        place = text.find(word, place + 1, stop)
    pattern = r"\W+".join(re.escape(inner) for one in bare.split() if (inner := without_outer_marks(one)))
    for match in re.compile(pattern, re.IGNORECASE).finditer(text, start, stop):
        if is_whole(text, *match.span()):
            return match.span()
    return None


def is_whole(text: str, begin: int, end: int) -> bool:
    """Return whether a part of a text neither begins nor ends inside a word."""
    return not (begin and is_inside_word(text, begin)) and not (end < len(text) and is_inside_word(text, end))


def has_several_words(text: str) -> bool:
    """Return whether a text can be cut after a word that is not its last."""
    bare = without_outer_marks(text)
    return 0 < whole_word_end(bare, len(bare) - 1) < len(bare)
