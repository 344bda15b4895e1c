"""A voice whose audio says which word it is: each sample of a word is the word's number, silence is 0.

So the device that plays it knows the truth, whatever happened on the way. Where espeak-ng is installed its word times
can be used, so that pauses and rates are those of real speech.
"""

from __future__ import annotations

from array import array
from functools import cache
from typing import Any, NamedTuple

SAMPLE_RATE = 24_000
WORD_MS, LETTER_MS, GAP_MS, SENTENCE_GAP_MS = 60, 45, 30, 250


class VoicedWord(NamedTuple):
    """A word of a reply, with its times in the audio of its sentence."""

    number: int
    text: str
    start_ms: int
    end_ms: int

    @property
    def span(self) -> tuple[int, int]:
        """Its first sample, and the one after its last."""
        return self.start_ms * SAMPLE_RATE // 1000, self.end_ms * SAMPLE_RATE // 1000

    @property
    def samples(self) -> int:
        begin, end = self.span
        return end - begin


class Spoken(NamedTuple):
    """The audio of one sentence."""

    words: list[VoicedWord]
    total_ms: int

    def pcm(self) -> bytes:
        samples = array("h", bytes(2 * self.total_ms * SAMPLE_RATE // 1000))
        for word in self.words:
            begin, end = word.span
            samples[begin:end] = array("h", [word.number]) * (end - begin)
        return samples.tobytes()


class Voice:
    """Speaks sentences, and numbers their words."""

    def __init__(self, espeak: bool = False) -> None:
        self.espeak = espeak_times if espeak else None
        self.words: dict[int, VoicedWord] = {}
        self.sentences: list[list[VoicedWord]] = []

    def speak(self, sentence: str) -> Spoken:
        times, total_ms = (self.espeak or usual_times)(sentence)
        words = []
        for text, start_ms, end_ms in times:
            word = VoicedWord(len(self.words) + 1, text, start_ms, end_ms)
            self.words[word.number] = word
            words.append(word)
        self.sentences.append(words)
        return Spoken(words, total_ms)


def usual_times(sentence: str) -> tuple[list[tuple[str, int, int]], int]:
    """Each word sounds for as long as it has letters; a comma is a pause."""
    at_ms, times = 0, []
    for text in sentence.split():
        end_ms = at_ms + WORD_MS + LETTER_MS * len(text.strip(".,!?"))
        times.append((text, at_ms, end_ms))
        at_ms = end_ms + GAP_MS * (5 if text.endswith(",") else 1)
    return times, at_ms + SENTENCE_GAP_MS


@cache
def synthesiser() -> Any:
    from fixtures.truth.espeak import Espeak

    return Espeak()


def espeak_times(sentence: str) -> tuple[list[tuple[str, int, int]], int]:
    """The times of espeak-ng."""
    spoken = synthesiser().speak(sentence.strip(), "en-us", 165)
    return [
        (sentence.strip()[word.begin : word.end], word.start_ms, word.end_ms) for word in spoken.words
    ], spoken.total_ms
