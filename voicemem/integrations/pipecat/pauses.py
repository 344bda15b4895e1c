"""Where sentences and clauses stand in audio of which nothing is known but the text: pauses are where the marks are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from voicemem.transcript.cutting import units_of

CLAUSE = re.compile(r".+?(?:[.,;:!?…]+[\"'”’)]*\s+|[。，、；：！？]+|$)", re.DOTALL)
SHORTEST_PAUSE_MS = 60.0
SOUND_PEAK = 400
"""Of 32767: samples below are silence."""
SLICE_MS = 10
FARTHEST = 0.12
FARTHEST_MS = 250.0
"""A pause this far from where a mark is expected is another one: a share of all sound, and ms."""


class Span(NamedTuple):
    """A piece of text with the length of its audio; without text it is silence."""

    text: str
    audio_ms: float


class Sound:
    """Where audio sounds, as stretches between pauses. Positions are ms from the start of the audio."""

    def __init__(self) -> None:
        self.end_ms = 0.0
        self.stretches: list[tuple[float, float]] = []

    @property
    def sounding_ms(self) -> float:
        return sum(end - start for start, end in self.stretches)

    def add(self, audio: bytes, sample_rate: int, channels: int) -> None:
        """More audio, of 16 bits a sample."""
        samples = memoryview(audio[: len(audio) // 2 * 2]).cast("h")
        size = max(1, sample_rate * channels * SLICE_MS // 1000)
        per_ms = sample_rate * channels / 1000
        for start in range(0, len(samples), size):
            part = samples[start : start + size]
            if max(part) >= SOUND_PEAK or min(part) <= -SOUND_PEAK:
                self.sounds(self.end_ms + start / per_ms, self.end_ms + (start + len(part)) / per_ms)
        self.end_ms += len(samples) / per_ms

    def sounds(self, start_ms: float, end_ms: float) -> None:
        if self.stretches and start_ms - self.stretches[-1][1] < SHORTEST_PAUSE_MS:
            self.stretches[-1] = (self.stretches[-1][0], end_ms)
        else:
            self.stretches.append((start_ms, end_ms))


def spans_of(text: str, sound: Sound) -> list[Span]:
    """A text over all of its audio: each clause between the pauses that are next to where its marks should be."""
    if not sound.stretches:
        return [Span(text, sound.end_ms)]
    spans, place_ms = [], 0.0
    for clause, first, last in aligned(CLAUSE.findall(text), sound.stretches):
        start_ms, end_ms = sound.stretches[first][0], sound.stretches[last][1]
        spans += [Span("", start_ms - place_ms), Span(clause, end_ms - start_ms)]
        place_ms = end_ms
    return [span for span in [*spans, Span("", sound.end_ms - place_ms)] if span.text or span.audio_ms > 0]


def aligned(clauses: Sequence[str], stretches: Sequence[tuple[float, float]]) -> list[tuple[str, int, int]]:
    """Texts, each with its first and last stretch: clauses without a pause between them are joined."""
    sounding = [end - start for start, end in stretches]
    all_ms, all_units = sum(sounding), max(1, sum(map(units_of, clauses)))
    found: list[tuple[str, int, int]] = []
    text, first, units, before = "", 0, 0, 0.0
    ends_ms = [before := before + length for length in sounding]
    for clause in clauses[:-1]:
        text += clause
        units += units_of(clause)
        expected_ms = all_ms * units / all_units
        pause = nearest_pause(expected_ms, ends_ms, stretches, first)
        if pause is not None and abs(ends_ms[pause] - expected_ms) <= min(FARTHEST_MS, FARTHEST * all_ms):
            found.append((text, first, pause))
            text, first = "", pause + 1
    return [*found, (text + clauses[-1], first, len(stretches) - 1)]


def nearest_pause(
    expected_ms: float, ends_ms: Sequence[float], stretches: Sequence[tuple[float, float]], first: int
) -> int | None:
    """The stretch behind which a mark is, by where it should be and how long the pause is."""
    pauses = range(first, len(stretches) - 1)
    if not pauses:
        return None
    return min(pauses, key=lambda at: abs(ends_ms[at] - expected_ms) - (stretches[at + 1][0] - stretches[at][1]) / 2)
