"""The calls of `fixtures/truth/`: what was said, generated, played and heard, to the millisecond.

Times named `*_ms` count from the start of the call; those of words, positions and lengths of audio from the start of
the reply's or utterance's own audio. Places in a text are code points.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct


class TrueWord(Struct, array_like=True, frozen=True, gc=False):
    """A word with its marks (or a character, of scripts without spaces): its place in the text, and when it sounds."""

    begin: int
    end: int
    start_ms: int
    end_ms: int


class TrueDelta(Struct, array_like=True, frozen=True, gc=False):
    """The LLM generated more: when, and where the text ended then."""

    at_ms: int
    end: int


class Synthesis(Struct, array_like=True, frozen=True, gc=False):
    """The audio of one more sentence was complete: when, where the sentence ends in the text and in the audio."""

    at_ms: int
    end: int
    audio_ms: int


class PlayedPart(Struct, array_like=True, frozen=True, gc=False):
    """A reply was played without a gap: from when until when, and from which position of its audio."""

    from_ms: int
    until_ms: int
    position_ms: int


class FalseAlarm(Struct, array_like=True, frozen=True, gc=False):
    """Playback was paused for a noise, and resumed."""

    at_ms: int
    until_ms: int


class TrueReply(Struct, frozen=True, omit_defaults=True):
    """What the agent said in one go."""

    turn_id: int
    item: str
    text: str
    """All that was generated."""
    deltas: list[TrueDelta]
    done_ms: int
    words: list[TrueWord]
    synthesised: list[Synthesis]
    played: list[PlayedPart]
    alarms: list[FalseAlarm] = []
    cut_ms: int | None = None
    """When playback stopped for good; None of a reply that was heard to its end."""
    source: str = "llm"
    """Or `greeting`, which no LLM generates."""

    @property
    def position_ms(self) -> int:
        """How much of the audio was played in all."""
        return self.position_at(self.played[-1].until_ms)

    def position_at(self, at_ms: int) -> int:
        """How much of the audio had been played by a time."""
        span = next((one for one in reversed(self.played) if one.from_ms <= at_ms), None)
        return 0 if span is None else span.position_ms + min(at_ms, span.until_ms) - span.from_ms

    def time_of(self, position_ms: int) -> int:
        """When a position was played."""
        span = next(one for one in reversed(self.played) if one.position_ms < position_ms or one is self.played[0])
        return span.from_ms + position_ms - span.position_ms

    def generated_until(self, at_ms: int) -> str:
        return self.text[: max((delta.end for delta in self.deltas if delta.at_ms <= at_ms), default=0)]

    def heard(self) -> str:
        """All that was heard of it."""
        return self.text if self.cut_ms is None else self.heard_until(self.cut_ms)

    def heard_until(self, at_ms: int) -> str:
        """The text through the last word that had ended by a time, and the white space after it."""
        position = self.position_at(at_ms)
        end = max((word.end for word in self.words if word.end_ms <= position), default=0)
        rest = self.text[end:]
        return self.text[: end + len(rest) - len(rest.lstrip())] if end else ""


class TrueUtterance(Struct, frozen=True, omit_defaults=True):
    """What the caller said in one go."""

    turn_id: int
    item: str
    text: str
    begin_ms: int
    words: list[TrueWord]
    final_ms: int
    """When the recogniser was sure."""
    noise: bool = False
    """It was the noise of a false alarm: the recogniser took it back."""


class TrueTool(Struct, frozen=True):
    """A tool call and its result."""

    turn_id: int
    call_id: str
    name: str
    arguments: Any
    result: Any
    called_ms: int
    returned_ms: int


class Speaker(Struct, frozen=True):
    """A voice of espeak-ng, and its rate in words a minute (characters, in Chinese and Japanese), pauses included."""

    voice: str
    rate: int
    pitch: int


class TrueCall(Struct, frozen=True):
    """One call."""

    name: str
    agent: Speaker
    caller: Speaker
    began: int
    """Unix ms."""
    end_ms: int
    utterances: list[TrueUtterance]
    replies: list[TrueReply]
    tools: list[TrueTool]

    @property
    def cut_replies(self) -> list[TrueReply]:
        return [reply for reply in self.replies if reply.cut_ms is not None]

    def is_hung_up(self, reply: TrueReply) -> bool:
        """Whether the caller hung up while this reply played."""
        return reply.cut_ms is not None and reply.cut_ms == self.end_ms


def load_call(path: Path) -> TrueCall:
    """Read one file. Raises `OSError`, `msgspec.ValidationError`."""
    return msgspec.json.decode(path.read_bytes(), type=TrueCall)


def load_calls(folder: Path) -> list[TrueCall]:
    """All calls of a folder, by name."""
    return [load_call(path) for path in sorted(folder.glob("*.json"))]
