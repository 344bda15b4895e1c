"""A recogniser, a voice activity detector, an LLM and a TTS that do what a script says."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

from livekit import rtc
from livekit.agents import APIConnectOptions, LanguageCode, llm, stt, tts, utils, vad
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, TimedString
from livekit.agents.voice import io

from bench.harness.livekit.voice import SAMPLE_RATE, Voice

SENTENCE = re.compile(r"[^.!?]*[.!?]+\s*|[^.!?]+$")
ENGLISH = LanguageCode("en")
FRAME_S = 0.05
TOKEN_S = 0.01
Chunk: TypeAlias = str | llm.FunctionToolCall | float
"""Text, a tool call, or a pause in seconds."""


class Microphone(io.AudioInput):
    """Silence: what the caller says is scripted."""

    def __init__(self) -> None:
        super().__init__(label="scripted")

    async def __anext__(self) -> rtc.AudioFrame:
        await asyncio.sleep(FRAME_S)
        return rtc.AudioFrame.create(16_000, 1, int(16_000 * FRAME_S))


class Caller:
    """Says things: the detector and the recogniser report them."""

    def __init__(self) -> None:
        self.detectors: list[vad.VADStream] = []
        self.recognisers: list[stt.RecognizeStream] = []

    def voice(self, kind: vad.VADEventType, speech_s: float = 0.0, silence_s: float = 0.0) -> None:
        for stream in [one for one in self.detectors if not one._event_ch.closed]:
            event = vad.VADEvent(kind, 0, time.time(), speech_s, silence_s, speaking=silence_s == 0)
            stream._event_ch.send_nowait(event)

    def transcript(self, text: str, final: bool) -> None:
        kind = stt.SpeechEventType.FINAL_TRANSCRIPT if final else stt.SpeechEventType.INTERIM_TRANSCRIPT
        for stream in [one for one in self.recognisers if not one._event_ch.closed]:
            stream._event_ch.send_nowait(stt.SpeechEvent(kind, alternatives=[stt.SpeechData(ENGLISH, text)]))

    async def says(self, text: str, speech_s: float = 0.3, finals: int = 1) -> None:
        """Speech, with partials and one or more finals."""
        self.voice(vad.VADEventType.START_OF_SPEECH)
        words = text.split()
        self.transcript(words[0], final=False)
        await self.talks(speech_s)
        share = -(-len(words) // finals)
        for begin in range(0, len(words), share):
            self.transcript(" ".join(words[begin : begin + share]), final=True)
        self.voice(vad.VADEventType.END_OF_SPEECH, speech_s, 0.05)

    async def coughs(self, speech_s: float = 0.3) -> None:
        """A noise that sounds like speech, and is no word."""
        self.voice(vad.VADEventType.START_OF_SPEECH)
        await self.talks(speech_s)
        self.voice(vad.VADEventType.END_OF_SPEECH, speech_s, 0.05)

    async def talks(self, speech_s: float) -> None:
        began = time.monotonic()
        while (elapsed_s := time.monotonic() - began) < speech_s:
            self.voice(vad.VADEventType.INFERENCE_DONE, elapsed_s)
            await asyncio.sleep(0.03)
        self.voice(vad.VADEventType.INFERENCE_DONE, speech_s)


class ScriptedVad(vad.VAD):
    def __init__(self, caller: Caller) -> None:
        super().__init__(capabilities=vad.VADCapabilities(update_interval=0.03))
        self.caller = caller

    def stream(self) -> vad.VADStream:
        return VadStream(self)


class VadStream(vad.VADStream):
    def __init__(self, owner: ScriptedVad) -> None:
        super().__init__(owner)
        owner.caller.detectors.append(self)

    async def _main_task(self) -> None:
        async for _ in self._input_ch:
            pass


class ScriptedStt(stt.STT[Any]):
    def __init__(self, caller: Caller) -> None:
        super().__init__(capabilities=stt.STTCapabilities(streaming=True, interim_results=True))
        self.caller = caller

    async def _recognize_impl(self, *_: Any, **__: Any) -> stt.SpeechEvent:
        raise NotImplementedError

    def stream(self, **given: Any) -> stt.RecognizeStream:
        return SttStream(self)


class SttStream(stt.RecognizeStream):
    def __init__(self, owner: ScriptedStt) -> None:
        super().__init__(stt=owner, conn_options=DEFAULT_API_CONNECT_OPTIONS)
        owner.caller.recognisers.append(self)

    async def _run(self) -> None:
        async for _ in self._input_ch:
            pass


class ScriptedLlm(llm.LLM[Any]):
    """Answers what the caller said last, and keeps the contexts that it was given."""

    def __init__(self, answer: Callable[[llm.ChatContext], list[Chunk]]) -> None:
        super().__init__()
        self.answer = answer
        self.contexts: list[llm.ChatContext] = []

    def chat(self, *, chat_ctx: llm.ChatContext, tools: Any = None, **_: Any) -> llm.LLMStream:
        self.contexts.append(chat_ctx.copy())
        return Answer(self, chat_ctx=chat_ctx, tools=tools or [], conn_options=DEFAULT_API_CONNECT_OPTIONS)


class Answer(llm.LLMStream):
    async def _run(self) -> None:
        owner: Any = self._llm
        for chunk in owner.answer(self._chat_ctx):
            async for delta in deltas(chunk):
                self._event_ch.send_nowait(llm.ChatChunk(id="a", delta=delta))


async def deltas(chunk: Chunk) -> AsyncIterator[llm.ChoiceDelta]:
    if isinstance(chunk, float):
        await asyncio.sleep(chunk)
    elif isinstance(chunk, str):
        for token in re.findall(r"\S+\s*", chunk):
            await asyncio.sleep(TOKEN_S)
            yield llm.ChoiceDelta(role="assistant", content=token)
    else:
        yield llm.ChoiceDelta(role="assistant", tool_calls=[chunk])


class ScriptedTts(tts.TTS[Any]):
    """Speaks sentence by sentence; `words` says whether it tells their times, `slow_s` how long the second takes."""

    def __init__(self, voice: Voice, words: bool, slow_s: float = 0.0) -> None:
        capabilities = tts.TTSCapabilities(streaming=True, aligned_transcript=words)
        super().__init__(capabilities=capabilities, sample_rate=SAMPLE_RATE, num_channels=1)
        self.voice = voice
        self.words = words
        self.slow_s = slow_s

    def synthesize(self, text: str, **_: Any) -> tts.ChunkedStream:
        raise NotImplementedError

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> tts.SynthesizeStream:
        return Synthesis(tts=self, conn_options=conn_options)


class Synthesis(tts.SynthesizeStream):
    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        owner: Any = self._tts
        output_emitter.initialize(
            request_id=utils.shortuuid(), sample_rate=SAMPLE_RATE, num_channels=1, mime_type="audio/pcm", stream=True
        )
        output_emitter.start_segment(segment_id=utils.shortuuid())
        begun_ms, count = 0, 0
        async for sentence in self.sentences():
            await asyncio.sleep(owner.slow_s if count else 0.02)
            spoken = owner.voice.speak(sentence)
            if owner.words:
                output_emitter.push_timed_transcript(
                    [
                        TimedString(word.text + " ", (begun_ms + word.start_ms) / 1000, (begun_ms + word.end_ms) / 1000)
                        for word in spoken.words
                    ]
                )
            output_emitter.push(spoken.pcm())
            output_emitter.flush()
            begun_ms, count = begun_ms + spoken.total_ms, count + 1
        output_emitter.end_input()

    async def sentences(self) -> AsyncIterator[str]:
        """Each sentence as soon as another has begun, the last at the end."""
        text = ""
        async for piece in self._input_ch:
            if not isinstance(piece, str):
                continue
            self._mark_started()
            text += piece
            *whole, text = SENTENCE.findall(text) or [""]
            for sentence in whole:
                yield sentence
        if text.strip():
            yield text
