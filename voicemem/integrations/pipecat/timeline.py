"""Audio between the TTS and the caller: what was made, in order, and how far the output has come."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

TRANSPORT_MS = 40.0
"""What an output transport is ahead of its device: it hands out one chunk while the one before is played."""
KEPT_MS = 2000.0
"""For how long positions of the output are kept, more than any client holds."""
MISSING_MS = 100.0
"""Audio that a context may lack when the output is done with it, from rounding."""


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
    """How much the output has handed to its device."""
    written: deque[tuple[float, float]] = field(default_factory=deque)
    """When it had handed out how much, newest last."""

    def write(self, audio_ms: float, at: float) -> None:
        self.written_ms += audio_ms
        self.written.append((at, self.written_ms))
        while len(self.written) > 1 and self.written[1][0] < at - KEPT_MS:
            self.written.popleft()

    def written_by(self, at: float) -> float:
        """How much had been handed out at a time. Between two chunks the first one is being played."""
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
    """The audio of all replies, in the order in which it is played.

    `delay_ms`: how long what the output hands out takes until it is heard.
    """

    def __init__(self, delay_ms: float) -> None:
        self.delay_ms = delay_ms
        self.waiting: deque[Piece] = deque()
        self.tracks: dict[str, Track] = {}

    def track(self, reply: str) -> Track:
        return self.tracks.setdefault(reply, Track())

    def made(self, reply: str, context: str, audio_ms: float, interruptible: bool) -> None:
        """The TTS made audio of a reply."""
        self.track(reply).made_ms += audio_ms
        last = self.waiting[-1] if self.waiting else None
        if last and (last.reply, last.context, last.interruptible) == (reply, context, interruptible):
            last.left_ms += audio_ms
        else:
            self.waiting.append(Piece(reply, context, audio_ms, interruptible))

    def played(self, audio_ms: float, at: float) -> str | None:
        """The output handed out the next audio; the reply that it is of, None for audio that no reply has."""
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
        """The output is done with a context: what is left of it is lost, or a matter of rounding."""
        if any(piece.context == context for piece in self.waiting):
            while self.waiting:
                piece = self.waiting.popleft()
                if piece.left_ms <= MISSING_MS:
                    self.track(piece.reply).write(piece.left_ms, at)
                if piece.context == context and not any(one.context == context for one in self.waiting):
                    break

    def interrupted(self) -> None:
        """What waits is thrown away, but for what may not be interrupted."""
        self.waiting = deque(piece for piece in self.waiting if not piece.interruptible)

    def heard_ms(self, reply: str, at: float) -> float:
        """How much of a reply has been heard at a time."""
        return self.track(reply).written_by(at - self.delay_ms)

    def is_waiting(self, reply: str) -> bool:
        return any(piece.reply == reply for piece in self.waiting)

    def forget(self, reply: str) -> None:
        self.tracks.pop(reply, None)
