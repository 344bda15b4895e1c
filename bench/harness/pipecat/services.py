"""The scripted parts of a pipeline: a caller, an LLM, a TTS and a transport that work as Pipecat's own do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipecat.frames.frames import (
    Frame,
    FunctionCallFromLLM,
    InterimTranscriptionFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    OutputAudioRawFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
    StartFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import LLMSettings, TTSSettings
from pipecat.services.tts_service import TextAggregationMode, TTSService
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams

from bench.harness.pipecat.voice import SAMPLE_RATE, Device, Voice

FRAME_BYTES = SAMPLE_RATE // 50 * 2
FASTER = 6
"""How much faster than it sounds audio is made."""


class ScriptedCaller(FrameProcessor):
    """Stands where the STT stands, and reports what the caller says."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        await self.push_frame(frame, direction)

    async def begin(self, interim: str = "") -> None:
        await self.push_frame(ProposedUserStartedSpeakingFrame())
        if interim:
            await self.push_frame(InterimTranscriptionFrame(interim, "", "now"))

    async def finish(self, *finals: str) -> None:
        for text in finals:
            await self.push_frame(TranscriptionFrame(text, "", "now"))
        await self.push_frame(ProposedUserStoppedSpeakingFrame())


@dataclass
class Answer:
    """One answer of the LLM."""

    text: str = ""
    tool: tuple[str, str, dict[str, Any]] | None = None
    """Id, name and arguments of a tool that it calls after the text."""
    pauses: dict[int, float] = field(default_factory=dict)
    """Seconds that the LLM takes before a word, by its number."""


class ScriptedLLM(LLMService):
    """Answers as scripted, 25 words a second, and keeps what it was asked."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        super().__init__(settings=LLMSettings())
        self.answers = list(answers)
        self.requests: list[list[dict[str, Any]]] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMContextFrame):
            messages: list[Any] = list(frame.context.get_messages())
            self.requests.append([dict(message) for message in messages])
            await self.answer(self.answers.pop(0) if self.answers else Answer(), frame)
        else:
            await self.push_frame(frame, direction)

    async def answer(self, answer: Answer, frame: LLMContextFrame) -> None:
        await asyncio.sleep(0.25)
        await self.push_frame(LLMFullResponseStartFrame())
        try:
            for number, word in enumerate(answer.text.split(" ") if answer.text else []):
                await asyncio.sleep(answer.pauses.get(number, 0.04))
                await self.push_frame(LLMTextFrame(f" {word}" if number else word))
            if answer.tool:
                call_id, name, arguments = answer.tool
                await self.run_function_calls([FunctionCallFromLLM(name, call_id, arguments, frame.context)])
        finally:
            await self.push_frame(LLMFullResponseEndFrame())


class ScriptedTTS(TTSService):
    """Speaks with a `Voice`.

    `inline`: each request yields its audio, as services on HTTP do; else audio comes later, as from a websocket.
    `words`: word times come with the audio. `pauses`: seconds before the audio of a request, by its number.
    """

    def __init__(
        self, voice: Voice, *, words: bool = False, inline: bool = False, tokens: bool = False, pauses: dict[int, float]
    ) -> None:
        super().__init__(
            text_aggregation_mode=TextAggregationMode.TOKEN if tokens else TextAggregationMode.SENTENCE,
            push_text_frames=not words,
            push_stop_frames=True,
            push_start_frame=True,
            sample_rate=SAMPLE_RATE,
            settings=TTSSettings(model=None, voice=None, language=None),
        )
        self.speaker, self.words, self.inline, self.pauses = voice, words, inline, pauses
        self.requests = 0
        self.synthesis: asyncio.Task[None] | None = None
        self.queue: asyncio.Queue[tuple[str, str | None, float]] = asyncio.Queue()
        self.timed_s: dict[str, float] = {}

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        self.synthesis = self.create_task(self.synthesise())

    async def cleanup(self) -> None:
        if self.synthesis:
            await self.cancel_task(self.synthesis)
        await super().cleanup()  # type: ignore[no-untyped-call, unused-ignore]

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        pause_s = self.pauses.get(self.requests, 0.08)
        self.requests += 1
        if self.inline:
            await asyncio.sleep(pause_s)
            for frame in self.frames(self.speaker.speak(text).pcm, context_id):
                await asyncio.sleep(0.02 / FASTER)
                yield frame
        else:
            self.queue.put_nowait((context_id, text, pause_s))
            yield None

    async def flush_audio(self, context_id: str | None = None) -> None:
        if context_id and not self.inline:
            self.queue.put_nowait((context_id, None, 0.0))

    async def synthesise(self) -> None:
        while True:
            context_id, text, pause_s = await self.queue.get()
            if not self.audio_context_available(context_id) and context_id != self._turn_context_id:
                continue
            if text is None:
                await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
                await self.remove_audio_context(context_id)
                continue
            await asyncio.sleep(pause_s)
            piece = self.speaker.speak(text)
            begun_s = self.timed_s.get(context_id, 0.0)
            if self.words:
                await self.add_word_timestamps([(word, begun_s + at) for word, at in piece.words], context_id)
            self.timed_s[context_id] = begun_s + len(piece.pcm) / 2 / SAMPLE_RATE
            for frame in self.frames(piece.pcm, context_id):
                await asyncio.sleep(0.02 / FASTER)
                await self.append_to_audio_context(context_id, frame)

    def frames(self, pcm: bytes, context_id: str) -> list[TTSAudioRawFrame]:
        return [
            TTSAudioRawFrame(pcm[at : at + FRAME_BYTES], SAMPLE_RATE, 1, context_id=context_id)
            for at in range(0, len(pcm), FRAME_BYTES)
        ]


class DeviceOutput(BaseOutputTransport):
    """Hands audio to a device as Pipecat's websocket transports do: one chunk ahead of what is played."""

    def __init__(self, device: Device) -> None:
        super().__init__(
            TransportParams(audio_out_enabled=True, audio_out_sample_rate=SAMPLE_RATE, audio_out_end_silence_secs=0)
        )
        self.device = device
        self.next_s = 0.0

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, InterruptionFrame):
            self.device.clear(asyncio.get_running_loop().time())
            self.next_s = 0.0

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        loop = asyncio.get_running_loop()
        if not self.device.take(frame.audio, loop.time()):
            return False
        chunk_s = len(frame.audio) / 2 / SAMPLE_RATE
        wait_s = max(0.0, self.next_s - loop.time())
        await asyncio.sleep(wait_s)
        self.next_s = (self.next_s if wait_s else loop.time()) + chunk_s
        return True
