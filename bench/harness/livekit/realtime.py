"""A realtime model that answers with scripted audio and its transcript."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from livekit import rtc
from livekit.agents import llm

from bench.harness.livekit.voice import SAMPLE_RATE, Spoken, Voice

FRAME_S = 0.02
CAPABILITIES = llm.RealtimeCapabilities(
    message_truncation=False,
    turn_detection=False,
    user_transcription=False,
    auto_tool_reply_generation=False,
    audio_output=True,
    manual_function_calls=False,
)


class ScriptedRealtime(llm.RealtimeModel):
    """Says one text after the other, whatever it is asked."""

    def __init__(self, voice: Voice, *texts: str) -> None:
        super().__init__(capabilities=CAPABILITIES)
        self.voice = voice
        self.texts = list(texts)

    def session(self, **_: Any) -> llm.RealtimeSession[Any]:
        return RealtimeCall(self)

    async def aclose(self) -> None:
        """There is nothing to close."""


class RealtimeCall(llm.RealtimeSession[Any]):
    def __init__(self, model: ScriptedRealtime) -> None:
        super().__init__(model)
        self.model = model

    @property
    def chat_ctx(self) -> llm.ChatContext:
        return llm.ChatContext.empty()

    @property
    def tools(self) -> llm.ToolContext:
        return llm.ToolContext.empty()

    def generate_reply(self, **_: Any) -> asyncio.Future[llm.GenerationCreatedEvent]:
        text = self.model.texts.pop(0)
        spoken = self.model.voice.speak(text)
        made: asyncio.Future[llm.GenerationCreatedEvent] = asyncio.get_running_loop().create_future()
        modalities: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        modalities.set_result(["text", "audio"])
        message = llm.MessageGeneration("m1", words_of(text), frames_of(spoken), modalities)
        event = llm.GenerationCreatedEvent(several(message), several(), user_initiated=True)
        made.set_result(event)
        self.emit("generation_created", event)
        return made

    async def update_instructions(self, instructions: str) -> None: ...
    async def update_chat_ctx(self, chat_ctx: llm.ChatContext, **_: Any) -> None: ...
    async def update_tools(self, tools: list[Any]) -> None: ...
    def update_options(self, **_: Any) -> None: ...
    def push_audio(self, frame: rtc.AudioFrame) -> None: ...
    def push_video(self, frame: rtc.VideoFrame) -> None: ...
    def commit_audio(self) -> None: ...
    def clear_audio(self) -> None: ...
    def interrupt(self) -> None: ...
    def truncate(self, **_: Any) -> None: ...
    async def aclose(self) -> None: ...
    async def _update_session(self, **_: Any) -> None: ...


async def several(*items: Any) -> AsyncIterator[Any]:
    for item in items:
        yield item


async def words_of(text: str) -> AsyncIterator[str]:
    for word in text.split(" "):
        yield f"{word} "


async def frames_of(spoken: Spoken) -> AsyncIterator[rtc.AudioFrame]:
    """The audio, as fast as it is taken."""
    pcm, step = spoken.pcm(), int(SAMPLE_RATE * FRAME_S) * 2
    for begin in range(0, len(pcm) - step + 1, step):
        yield rtc.AudioFrame(pcm[begin : begin + step], SAMPLE_RATE, 1, step // 2)
