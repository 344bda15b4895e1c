"""The position of a reply's text in its audio, as far as the TTS has shown it.

Text goes to the TTS (`voice`), audio comes out (`audio_ms`), and at some time a piece of text, a sentence or the whole
reply, has all of its audio (`close_span`). In a span of known length, each word gets its share of the time. In the span
still being made, the voice is assumed to continue at the same rate.
"""

import re
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from voicemem.protocol.types import SPACELESS
from voicemem.transcript.whole_words import after_closing_marks, prefix_of_units, units_of

MAX_CHARS = 60_000
"""The most characters of one reply, an hour of speech. Text beyond has no position in the audio."""
PIECE = re.compile(rf"{SPACELESS.pattern}|(?:(?!{SPACELESS.pattern})\S)+")


class SpokenWord(NamedTuple):
    """A word with its times, in ms from the start of its reply's audio."""

    text: str
    start_ms: int
    end_ms: int


class VoiceRate:
    """The rate of a voice, from the newest spans of known length. For units, see `units_of`."""

    def __init__(self) -> None:
        self.spans: deque[tuple[int, float]] = deque(maxlen=20)

    def add(self, units: int, span_ms: float) -> None:
        if units and span_ms >= 400:  # most of a shorter one is silence
            self.spans.append((units, span_ms))

    @property
    def units_per_ms(self) -> float:
        if not self.spans:
            return 0.015  # the usual rate
        return sum(units for units, _ in self.spans) / sum(span_ms for _, span_ms in self.spans)


class SpokenText:
    """The text of one reply that the TTS got, and the length of the audio of its pieces."""

    def __init__(self, rate: VoiceRate) -> None:
        self.rate = rate
        self.text = ""
        self.closed_chars = 0
        """The characters of the text whose audio has a known length."""
        self.closed_ms = 0.0
        self.audio_ms = 0.0

    @property
    def is_open(self) -> bool:
        """True if there is text without audio yet, or audio without text."""
        return self.closed_chars < len(self.text) or self.closed_ms < self.audio_ms

    def voice(self, text: str) -> None:
        self.text += text[: MAX_CHARS - len(self.text)]

    def close_span(self, text: str | None, audio_ms: float | None) -> list[SpokenWord]:
        """End a span: the audio so far is of the text through `text`, or of all text. Return the words of the span.

        `audio_ms` is the length of only this span, if the TTS reports it.
        """
        end_ms = self.audio_ms if audio_ms is None else self.closed_ms + audio_ms
        self.audio_ms = max(self.audio_ms, end_ms)
        end = self.end_of(text)  # it may add to the text
        span = self.text[self.closed_chars : end]
        words = list(spread(span, self.closed_ms, end_ms))
        if words:
            self.rate.add(units_of(span), end_ms - self.closed_ms)
        self.closed_chars += len(span)
        self.closed_ms = end_ms
        return words

    def end_of(self, text: str | None) -> int:
        """Return the end of a span in the text. Text that the TTS was not known to have is added."""
        if text is None:
            return len(self.text)
        bare = text.strip()
        start = self.text.find(bare, self.closed_chars)
        if start >= 0 and not self.text[self.closed_chars : start].strip():
            return start + len(bare)
        if self.closed_chars == len(self.text):
            self.voice(text)
            return len(self.text)
        return min(len(self.text), self.closed_chars + len(text))

    def heard_at(self, position_ms: float) -> str | None:
        """Return the text up to a position after the last span of known length; None if the spans show it."""
        if position_ms <= self.closed_ms or self.closed_chars == len(self.text):
            return None
        rest = self.text[self.closed_chars :]
        leading = units_of(rest) - units_of(rest.lstrip())
        units = int((position_ms - self.closed_ms) * self.rate.units_per_ms) + leading
        return self.text[: self.closed_chars] + prefix_of_units(rest, units)


def spread(text: str, start_ms: float, end_ms: float) -> Iterator[SpokenWord]:
    """Yield the words of a text that sounds between two times, each with a share by its length."""
    bare = text.strip()
    units = units_of(bare)
    before, place = 0, 0
    for match in PIECE.finditer(bare):
        before += units_of(bare[place : match.start()])
        after = before + units_of(match.group())
        from_ms, until_ms = (start_ms + (end_ms - start_ms) * at / units for at in (before, (before + after) / 2))
        yield SpokenWord(match.group(), round(from_ms), round(until_ms))
        before, place = after, match.end()


def place_of(heard: str, text: str) -> int:
    """Return the end of the TTS's text in the reply's own, which may have marks that are not spoken."""
    if text.startswith(heard):
        return len(heard)
    at = 0
    for match in PIECE.finditer(heard):
        start = text.find(match.group(), at, at + len(match.group()) + 48)
        at = at if start < 0 else start + len(match.group())
    return after_closing_marks(text, at) if at else 0
