"""When words sound in their audio, from the presentation times that pipecat gives them.

A TTS service says when a word sounds in its audio. Pipecat adds the time at which the first audio passed, so that the
word can be shown when the clock gets there. If the audio is late (a slow TTS, a pause between sentences), the clock is
not: the word would be shown before it is heard. Here that time is taken off again.
"""

from __future__ import annotations

from typing import NamedTuple

NS_PER_MS = 1_000_000
GAP_MS = 1000.0
"""After so long without audio a context may have timed out, and its clock may have begun again."""


class TimedWord(NamedTuple):
    """A word, and when it begins in the audio of its context."""

    text: str
    start_ms: float


class WordClock:
    """The words of one TTS context. Times named `at_ns` and `pts` are of the pipeline's clock."""

    def __init__(self) -> None:
        self.base_ns: int | None = None
        """The presentation time of the context's first sample."""
        self.shift_ms = 0.0
        self.last_audio_ns: int | None = None
        self.made_ms = 0.0
        self.gap_at_ms: float | None = None
        """Where a gap in the audio was after which no word has come yet."""
        self.held: list[tuple[str, int]] = []
        """Words that came before their audio."""
        self.pts_before = 0
        """The time of the word before those."""

    def audio(self, audio_ms: float, at_ns: int, last_pts: int) -> list[TimedWord]:
        """Audio came, the first of it at `at_ns`; returns the words that were waiting for it."""
        start_ns = max(self.pts_before if self.held else last_pts, at_ns)
        if self.base_ns is None:
            self.base_ns = start_ns
        elif self.last_audio_ns is not None and at_ns - self.last_audio_ns > GAP_MS * NS_PER_MS:
            self.gap_at_ms, self.gap_start_ns = self.made_ms, start_ns
        self.last_audio_ns = at_ns
        held, self.held = self.held, []
        found = [self.place(text, pts) for text, pts in held]
        self.made_ms += audio_ms
        return found

    def word(self, text: str, pts: int, at_ns: int, last_pts: int) -> list[TimedWord]:
        """A word came, after one of `last_pts`; it may have to wait for its audio."""
        late = self.last_audio_ns is not None and at_ns - self.last_audio_ns > GAP_MS * NS_PER_MS
        if self.base_ns is None or late or self.held:
            self.pts_before = self.pts_before if self.held else last_pts
            self.held.append((text, pts))
            return []
        return [self.place(text, pts)]

    def flush(self) -> list[TimedWord]:
        """The words that wait, although no audio came for them."""
        held, self.held = self.held, []
        return [self.place(text, pts) for text, pts in held] if self.base_ns is not None else []

    def place(self, text: str, pts: int) -> TimedWord:
        if self.gap_at_ms is not None:
            self.choose_base(pts)
        return TimedWord(text, max(0.0, self.offset_ms(pts)))

    def offset_ms(self, pts: int) -> float:
        assert self.base_ns is not None
        return (pts - self.base_ns) / NS_PER_MS + self.shift_ms

    def choose_base(self, pts: int) -> None:
        """The first word after a gap sounds where the audio before the gap ended.

        The clock may have gone on, may have begun again with times that go on, or with times that begin again.
        """
        place_ms, self.gap_at_ms = self.gap_at_ms or 0.0, None
        went_on = self.offset_ms(pts) - place_ms
        again = (pts - self.gap_start_ns) / NS_PER_MS
        if min(abs(again), abs(again - place_ms)) < abs(went_on):
            self.base_ns = self.gap_start_ns
            self.shift_ms = place_ms if abs(again) < abs(again - place_ms) else 0.0
