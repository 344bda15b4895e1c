"""One call of a scripted pipeline, and what was heard, remembered and kept by Pipecat itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pipecat.frames.frames import EndFrame, Frame, TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair, LLMUserAggregatorParams
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.llm_service import FunctionCallParams
from pipecat.turns.user_turn_strategies import ExternalUserTurnStrategies
from pipecat.workers.runner import WorkerRunner

from bench.harness.pipecat.services import Answer, DeviceOutput, ScriptedCaller, ScriptedLLM, ScriptedTTS
from bench.harness.pipecat.virtual_time import LoopClock
from bench.harness.pipecat.voice import LOUD, Device, Speech, Truth, Voice, Word
from bench.harness.truth import CALLS, load_calls

SYSTEM: Any = {"role": "system", "content": "You are a friendly clerk."}
POLL_S = 0.01
LONGEST_S = 200
"""No call takes longer, in its own time."""


@cache
def speech(name: str) -> Speech:
    """A reply of a recorded call: `taxi a3`."""
    call_name, item = name.split()
    call = next(one for one in load_calls(CALLS) if one.name == call_name)
    reply = next(one for one in call.replies if one.item == item)
    words = reply.text.split()
    assert len(words) == len(reply.words), name
    return Speech(
        reply.text, tuple(Word(text, one.start_ms, one.end_ms) for text, one in zip(words, reply.words, strict=True))
    )


@dataclass(frozen=True)
class Mode:
    """How a TTS works, and what the client holds."""

    words: bool = False
    inline: bool = False
    tokens: bool = False
    buffer_ms: float = 0.0


MODES = {
    "words": Mode(words=True),
    "words, 200 ms in the client": Mode(words=True, buffer_ms=200),
    "inline": Mode(inline=True),
    "plain": Mode(),
    "plain, 200 ms in the client": Mode(inline=True, buffer_ms=200),
    "tokens": Mode(inline=True, tokens=True),
    "tokens, words": Mode(words=True, tokens=True),
}

Script = Callable[["Call"], Coroutine[Any, Any, None]]


@dataclass
class Scenario:
    """What is said on a call."""

    name: str
    script: Script
    answers: list[Answer]
    speeches: list[Speech]
    pauses: dict[int, float] = field(default_factory=dict)
    """Seconds before the audio of the TTS's requests, by their number; in token mode there are more of them."""


async def ordered(call: FunctionCallParams) -> None:
    """The tool of these bots."""
    await call.result_callback({"ordered": True})


class Call:
    """A pipeline on its way, in real time or in that of a `VirtualLoop`."""

    def __init__(self, scenario: Scenario, mode: Mode) -> None:
        self.voice = Voice(scenario.speeches)
        self.device = Device(mode.buffer_ms)
        self.caller = ScriptedCaller()
        self.llm = ScriptedLLM(scenario.answers)
        self.llm.register_function("order", ordered)
        pauses = {} if mode.tokens else scenario.pauses
        self.tts = ScriptedTTS(self.voice, words=mode.words, inline=mode.inline, tokens=mode.tokens, pauses=pauses)
        self.context = LLMContext([SYSTEM])
        params = LLMUserAggregatorParams(
            user_turn_strategies=ExternalUserTurnStrategies(), user_mute_strategies=self.mutes()
        )
        pair = LLMContextAggregatorPair(self.context, user_params=params)
        parts = [self.caller, *self.editors(), pair.user(), *self.agent(), DeviceOutput(self.device), pair.assistant()]
        self.worker = PipelineWorker(Pipeline(parts), clock=LoopClock(), enable_rtvi=False, idle_timeout_secs=None)
        self.script = scenario.script

    # What kinds of calls may have otherwise

    def agent(self) -> list[FrameProcessor]:
        """What answers, and speaks."""
        return [self.llm, self.tts]

    def editors(self) -> list[FrameProcessor]:
        """What transcripts pass through on their way to the context."""
        return []

    def mutes(self) -> list[Any]:
        """When the caller is muted."""
        return []

    async def run(self) -> None:
        """The whole call."""
        started = asyncio.Event()

        async def on_started(*_: Any) -> None:
            started.set()

        self.worker.add_event_handler("on_pipeline_started", on_started)
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(self.worker)

        async def act() -> None:
            await started.wait()
            await self.script(self)
            await asyncio.sleep(1)
            if not self.worker.has_finished():
                await self.worker.queue_frame(EndFrame())

        async with asyncio.timeout(LONGEST_S):
            await asyncio.gather(runner.run(), act())

    # What scripts do

    async def say(self, *finals: str, lasting_s: float = 0.6, interim: str = "") -> None:
        """The caller says something, from now on for so long."""
        await self.caller.begin(interim)
        await asyncio.sleep(lasting_s)
        await self.caller.finish(*finals)

    async def speak(self, text: str) -> None:
        """The program has the agent say a text."""
        await self.queue(TTSSpeakFrame(text))

    async def queue(self, frame: Frame) -> None:
        await self.worker.queue_frame(frame)

    async def until_heard(self, number: int, words: int) -> None:
        """Wait until so many words of a speech have begun to be heard."""
        while self.heard_now(number) < words:  # noqa: ASYNC110 (what is heard is a matter of time)
            await asyncio.sleep(POLL_S)

    async def until_silent(self) -> None:
        """Wait until the device has played all that it got, and a second more."""
        while not self.device.parts or self.now() < self.device.parts[-1][1] + 1:  # noqa: ASYNC110 (likewise)
            await asyncio.sleep(0.1)

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def heard_now(self, number: int) -> int:
        """How many words of a speech the device has begun to play."""
        now = self.now()
        for begin, end, audio in reversed(self.device.parts[-100:]):
            part = audio if end <= now else audio[: 2 * self.voice.samples(max(0.0, now - begin) * 1000)]
            length = len(part.rstrip(b"\0"))  # the last sample that is not silence
            if length:
                speech, word, _ = self.voice.codes[memoryview(part).cast("h")[(length - 1) // 2] - LOUD - 1]
                return word + 1 if speech == number else 0
        return 0

    def hang_up(self) -> None:
        """The caller is gone; nothing that comes from now on is played."""
        self.device.hang_up(self.now())

    def truths(self) -> list[Truth]:
        return self.device.truth(self.voice)
