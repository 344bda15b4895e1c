"""How much of a reply was really heard before the user cut in (design, section 4, rules 4 and 5).

The evidence is what the engine reported: heard text, counts, audio positions, word times, and when the text was
generated. Positions and word times are ms from the start of the reply's audio; `ts` is Unix ms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple
from unicodedata import category

from msgspec import Struct, field

from voicemem.transcript.timeline import AFTER_ALL, TextTimeline, TimedText, TimedValue, Timeline

SPACELESS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3000-\u30ff\u3100-\u31bf\u31f0-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")  # fmt: skip  # noqa: E501
"""A character of a script without spaces between words: Thai, Lao, Burmese, Khmer, Chinese, Japanese."""
TRAILING = re.compile(r"(?:[^\w\s]+(?=\s|\Z)|[。，、！？；：…」』）》”’]+)?\s*")
"""What is kept after the last heard word: its closing punctuation, and the white space behind that."""
JOINERS = "'’-.,"
"""Part of a word when a letter or digit stands on both sides: don't, e-mail, 3.14."""


class Interruption(Struct, array_like=True, frozen=True, gc=False):
    """One interruption of a reply, with the evidence that came with it."""

    ts: int
    order: int
    """Position in the journal; of two with the same `ts`, the later one is the newer."""
    heard_text: str | None = None
    heard_chars: int | None = None
    audio_end_ms: int | None = None
    estimated: bool = False
    closing: bool = False
    """Made by the close of the session, not by the user: all evidence that has arrived counts, whatever its `ts`."""
    cause: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def until(self) -> int:
        """The `ts` up to which evidence counts for it; a close and the evidence may come from different clocks."""
        return AFTER_ALL if self.closing else self.ts


class TimedWord(Struct, array_like=True, frozen=True, gc=False):
    """One word of a reply's audio; `ts` is when the engine reported it."""

    ts: int
    start_ms: int
    end_ms: int
    text: str


class Playback(Struct, array_like=True, gc=False):
    """What was reported about the playback of one reply, or of a turn whose reply was not named."""

    texts: TextTimeline = field(default_factory=TextTimeline)
    audio: Timeline = field(default_factory=Timeline)
    totals: Timeline = field(default_factory=Timeline)
    ends: Timeline = field(default_factory=Timeline)
    words: list[TimedWord] = []
    metadata: list[tuple[int, dict[str, Any]]] = []
    """The metadata of its events, each with the event's `ts`."""


class PlaybackWindow(NamedTuple):
    """The part of a playback that is about one reply: what was reported from `since` up to `until`."""

    playback: Playback
    since: int
    until: int


class ReplyEvidence(NamedTuple):
    """All that is known about a reply and may show how much of it was heard."""

    original: str
    """Everything that was generated."""
    generated: Callable[[int], str]
    """Gives the text that was generated up to a `ts`."""
    complete: bool
    """Whether the LLM has finished."""
    windows: Sequence[PlaybackWindow]
    interruptions: Sequence[Interruption]


class HeardText(NamedTuple):
    """The heard text, and how it was found: None for exact text, else `aligned` or `estimated`."""

    text: str
    method: str | None


def has_progress(evidence: ReplyEvidence) -> bool:
    """Whether any playback was reported; word times and totals alone do not count."""
    return any(
        series.last(window.until, window.since)
        for window in evidence.windows
        for series in (window.playback.texts, window.playback.audio, window.playback.ends)
    )


def was_heard_to_end(evidence: ReplyEvidence, until: int) -> bool:
    """Whether playback up to `until` shows that all of the reply was heard.

    Until the LLM has finished, no text and no position can be the end of the reply, only a `tts.done` (rule 5).
    """
    if any(t.playback.ends.last(min(until, t.until), t.since) for t in evidence.windows):
        return True
    if not evidence.complete:
        return False
    texts = [
        interruption.heard_text
        for interruption in evidence.interruptions
        if interruption.heard_text is not None and interruption.ts <= until
    ]
    last = last_text(evidence, until)
    if last is not None:
        texts.append(last.text)
    whole = evidence.original.split()
    return any(text.split() == whole for text in texts) or audio_reached_end(evidence, until)


def audio_reached_end(evidence: ReplyEvidence, until: int) -> bool:
    """Whether the audio position reached the last total, or the last word of the whole text."""
    position = last_position(evidence, until)
    if position is None:
        return False
    total = largest_total(evidence, AFTER_ALL)
    if total is not None:
        return position.value >= total
    return text_by_word_times(evidence, position.value, evidence.original) == evidence.original


def find_heard_text(evidence: ReplyEvidence, interruptions: Sequence[Interruption]) -> HeardText:
    """What was heard of a reply that `interruptions` (at least one) cut: the best evidence of all of them."""
    # The smallest wins: any kind that was stated before any that was estimated (rule 4), then the better kind, then
    # the newer interruption.
    candidates = [
        (estimated, kind, -interruption.ts, -interruption.order, text)
        for interruption in interruptions
        for estimated, kind, text in collect_evidence(evidence, interruption)
    ]
    estimated, kind, _, _, text = min(candidates)
    if estimated:
        return HeardText(text, "estimated")
    return HeardText(text, "aligned" if kind in (COUNT, WORDS) else None)


EXACT, COUNT, WORDS, PROGRESS, SHARE, GENERATED = range(6)
"""The kinds of evidence, the best first; in the table of rule 4: a, b, c, d, e, h."""


def collect_evidence(evidence: ReplyEvidence, interruption: Interruption) -> Iterator[tuple[bool, int, str]]:
    """The evidence for one interruption, one item a kind: (estimated, kind, heard text)."""
    if interruption.heard_text is not None:
        yield interruption.estimated, EXACT, interruption.heard_text
    generated = evidence.generated(interruption.until)
    if interruption.heard_chars is not None:
        # Text that is generated later must not change what was heard, so it counts only if the count needs it.
        text = generated if interruption.heard_chars <= len(generated) else evidence.original
        yield interruption.estimated, COUNT, whole_word_prefix(text, interruption.heard_chars)
    position = interruption_position(evidence, interruption)
    if position is not None:
        aligned = text_by_word_times(evidence, position.value, generated)
        if aligned is not None:
            yield position.estimated, WORDS, aligned
    said = last_text(evidence, interruption.until)
    if said is not None:
        yield said.estimated, PROGRESS, said.text
    total = largest_total(evidence, interruption.until)
    if position is not None and total:
        share = len(generated) * min(position.value, total) // total
        yield True, SHARE, whole_word_prefix(generated, share)
    yield True, GENERATED, generated


def interruption_position(evidence: ReplyEvidence, interruption: Interruption) -> TimedValue | None:
    """The audio position of an interruption: its own, else the last that playback reported up to it."""
    if interruption.audio_end_ms is not None:
        return TimedValue(interruption.ts, interruption.audio_end_ms, interruption.estimated)
    return last_position(evidence, interruption.until)


def last_position(evidence: ReplyEvidence, until: int) -> TimedValue | None:
    positions = (t.playback.audio.last(min(until, t.until), t.since) for t in evidence.windows)
    return max((p for p in positions if p), key=lambda position: position.ts, default=None)


def last_text(evidence: ReplyEvidence, until: int) -> TimedText | None:
    texts = (t.playback.texts.last(min(until, t.until), t.since) for t in evidence.windows)
    return max((said for said in texts if said), key=lambda said: said.ts, default=None)


def largest_total(evidence: ReplyEvidence, until: int) -> int | None:
    totals = (t.playback.totals.largest(min(until, t.until), t.since) for t in evidence.windows)
    return max((total for total in totals if total is not None), default=None)


def text_by_word_times(evidence: ReplyEvidence, position_ms: int, generated: str) -> str | None:
    """The text through the last word that had ended at a position; None when no word times are known.

    `generated`, the text that existed by then, is tried first: text that came later must not change what was heard
    (rule 4, "Cutting"). Only if more of the heard words are in the whole original is that cut. A word is identified by
    its `start_ms`; of two with the same, the one of the later `ts` counts, then the one that arrived later.
    """
    known = [
        word for window in evidence.windows for word in window.playback.words if window.since <= word.ts <= window.until
    ]
    if not known:
        return None
    by_start = {word.start_ms: word for word in sorted(known, key=attrgetter("ts"))}
    words = [by_start[start].text.strip() for start in sorted(by_start) if by_start[start].end_ms <= position_ms]
    end, found = match_words(generated, words)
    later_end, later_found = match_words(evidence.original, words)
    if words and not later_found and not found:
        return None  # these are not words of this text, so they show nothing about it
    text, end = (generated, end) if found >= later_found else (evidence.original, later_end)
    return with_closing_punctuation(text, end) if end else ""


def match_words(text: str, words: Sequence[str]) -> tuple[int, int]:
    """Where the last of the words ends in a text, and how many of them were found in it, one after the other."""
    end, count = 0, 0
    for word in words:
        found = find_word(text, word, end) if word else None
        if found is not None:
            end, count = found, count + 1
    return end, count


def find_word(text: str, word: str, start: int) -> int | None:
    """Where `word` ends in `text` from `start` on, or None.

    The search is short: 48 characters leave room for a few words that the engine left out, and a word that is missing
    here must not be found in a later sentence, which would skip everything up to there.
    """
    bare = word.strip(".,!?;:\"'") or word
    window = text[start : start + len(word) + 48]
    match = re.search(re.escape(word), window) or re.search(re.escape(bare), window, re.IGNORECASE)
    return start + match.end() if match else None


def whole_word_prefix(text: str, length: int) -> str:
    """The first `length` code points, cut back to the end of a whole word, with the white space after it."""
    end = min(length, len(text))
    while 0 < end < len(text) and is_inside_word(text, end):
        end -= 1
    return with_closing_punctuation(text, end) if end else ""


def is_inside_word(text: str, index: int) -> bool:
    """Whether a cut before `text[index]` would split a word; scripts without spaces can be cut anywhere."""
    before, after = text[index - 1], text[index]
    if is_mark(after):
        return True
    if SPACELESS.match(before) or SPACELESS.match(after):
        return False
    if is_word_char(before) and is_word_char(after):
        return True
    joined = after in JOINERS and is_word_char(before) and index + 1 < len(text) and is_word_char(text[index + 1])
    return joined or (before in JOINERS and is_word_char(after) and index > 1 and is_word_char(text[index - 2]))


def is_word_char(character: str) -> bool:
    return character.isalnum() or character == "_" or is_mark(character)


def is_mark(character: str) -> bool:
    """Whether a character belongs to the one before it: accents, vowel signs, joiners of emoji."""
    return category(character).startswith("M") or character == "\u200d"


def with_closing_punctuation(text: str, end: int) -> str:
    match = TRAILING.match(text, end)
    return text[: match.end()] if match else text[:end]
