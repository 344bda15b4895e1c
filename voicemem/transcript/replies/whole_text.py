"""When a heard text was all of a reply: equal to its text, with white space as runs (docs/memory.md, rule 5).

A long text is looked at once, and what grows only where it has grown, so that an event costs no more when a reply has
become long or many heard texts were reported.
"""

from __future__ import annotations

from bisect import bisect_left

from voicemem.transcript.replies.evidence import Source
from voicemem.transcript.state import Reply, State
from voicemem.transcript.timeline import WIDTH, Block, TextTimeline

SHORT = 1_000
"""Characters of a text, and numbers of a timeline, up to which looking again costs less than keeping what was found."""


class Prefixes:
    """Which beginnings of a growing text have just the words of another growing text: a range of their lengths."""

    __slots__ = ("at", "before", "longest", "spaced", "times", "words")

    def __init__(self) -> None:
        self.words = 0
        """How many of the words have been found."""
        self.at = 0
        """Where they end; or, before a word that is still to be found, where that begins."""
        self.spaced = True
        """Whether white space stands between them and the next word."""
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
        """The words with single spaces."""
        if self.together is None:
            self.together = " ".join(self.words)
        return self.together

    def first_equal(self, series: TextTimeline, until: int, since: int) -> int | None:
        """When a heard text was first equal to this one, from `since` to before `until`."""
        times = series.other_times.get(self.joined(), []) if series.other_times else []
        found = first_between(times, until, since)
        if len(series.longest) < self.letters:
            return found
        prefixes = self.known.setdefault(id(series), Prefixes())
        if not prefixes.find(series.longest, self.words):
            return found
        for block, _, _ in series.lengths.slices(until, since):
            if block.highest >= prefixes.at:
                ts = first_between(prefixes.times_in(block), until, since)
                if ts is not None:
                    return ts if found is None else min(found, ts)
        return found


def first_between(times: list[int], until: int, since: int) -> int | None:
    place = bisect_left(times, since)
    return times[place] if place < len(times) and times[place] < until else None


def whole_text(state: State, reply: Reply, sources: list[Source]) -> WholeText:
    """The text of a reply; it is kept where looking at it again would cost more than the memory is worth."""
    text, events = reply.generation.text(), reply.generation.events
    whole: WholeText | None = state.memo.whole_texts.get(reply.id)
    if whole is None:
        whole = WholeText()
        if len(text) > SHORT or any(map(has_many_texts, sources)):
            state.memo.whole_texts[reply.id] = whole
    if whole.events != events:
        whole.update(events, text)
    return whole


def has_many_texts(source: Source) -> bool:
    playback = source.evidence.playback
    series = () if playback is None else (playback.texts, playback.estimated_texts)
    return any(one is not None and len(one.lengths.numbers) > SHORT for one in series)


def skip_white_space(text: str, index: int) -> int:
    while index < len(text) and text[index].isspace():
        index += 1
    return index
