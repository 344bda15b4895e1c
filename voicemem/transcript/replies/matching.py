"""Timed words found in the text of a reply, and when a heard text was all of it (docs/memory.md, rules 4, 5).

A long text is looked at once, and what grows only where it has grown, so that an event costs no more when a reply has
become long or many heard texts were reported.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import attrgetter, lt
from typing import NamedTuple

from voicemem.protocol.types import MAX_INTEGER
from voicemem.transcript.cutting import after_closing_marks, is_inside_word, whole_word_end, without_outer_marks
from voicemem.transcript.replies.evidence import BY_TIME, Source, TimedWord
from voicemem.transcript.state import Reply, State
from voicemem.transcript.timeline import WIDTH, Block, TextTimeline

SEARCH_AHEAD = 48
"""How far ahead a word is looked for: room for a few words that the engine left out. A word that is missing must not be
found in a later sentence, which would skip everything up to there."""


SHORT = 1_000
"""Characters of a text, and numbers of a timeline, up to which looking again costs less than keeping what was found."""


A_LETTER = re.compile(r"[\w█]")


class Stretches:
    """The times of a reply's words as one series, where they begin again with each sentence.

    Words are taken as they were reported. A new stretch begins with a word that starts before the last one, is not
    known with this start, and continues the text; its times count from the end of all words before it.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        """Where the last word that was found ends in the text."""
        self.offset = self.end_ms = 0
        """When this stretch began, and when the last of all words ends."""
        self.first: TimedWord | None = None
        """The first word of this stretch; `last` is the one that starts last."""
        self.last: TimedWord | None = None
        self.known: dict[tuple[int, str], int] = {}
        """By start and text of a word: the offset of its stretch."""
        self.held: list[TimedWord] = []
        """Known words that continue the text too: they come again, unless a new word follows that continues it."""
        self.held_place = 0

    def take(self, word: TimedWord) -> list[TimedWord]:
        """Take one more word; those whose times are certain now, from the start of the reply's audio."""
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
        """Return whether a word starts before the last one, or with it where that is alone and of another length."""
        last = self.last
        if last is None or word.start_ms < last.start_ms:
            return last is not None
        return last is self.first and word.start_ms == last.start_ms and word.end_ms != last.end_ms

    def forward(self, word: TimedWord) -> TimedWord:
        """The next word of this stretch."""
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
    """An entry of several words: when it sounds, and where it is in the text."""

    start_ms: int
    end_ms: int
    begin: int
    end: int


class WordMatch:
    """The words of one reply in the order of their starts, and where each ends in a text."""

    def __init__(self, words: Iterable[TimedWord], text: str, counts: Sequence[int] = ()) -> None:
        self.text = text
        self.counts = counts
        """How many words of each source are in it."""
        self.stretches = Stretches(text)
        self.ends_ms = array("q")
        """When the audio of each word that was found ends, in ms; sorted."""
        self.places = array("q")
        """How far the text goes through the words that had ended by then."""
        self.clauses: list[Clause] = []
        """The entries of several words, by their starts."""
        self.has_estimates = False
        """True if the times of any word are an estimate."""
        self.newest: TimedWord | None = None
        """The word that starts last, whether or not it was found."""
        self.reached = 0
        """The end of the last word that was found in the text."""
        self.early: list[tuple[int, int]] = []
        """Words that end before others which started earlier, still to be put among them."""
        reported = sorted(words, key=BY_TIME)
        self.reported = reported[-1] if reported else None
        """The word that was reported last."""
        for word in newest_by_start(self.placed(reported)):
            self.add(word)

    def placed(self, reported: Iterable[TimedWord]) -> Iterator[TimedWord]:
        return chain.from_iterable(map(self.stretches.take, reported))

    def extend(self, known: Sequence[Sequence[TimedWord]], counts: Sequence[int], text: str) -> bool:
        """Add the words that are new, if they start after the others; False where all must be matched again."""
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
        """Find one more word, which starts after the others."""
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
        """Return where the last word that was heard at a position ends in the text."""
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
        """The entry of several words that was being said at a position: which of them were heard is a guess."""
        place = bisect_left(self.clauses, position_ms, key=START_MS)
        clause = self.clauses[place - 1] if place else None
        return clause if clause is not None and position_ms < clause.end_ms else None

    @property
    def whole_ms(self) -> int | None:
        """The end of the text's last word; None while it is not among the words."""
        if not self.reached or after_closing_marks(self.text, self.reached) < len(self.text):
            return None
        self.end_at(0)
        return self.ends_ms[bisect_left(self.places, self.reached)]


START_MS = attrgetter("start_ms")


def newest_by_start(words: Iterable[TimedWord]) -> list[TimedWord]:
    """The words by their starts; of two with one start a stated one, then that of the later `ts`, then the later."""
    ranked = sorted(words, key=lambda word: (word.start_ms, not word.estimated, word.ts, word.order))
    return [*{word.start_ms: word for word in ranked}.values()]


def find_word(text: str, word: str, start: int) -> tuple[int, int] | None:
    """Return where a whole word is in `text` from `start` on, as it is, else without case and marks; or None."""
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
    """Return whether no word is divided where this part of a text begins or ends."""
    return not (begin and is_inside_word(text, begin)) and not (end < len(text) and is_inside_word(text, end))


def has_several_words(text: str) -> bool:
    """Return whether a text can be cut after a word that is not its last."""
    bare = without_outer_marks(text)
    return 0 < whole_word_end(bare, len(bare) - 1) < len(bare)


# Heard texts, with white space as runs


class Prefixes:
    """The beginnings of a growing text that have just the words of another growing text: a range of their lengths."""

    __slots__ = ("at", "before", "longest", "spaced", "times", "words")

    def __init__(self) -> None:
        self.words = 0
        """How many of the words have been found."""
        self.at = 0
        """Their end; or, before a word that is still to be found, its beginning."""
        self.spaced = True
        """True if white space is between them and the next word."""
        self.before = (0, 0, True)
        """These three before the last word was found, which may still grow."""
        self.longest = 0
        """The length with the white space after the last word."""
        self.times: dict[int, tuple[tuple[int, int], list[int]]] = {}
        """By block of the timeline: what it was when it was looked through, and the times of lengths in the range."""

    def step_back(self, word: int) -> None:
        """Forget about a word that has become another."""
        if self.words > word:
            self.words, self.at, self.spaced = self.before
        self.longest, self.times = 0, {}

    def find(self, text: str, words: list[str]) -> bool:
        """Go on looking for the words where `text` has grown; whether all of them are there."""
        while self.words < len(words):
            begin = skip_white_space(text, self.at)
            self.spaced |= begin > self.at
            self.at, word = begin, words[self.words]
            if begin + len(word) > len(text) or not self.spaced or not text.startswith(word, begin):
                return False
            self.before = self.words, begin, True
            self.words, self.at, self.spaced = self.words + 1, begin + len(word), False
        reach = skip_white_space(text, max(self.at, self.longest))
        if reach != self.longest:
            self.longest, self.times = reach, {}
        return True

    def times_in(self, block: Block) -> list[int]:
        """The times of the entries of a block whose lengths are in the range, sorted."""
        # Entries are only added, and the later half split off: with its length and its last entry a block is the same.
        version = len(block), block.numbers[-2]
        known, times = self.times.get(id(block), (None, []))
        if known != version:
            values = block.numbers[2::WIDTH]
            times = [block.ts(i) for i, value in enumerate(values) if self.at <= value <= self.longest]
            self.times[id(block)] = version, times
        return times


class WholeText:
    """All of the text of a reply, made ready to be looked for among heard texts."""

    __slots__ = ("events", "known", "letters", "text", "together", "words")

    def __init__(self) -> None:
        self.events = -1
        """The number of events that the text was made of."""
        self.text = ""
        self.words: list[str] = []
        self.letters = 0
        """Characters of the words."""
        self.together: str | None = None
        self.known: dict[int, Prefixes] = {}
        """By timeline of heard texts."""

    def update(self, events: int, text: str) -> None:
        """Take the text as it is now; mostly it has only become longer."""
        if text.startswith(self.text) and self.words:
            self.extend(text)
        elif text != self.text or events < 0:
            self.known.clear()
            self.words = text.split()
            self.letters = sum(map(len, self.words))
        self.events, self.text, self.together = events, text, None

    def extend(self, text: str) -> None:
        if len(text) == len(self.text):
            return
        last = self.words.pop() if not self.text[-1].isspace() else ""
        for prefixes in self.known.values():
            prefixes.step_back(len(self.words))
        more = (last + text[len(self.text) :]).split()
        self.words += more
        self.letters += sum(map(len, more)) - len(last)

    def joined(self) -> str:
        if self.together is None:
            self.together = " ".join(self.words)
        return self.together

    def first_equal(self, series: TextTimeline, until: int, since: int) -> int | None:
        """Return when a heard text was first equal to this one, from `since` to before `until`."""
        times = series.other_times.get(self.joined(), []) if series.other_times else []
        first = first_between(times, until, since)
        if len(series.texts.longest) < self.letters:
            return first
        prefixes = self.known.setdefault(id(series), Prefixes())
        if not prefixes.find(series.texts.longest, self.words):
            return first
        for block, _, _ in series.lengths.slices(until, since):
            if block.highest >= prefixes.at:
                ts = first_between(prefixes.times_in(block), until, since)
                if ts is not None:
                    return ts if first is None else min(first, ts)
        return first


def first_between(times: list[int], until: int, since: int) -> int | None:
    place = bisect_left(times, since)
    return times[place] if place < len(times) and times[place] < until else None


def whole_text(state: State, reply: Reply, sources: list[Source]) -> WholeText:
    """The text of a reply; it is kept where looking at it again would cost more than the memory is worth."""
    text, events = reply.generation.text(), reply.generation.events
    whole: WholeText | None = state.memo.whole_texts.get(reply.id)
    if whole is None:
        whole = WholeText()
        playbacks = [source.evidence.playback for source in sources]
        series = (getattr(playback, name, None) for playback in playbacks for name in ("texts", "estimated_texts"))
        if len(text) > SHORT or any(one is not None and len(one.lengths.numbers) > SHORT for one in series):
            state.memo.whole_texts[reply.id] = whole
    if whole.events != events:
        whole.update(events, text)
    return whole


def skip_white_space(text: str, index: int) -> int:
    while index < len(text) and text[index].isspace():
        index += 1
    return index
