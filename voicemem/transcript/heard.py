"""How much of a reply was really heard before the user cut in (design, section 4, rules 4 and 5).

The evidence is what the engine reported: heard text, counts, audio positions, word times, and when the text was
generated. Positions and word times are ms from the start of the reply's audio; `ts` is Unix ms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unicodedata import category

from msgspec import Struct, field

from voicemem.transcript.timeline import NEVER, Mark, Said, Series, TextSeries

SPACELESS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3000-\u30ff\u3100-\u31bf\u31f0-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")  # fmt: skip  # noqa: E501
"""A character of a script that writes words without spaces: Thai, Lao, Burmese, Khmer, Chinese, Japanese."""
TRAILING = re.compile(r"(?:[^\w\s]+(?=\s|\Z)|[。，、！？；：…」』）》”’]+)?\s*")
"""What belongs to the word before it: closing punctuation, and the white space after it."""
JOINERS = "'’-.,"
"""Inside a word when a letter or digit stands on both sides: don't, e-mail, 3.14."""


class Cut(Struct, frozen=True, gc=False):
    """One interruption of a reply, with the evidence that came with it."""

    ts: int
    order: int
    """Position in the journal; of two at one `ts`, the later is the newer."""
    heard_text: str | None = None
    heard_chars: int | None = None
    audio_end_ms: int | None = None
    estimated: bool = False
    closing: bool = False
    """Made by the close of the session, not by the user: all that was reported by then counts, whatever its `ts`."""
    cause: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def until(self) -> int:
        """Up to when evidence counts for it; the close may come from another clock than the evidence."""
        return NEVER if self.closing else self.ts


class TimedWord(Struct, frozen=True, gc=False):
    """One word of a reply's audio, and when the engine said so (`ts`)."""

    ts: int
    start_ms: int
    end_ms: int
    text: str


class Playback(Struct, gc=False):
    """What was reported about the playing of one reply, or of a turn whose reply was not named."""

    texts: TextSeries = field(default_factory=TextSeries)
    audio: Series = field(default_factory=Series)
    totals: Series = field(default_factory=Series)
    ends: Series = field(default_factory=Series)
    words: list[TimedWord] = []
    metadata: list[tuple[int, dict[str, Any]]] = []
    """Of its events, each with the event's `ts`."""


class Track(NamedTuple):
    """The part of a playback that is about one reply: what was said from `since` up to `until`."""

    playback: Playback
    since: int
    until: int


class Spoken(NamedTuple):
    """All that is known of a reply, as evidence."""

    original: str
    """Everything that was generated."""
    generated: Callable[[int], str]
    """The text that was generated until a `ts`."""
    complete: bool
    """Whether the LLM has finished."""
    tracks: Sequence[Track]
    cuts: Sequence[Cut]


class Heard(NamedTuple):
    """The heard text and how it was found: None for exact text, else `aligned` or `estimated`."""

    text: str
    how: str | None


def has_progress(reply: Spoken) -> bool:
    """Whether any playback was reported; timing alone is none."""
    return any(
        series.last(track.until, track.since)
        for track in reply.tracks
        for series in (track.playback.texts, track.playback.audio, track.playback.ends)
    )


def heard_to_end(reply: Spoken, until: int) -> bool:
    """Whether playback up to `until` shows that all of the reply was heard."""
    if any(t.playback.ends.last(min(until, t.until), t.since) for t in reply.tracks):
        return True
    if not reply.complete:
        return False
    texts = [cut.heard_text for cut in reply.cuts if cut.heard_text is not None and cut.ts <= until]
    last = last_text(reply, until)
    if last is not None:
        texts.append(last.text)
    whole = reply.original.split()
    return any(text.split() == whole for text in texts) or audio_reached_end(reply, until)


def audio_reached_end(reply: Spoken, until: int) -> bool:
    """Whether the audio position reached the last total, or the last word of the whole text."""
    position = last_position(reply, until)
    if position is None:
        return False
    total = largest_total(reply, NEVER)
    if total is not None:
        return position.value >= total
    return heard_words(reply, position.value, reply.original) == reply.original


def heard(reply: Spoken, cuts: Sequence[Cut]) -> Heard:
    """What was heard of a reply that `cuts` (at least one) interrupted: the best evidence of them all."""
    candidates = [
        (estimated, place, -cut.ts, -cut.order, text) for cut in cuts for estimated, place, text in evidence(reply, cut)
    ]
    estimated, place, _, _, text = min(candidates)
    if estimated:
        return Heard(text, "estimated")
    return Heard(text, "aligned" if place in (COUNT, WORDS) else None)


EXACT, COUNT, WORDS, PROGRESS, SHARE, GENERATED = range(6)
"""The kinds of evidence, the best first."""


def evidence(reply: Spoken, cut: Cut) -> Iterator[tuple[bool, int, str]]:
    """Each kind of evidence that there is for one cut: (estimated, kind, heard text)."""
    if cut.heard_text is not None:
        yield cut.estimated, EXACT, cut.heard_text
    generated = reply.generated(cut.until)
    if cut.heard_chars is not None:
        # What came later must not change what was heard, so it counts only when the count reaches beyond the earlier.
        text = generated if cut.heard_chars <= len(generated) else reply.original
        yield cut.estimated, COUNT, prefix(text, cut.heard_chars)
    position = position_of(reply, cut)
    if position is not None:
        aligned = heard_words(reply, position.value, generated)
        if aligned is not None:
            yield position.estimated, WORDS, aligned
    said = last_text(reply, cut.until)
    if said is not None:
        yield said.estimated, PROGRESS, said.text
    total = largest_total(reply, cut.until)
    if position is not None and total:
        share = len(generated) * min(position.value, total) // total
        yield True, SHARE, prefix(generated, share)
    yield True, GENERATED, generated


def position_of(reply: Spoken, cut: Cut) -> Mark | None:
    """The audio position of a cut: its own, else the last that playback reported up to it."""
    if cut.audio_end_ms is not None:
        return Mark(cut.ts, cut.audio_end_ms, cut.estimated)
    return last_position(reply, cut.until)


def last_position(reply: Spoken, until: int) -> Mark | None:
    marks = (t.playback.audio.last(min(until, t.until), t.since) for t in reply.tracks)
    return max((m for m in marks if m), key=lambda mark: mark.ts, default=None)


def last_text(reply: Spoken, until: int) -> Said | None:
    texts = (t.playback.texts.last(min(until, t.until), t.since) for t in reply.tracks)
    return max((said for said in texts if said), key=lambda said: said.ts, default=None)


def largest_total(reply: Spoken, until: int) -> int | None:
    totals = (t.playback.totals.largest(min(until, t.until), t.since) for t in reply.tracks)
    return max((total for total in totals if total is not None), default=None)


def heard_words(reply: Spoken, position_ms: int, generated: str) -> str | None:
    """The text through the last word that had ended by a position; None when no word times are known.

    It is taken from the text that was generated by then, unless words were heard that only later text has.
    """
    by_start = {
        word.start_ms: word
        for track in reply.tracks
        for word in track.playback.words
        if track.since <= word.ts <= track.until
    }
    if not by_start:
        return None
    words = [by_start[start].text.strip() for start in sorted(by_start) if by_start[start].end_ms <= position_ms]
    end, found = through_words(generated, words)
    later_end, later_found = through_words(reply.original, words)
    if words and not later_found and not found:
        return None  # the words are not those of this text, so they say nothing about it
    text, end = (generated, end) if found >= later_found else (reply.original, later_end)
    return with_trailing(text, end) if end else ""


def through_words(text: str, words: Sequence[str]) -> tuple[int, int]:
    """Where the last of the words ends in a text, and how many of them were found, one after the other."""
    end, count = 0, 0
    for word in words:
        found = find_word(text, word, end) if word else None
        if found is not None:
            end, count = found, count + 1
    return end, count


def find_word(text: str, word: str, start: int) -> int | None:
    """Where `word` ends in `text`, looking from `start` on, but not far: a word may stand again much later."""
    bare = word.strip(".,!?;:\"'") or word
    window = text[start : start + len(word) + 48]
    match = re.search(re.escape(word), window) or re.search(re.escape(bare), window, re.IGNORECASE)
    return start + match.end() if match else None


def prefix(text: str, length: int) -> str:
    """The first `length` code points, back to the end of a whole word, with the white space after it."""
    end = min(length, len(text))
    while 0 < end < len(text) and inside_word(text, end):
        end -= 1
    return with_trailing(text, end) if end else ""


def inside_word(text: str, index: int) -> bool:
    """Whether a cut before `text[index]` would part a word; scripts without spaces can be cut anywhere."""
    before, after = text[index - 1], text[index]
    if is_mark(after):
        return True
    if SPACELESS.match(before) or SPACELESS.match(after):
        return False
    if is_word(before) and is_word(after):
        return True
    joined = after in JOINERS and is_word(before) and index + 1 < len(text) and is_word(text[index + 1])
    return joined or (before in JOINERS and is_word(after) and index > 1 and is_word(text[index - 2]))


def is_word(character: str) -> bool:
    return character.isalnum() or character == "_" or is_mark(character)


def is_mark(character: str) -> bool:
    """Whether it belongs to the character before it: accents, vowel signs, joiners of emoji."""
    return category(character).startswith("M") or character == "\u200d"


def with_trailing(text: str, end: int) -> str:
    match = TRAILING.match(text, end)
    return text[: match.end()] if match else text[:end]
