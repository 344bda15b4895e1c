"""One call of a real `AgentSession`: what was played, what LiveKit remembers, and what our events say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from livekit.agents import Agent, AgentSession, llm
from livekit.agents.voice.transcription import TranscriptSynchronizer

from bench.harness.livekit.device import Device, room_output
from bench.harness.livekit.plugins import (
    Caller,
    Chunk,
    Microphone,
    ScriptedLlm,
    ScriptedStt,
    ScriptedTts,
    ScriptedVad,
)
from bench.harness.livekit.realtime import ScriptedRealtime
from bench.harness.livekit.voice import Voice
from voicemem.integrations.livekit.remembering import text_of

TIMEOUT_S = 30.0
TICK_S = 0.01


class Mode(NamedTuple):
    """What the session knows of the words of its audio."""

    name: str
    says: str
    words: bool
    synchronised: bool


ALIGNED = Mode("aligned", "word times of the TTS", True, True)
PLAIN = Mode("plain", "the default of a room", False, True)
UNSYNCED = Mode("unsynced", "without a synchroniser", False, False)
MODES = (ALIGNED, PLAIN, UNSYNCED)


class Played(NamedTuple):
    """What was heard of a reply: at least the words that had ended, at most those that had begun."""

    ended: int
    begun: int
    words: int

    @property
    def is_cut(self) -> bool:
        return self.ended < self.words

    def wrong(self, remembered: str) -> int:
        """How many words too many a memory has of it, or too few, below 0."""
        count = len(remembered.split())
        return count - self.begun if count > self.begun else min(0, count - self.ended)


class Stage:
    """The call. `answer` is the LLM: from its context to what it says; `realtime` are the texts of a realtime model."""

    def __init__(
        self,
        mode: Mode,
        answer: Callable[[llm.ChatContext], list[Chunk]],
        *,
        slow_s: float = 0.0,
        espeak: bool = False,
        preemptive: bool = False,
        endpointing_s: float = 0.15,
        tools: list[Any] | None = None,
        realtime: tuple[str, ...] = (),
    ) -> None:
        self.caller = Caller()
        self.voice = Voice(espeak)
        self.llm = ScriptedLlm(answer)
        self.device = Device()
        self.session: AgentSession[None] = AgentSession(
            stt=ScriptedStt(self.caller),
            vad=ScriptedVad(self.caller),
            llm=ScriptedRealtime(self.voice, *realtime) if realtime else self.llm,
            tts=ScriptedTts(self.voice, mode.words, slow_s),
            tools=tools or [],
            use_tts_aligned_transcript=mode.words,
            turn_handling={
                "turn_detection": "vad",
                "endpointing": {"min_delay": endpointing_s, "max_delay": 1.0},
                "interruption": {"mode": "vad", "min_duration": 0.1, "false_interruption_timeout": 0.5},
                "preemptive_generation": {"enabled": preemptive, "preemptive_tts": preemptive},
            },
        )
        output = room_output(self.device)
        self.session.input.audio = Microphone()
        self.synchronizer: TranscriptSynchronizer | None = None
        if mode.synchronised:
            self.synchronizer = TranscriptSynchronizer(next_in_chain_audio=output, next_in_chain_text=None)
            self.session.output.audio = self.synchronizer.audio_output
            self.session.output.transcription = self.synchronizer.text_output
        else:
            self.session.output.audio = output
        self.output = output

    async def start(self, agent: Agent | None = None) -> None:
        await self.session.start(agent or Agent(instructions="Be brief."))

    async def close(self) -> None:
        await self.session.aclose()
        if self.synchronizer is not None:
            await self.synchronizer.aclose()
        await self.output.aclose()

    # Waiting for what happens

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():  # noqa: ASYNC110 (what it waits for is the framework's)
                await asyncio.sleep(TICK_S)

    async def until_played(self, word: str) -> None:
        """Until a word begins to sound."""
        await self.until(lambda: any(self.device.played[n] for n, one in self.voice.words.items() if one.text == word))

    async def until_silent(self) -> None:
        """Until the agent has spoken to the end."""
        await self.until(lambda: self.session.agent_state == "listening" and self.session.current_speech is None)

    async def until_remembered(self, count: int) -> None:
        """Until LiveKit has so many messages of the agent."""
        await self.until(lambda: len(self.own_memory()) >= count)

    # What is known afterwards

    def own_memory(self) -> list[str]:
        """LiveKit's own memory of the agent's replies."""
        return [text_of(one) for one in self.session.history.messages() if one.role == "assistant"]

    def heard(self, text: str) -> Played:
        """What of a reply was played."""
        sentences = [words for words in self.voice.sentences if words and " ".join(w.text for w in words) in text]
        newest = {" ".join(word.text for word in words): words for words in sentences}
        words = [word for one in newest.values() for word in one]
        if not words:
            return Played(0, 0, len(text.split()))
        first, last = words[0].number, words[-1].number
        lengths = {word.number: word.samples for word in words}
        return Played(*self.device.heard(first, last, lengths), len(text.split()))
