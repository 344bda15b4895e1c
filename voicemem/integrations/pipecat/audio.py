"""Audio between the TTS and the caller: made and played audio, and the position of its text.

`AudioTimeline` has the audio made, in order, and the position of the output. `Sound` finds clauses in audio of which
only the text is known: pauses are at punctuation. `WordClock` finds words by Pipecat's presentation times.
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from voicemem.transcript.whole_words import units_of

CLAUSE = re.compile(r".+?(?:[.,;:!?…]+[\"'”’)]*\s+|[。，、；：！？]+|$)", re.DOTALL)
SOUND_PEAK = 400
"""The level, out of 32767, below which samples are silence."""
FARTHEST = 0.12
FARTHEST_MS = 250.0
"""A pause further than this from an expected mark is another one: as a share of all sound, and in ms."""
TRANSPORT_MS = 40.0
"""The lead of an output transport over its device: it writes a chunk while the previous one plays."""
NS_PER_MS = 1_000_000
GAP_MS = 1000.0
"""After so long without audio, a context may have timed out, and its clock may have restarted."""


class Span(NamedTuple):
    """A piece of text with the length of its audio; without text it is silence."""

    text: str
    audio_ms: float


class Sound:
    """The sounding stretches of audio, between pauses. Positions are ms from the start of the audio."""

    def __init__(self) -> None:
        self.end_ms = 0.0
        self.stretches: list[tuple[float, float]] = []

    @property
    def sounding_ms(self) -> float:
        return sum(end - start for start, end in self.stretches)

    def add(self, audio: bytes, sample_rate: int, channels: int) -> None:
        """Add audio of 16 bits a sample."""
        samples = memoryview(audio[: len(audio) // 2 * 2]).cast("h")
        size = max(1, sample_rate * channels * 10 // 1000)  # slices of 10 ms
        per_ms = sample_rate * channels / 1000
        for start in range(0, len(samples), size):
            part = samples[start : start + size]
            if max(part) >= SOUND_PEAK or min(part) <= -SOUND_PEAK:
                start_ms, end_ms = self.end_ms + start / per_ms, self.end_ms + (start + len(part)) / per_ms
                if self.stretches and start_ms - self.stretches[-1][1] < 60.0:  # no pause
                    start_ms = self.stretches.pop()[0]
                self.stretches.append((start_ms, end_ms))
        self.end_ms += len(samples) / per_ms


def spans_of(text: str, sound: Sound) -> list[Span]:
    """Spread a text over its audio: each clause between the pauses nearest to its expected marks."""
    if not sound.stretches:
        return [Span(text, sound.end_ms)]
    spans, place_ms = [], 0.0
    for clause, first, last in aligned(CLAUSE.findall(text), sound.stretches):
        start_ms, end_ms = sound.stretches[first][0], sound.stretches[last][1]
        spans += [Span("", start_ms - place_ms), Span(clause, end_ms - start_ms)]
        place_ms = end_ms
    return [span for span in [*spans, Span("", sound.end_ms - place_ms)] if span.text or span.audio_ms > 0]


def aligned(clauses: Sequence[str], stretches: Sequence[tuple[float, float]]) -> list[tuple[str, int, int]]:
    """Return texts, each with its first and last stretch; clauses without a pause between them are joined."""
    sounding = [end - start for start, end in stretches]
    all_ms, all_units = sum(sounding), max(1, sum(map(units_of, clauses)))
    spans: list[tuple[str, int, int]] = []
    text, first, units = "", 0, 0
    ends_ms = list(accumulate(sounding))
    for clause in clauses[:-1]:
        text += clause
        units += units_of(clause)
        expected_ms = all_ms * units / all_units

        def distance_ms(at: int, expected_ms: float = expected_ms) -> float:
            """Return the distance of a stretch's end from the expected mark; a long pause after it shortens this."""
            return abs(ends_ms[at] - expected_ms) - (stretches[at + 1][0] - stretches[at][1]) / 2

        pause = min(range(first, len(stretches) - 1), key=distance_ms, default=None)
        if pause is not None and abs(ends_ms[pause] - expected_ms) <= min(FARTHEST_MS, FARTHEST * all_ms):
            spans.append((text, first, pause))
            text, first = "", pause + 1
    return [*spans, (text + clauses[-1], first, len(stretches) - 1)]


@dataclass
class Piece:
    """Audio of one TTS context that the output has not played yet."""

    reply: str
    context: str
    left_ms: float
    interruptible: bool


@dataclass
class Track:
    """The audio of one reply."""

    made_ms: float = 0.0
    written_ms: float = 0.0
    """The audio that the output has written to its device."""
    written: deque[tuple[float, float]] = field(default_factory=deque)
    """The times and amounts of writes, the newest last."""

    def write(self, audio_ms: float, at: float) -> None:
        self.written_ms += audio_ms
        self.written.append((at, self.written_ms))
        while len(self.written) > 1 and self.written[1][0] < at - 2000.0:  # more than any client holds
            self.written.popleft()

    def written_by(self, at: float) -> float:
        """Return how much was written by a time. Between two writes, the first one is playing."""
        before = (0.0, 0.0)
        for when, position_ms in self.written:
            if when > at:
                share = (
                    (at - before[0]) / (when - before[0]) if before[1] and when - before[0] < 4 * TRANSPORT_MS else 0.0
                )
                return before[1] + share * (position_ms - before[1])
            before = (when, position_ms)
        return before[1]


class AudioTimeline:
    """The audio of all replies, in the order of playback.

    `delay_ms` is the time from a write of the output until it is heard.
    """

    def __init__(self, delay_ms: float) -> None:
        self.delay_ms = delay_ms
        self.waiting: deque[Piece] = deque()
        self.tracks: dict[str, Track] = {}

    def track(self, reply: str) -> Track:
        return self.tracks.setdefault(reply, Track())

    def made(self, reply: str, context: str, audio_ms: float, interruptible: bool) -> None:
        self.track(reply).made_ms += audio_ms
        last = self.waiting[-1] if self.waiting else None
        if last and (last.reply, last.context, last.interruptible) == (reply, context, interruptible):
            last.left_ms += audio_ms
        else:
            self.waiting.append(Piece(reply, context, audio_ms, interruptible))

    def played(self, audio_ms: float, at: float) -> str | None:
        """Note that the output wrote the next audio. Return its reply; None for audio without a reply."""
        reply = None
        while self.waiting and audio_ms > 0:
            piece = self.waiting[0]
            taken = min(audio_ms, piece.left_ms)
            piece.left_ms -= taken
            audio_ms -= taken
            reply = piece.reply
            self.track(reply).write(taken, at)
            if piece.left_ms <= 0:
                self.waiting.popleft()
        return reply

    def context_done(self, context: str, at: float) -> None:
        """Note that the output is done with a context: the rest of its audio is lost, or from rounding."""
        if any(piece.context == context for piece in self.waiting):
            while self.waiting:
                piece = self.waiting.popleft()
                if piece.left_ms <= 100.0:  # from rounding
                    self.track(piece.reply).write(piece.left_ms, at)
                if piece.context == context and not any(one.context == context for one in self.waiting):
                    break

    def interrupted(self) -> None:
        """Drop the waiting audio, except that which may not be interrupted."""
        self.waiting = deque(piece for piece in self.waiting if not piece.interruptible)

    def heard_ms(self, reply: str, at: float) -> float:
        return self.track(reply).written_by(at - self.delay_ms)


class TimedWord(NamedTuple):
    """A word, and its start in the audio of its context."""

    text: str
    start_ms: float


class WordClock:
    """The words of one TTS context. Times named `at_ns` and `pts` are of the pipeline's clock.

    A TTS service reports the times of words in its audio. Pipecat adds the time at which the first audio passed, so
    that the word can be shown at that time of the clock. If the audio is late (a slow TTS, a pause between sentences),
    the clock is not, and the word would be shown before it is heard. Here that time is subtracted again.
    """

    def __init__(self) -> None:
        self.base_ns: int | None = None
        """The presentation time of the context's first sample."""
        self.shift_ms = 0.0
        self.last_audio_ns: int | None = None
        self.made_ms = 0.0
        self.gap_at_ms: float | None = None
        """The position of a gap in the audio, if no word has come since."""
        self.held: list[tuple[str, int]] = []
        """Words that came before their audio."""
        self.pts_before = 0

    def audio(self, audio_ms: float, at_ns: int, last_pts: int) -> list[TimedWord]:
        """Note audio that began to arrive at `at_ns`. Return the words that were waiting for it."""
        start_ns = max(self.pts_before if self.held else last_pts, at_ns)
        if self.base_ns is None:
            self.base_ns = start_ns
        elif self.last_audio_ns is not None and at_ns - self.last_audio_ns > GAP_MS * NS_PER_MS:
            self.gap_at_ms, self.gap_start_ns = self.made_ms, start_ns
        self.last_audio_ns = at_ns
        held, self.held = self.held, []
        words = [self.place(text, pts) for text, pts in held]
        self.made_ms += audio_ms
        return words

    def word(self, text: str, pts: int, at_ns: int, last_pts: int) -> list[TimedWord]:
        """Take a word that came after one of `last_pts`; it may have to wait for its audio."""
        late = self.last_audio_ns is not None and at_ns - self.last_audio_ns > GAP_MS * NS_PER_MS
        if self.base_ns is None or late or self.held:
            self.pts_before = self.pts_before if self.held else last_pts
            self.held.append((text, pts))
            return []
        return [self.place(text, pts)]

    def flush(self) -> list[TimedWord]:
        """Return the words that still wait, although no audio came for them."""
        held, self.held = self.held, []
        return [self.place(text, pts) for text, pts in held] if self.base_ns is not None else []

    def place(self, text: str, pts: int) -> TimedWord:
        """Return a word with its time. The first one after a gap sounds where the audio before it ended.

        The clock may have continued, or restarted with continued or with restarted times.
        """
        assert self.base_ns is not None
        if self.gap_at_ms is not None:
            place_ms, self.gap_at_ms = self.gap_at_ms, None
            continued = (pts - self.base_ns) / NS_PER_MS + self.shift_ms - place_ms
            again = (pts - self.gap_start_ns) / NS_PER_MS
            if min(abs(again), abs(again - place_ms)) < abs(continued):
                self.base_ns = self.gap_start_ns
                self.shift_ms = place_ms if abs(again) < abs(again - place_ms) else 0.0
        return TimedWord(text, max(0.0, (pts - self.base_ns) / NS_PER_MS + self.shift_ms))
