"""A voice whose audio says which word it is, with the word times of a recorded call."""

from __future__ import annotations

import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

SAMPLE_RATE = 16_000
TAIL_MS = 60
LOUD = 5000
"""Samples of words begin here: what is lower is a pause."""


class Word(NamedTuple):
    """A word of a text to speak, and when it sounds in the audio of that text."""

    text: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class Speech:
    """A text, and how a voice speaks it."""

    text: str
    words: tuple[Word, ...]


class SpokenPiece(NamedTuple):
    """Audio of some words of a speech; `words` have their times from the start of this piece."""

    pcm: bytes
    words: list[tuple[str, float]]


class Voice:
    """Speaks speeches piece by piece. Each sample of a word is the number of the word in the call."""

    def __init__(self, speeches: Sequence[Speech]) -> None:
        self.speeches = speeches
        self.spoken = [0] * len(speeches)
        """How many words of each have been spoken."""
        self.codes: list[tuple[int, int, int]] = []
        """For each number: speech, word, and samples of the word."""

    def speak(self, text: str) -> SpokenPiece:
        """The next piece of the speech that goes on with this text."""
        wanted = text.split()
        if not wanted:
            return SpokenPiece(b"", [])
        number = next(at for at, one in enumerate(self.speeches) if self.goes_on(at, wanted))
        words, first = self.speeches[number].words, self.spoken[number]
        last = first + len(wanted)
        self.spoken[number] = last
        begin = words[first].start_ms if first else 0
        until = words[last].start_ms if last < len(words) else words[-1].end_ms + TAIL_MS
        samples = array.array("h", bytes(2 * self.samples(until - begin)))
        for at in range(first, last):
            start, end = (self.samples(ms - begin) for ms in words[at][1:])
            self.codes.append((number, at, end - start))
            samples[start:end] = array.array("h", [LOUD + len(self.codes)]) * (end - start)
        return SpokenPiece(
            samples.tobytes(), [(words[at].text, (words[at].start_ms - begin) / 1000) for at in range(first, last)]
        )

    def goes_on(self, number: int, wanted: list[str]) -> bool:
        first = self.spoken[number]
        return [one.text for one in self.speeches[number].words[first : first + len(wanted)]] == wanted

    @staticmethod
    def samples(ms: float) -> int:
        return round(ms * SAMPLE_RATE / 1000)


class Truth(NamedTuple):
    """How many words of a speech had begun and had ended when it stopped."""

    begun: int
    ended: int

    def wrong(self, words: int) -> int:
        """How many words a memory has too many (or, below 0, too few)."""
        return max(0, words - self.begun) + min(0, words - self.ended)


class Device:
    """Plays what it gets, `buffer_ms` after it came, until it is cleared or the caller is gone."""

    def __init__(self, buffer_ms: float = 0.0) -> None:
        self.buffer_ms = buffer_ms
        self.parts: list[tuple[float, float, bytes]] = []
        """What is played from when to when, in seconds of the loop."""
        self.gone_at: float | None = None

    def take(self, audio: bytes, now: float) -> bool:
        if self.gone_at is not None:
            return False
        begin = max(self.parts[-1][1] if self.parts else 0.0, now + self.buffer_ms / 1000)
        self.parts.append((begin, begin + len(audio) / 2 / SAMPLE_RATE, audio))
        return True

    def clear(self, now: float) -> None:
        """Throw away what has not been played."""
        kept = []
        for begin, end, audio in self.parts:
            if begin < now:
                samples = min(len(audio) // 2, round((now - begin) * SAMPLE_RATE))
                kept.append((begin, min(end, now), audio[: 2 * samples]))
        self.parts = kept

    def hang_up(self, now: float) -> None:
        self.clear(now)
        self.gone_at = now

    def truth(self, voice: Voice) -> list[Truth]:
        """What was heard of each speech."""
        counts = Counter(sample - LOUD for _, _, audio in self.parts for sample in array.array("h", audio))
        heard = [counts[code] for code in range(len(voice.codes) + 1)]
        found = []
        for number in range(len(voice.speeches)):
            codes = [(code, word, size) for code, (speech, word, size) in enumerate(voice.codes, 1) if speech == number]
            begun = max((word + 1 for code, word, _ in codes if heard[code]), default=0)
            ended = max((word + 1 for code, word, size in codes if heard[code] >= size), default=0)
            found.append(Truth(begun, ended))
        return found
