"""What is known of a reply on its way through a pipeline, and of the TTS contexts that its audio is made in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from voicemem.integrations.pipecat.pauses import Sound
from voicemem.integrations.pipecat.word_clock import WordClock


class Audio(NamedTuple):
    """Audio of 16 bits a sample."""

    pcm: bytes
    sample_rate: int
    channels: int

    @property
    def length_ms(self) -> float:
        return 1000.0 * len(self.pcm) / (2 * self.channels * self.sample_rate)


@dataclass
class Reply:
    """One reply of the agent, from the LLM to the output."""

    name: str
    has_text: bool = False
    """An answer of the LLM that only calls tools has none, and is no reply."""
    generated: bool = False
    """Whether its text is complete."""
    passed: bool = False
    """Whether the TTS has got all of its text."""
    skipped: bool = False
    """Whether it is not spoken."""
    interruptible: bool = True
    text: str = ""
    """What the LLM said and the TTS has not announced, for TTS that get single tokens."""
    unannounced: bool = False
    """Whether the TTS speaks before it announces."""
    contexts: set[str] = field(default_factory=set)
    """Those whose audio the output has not done with."""
    begun: bool = False
    done_at: float | None = None
    """When the output handed out the last of it."""


@dataclass
class Context:
    """One TTS context: audio that belongs together."""

    reply: Reply
    start_ms: float
    """Where its audio begins in the reply's."""
    clock: WordClock = field(default_factory=WordClock)
    sound: Sound = field(default_factory=Sound)
    """Audio since the last sentence that is known to be complete."""
    text: str = ""
    """Text since then."""
    is_open: bool = False
    """Whether audio has come since the TTS last stopped; a context that waited for text too long stops, and goes on."""
    stopped: int = 0
    """How often the TTS has stopped."""
    played: int = 0
    """How often the output has come to such a stop."""
    alone: bool = False
    """Whether the text is one sentence, announced when all audio before it was known to be of others."""
    timed: bool = False
    """Whether its words have times."""
