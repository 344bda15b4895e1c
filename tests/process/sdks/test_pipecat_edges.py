"""Calls of real Pipecat pipelines that go as few do: what the memory then has, and what the LLM gets."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest

from tests.support.callers.client_sessions import client_to
from tests.support.needs import needs_module
from tests.support.services import Serve

needs_module("pipecat", "pipecat")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    from pipecat.frames.frames import (
        Frame,
        InterruptionFrame,
        LLMMessagesAppendFrame,
        ManuallySwitchServiceFrame,
        TTSSpeakFrame,
    )
    from pipecat.pipeline.parallel_pipeline import ParallelPipeline
    from pipecat.pipeline.service_switcher import ServiceSwitcher
    from pipecat.processors.filters.function_filter import FunctionFilter
    from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
    from pipecat.services.llm_service import FunctionCallParams
    from pipecat.turns.user_mute import MuteUntilFirstBotCompleteUserMuteStrategy

    from bench.harness.pipecat.call import MODES, Call, Mode, Scenario
    from bench.harness.pipecat.scenarios import BANK, CAB, CAR, CLAIM, GATE, OKAY
    from bench.harness.pipecat.scoring import Recorded, record
    from bench.harness.pipecat.services import Answer, ScriptedTTS
    from voicemem.integrations import pipecat

pytestmark = pytest.mark.filterwarnings("default")  # the framework's own are not ours
ORDER: dict[str, Any] = {"item": "pizza"}


def said(call: Recorded) -> list[tuple[str, str]]:
    return [(one["role"], one["content"]) for one in call.messages() if one["content"]]


def assert_exact(call: Recorded, edge: int = 0) -> None:
    """Each reply ends where its audio did."""
    assert all(abs(one.wrong) <= (edge if one.cut else 0) for one in call.scores), call.scores


# Pipelines of other shapes


class TwoVoices(Call):
    """A second TTS takes over when it is told to."""

    def agent(self) -> list[FrameProcessor]:
        mode = Mode(words=self.tts.words, inline=self.tts.inline)
        self.other = ScriptedTTS(self.voice, words=mode.words, inline=mode.inline, pauses={})
        return [self.llm, ServiceSwitcher([self.tts, self.other])]


async def changes_voices(call: Call) -> None:
    assert isinstance(call, TwoVoices)
    await call.say("Where is my cab?")
    await call.until_heard(0, 8)
    await call.say("Another voice, please.")
    await call.queue(ManuallySwitchServiceFrame(service=call.other))
    await call.until_heard(1, 3)
    await call.say("Thank you.")
    await call.until_silent()


@pytest.mark.parametrize("mode", ["words", "inline", "plain, 200 ms in the client"])
def test_several_voices(mode: str) -> None:
    """A TTS takes over from another in mid call: the replies of both are cut where their audio was."""
    answers = [Answer(one.text) for one in (CAB, CLAIM, CAR)]
    call = record(Scenario("voices", changes_voices, answers, [CAB, CLAIM, CAR]), MODES[mode], TwoVoices)
    assert [role for role, _ in said(call)] == ["user", "assistant"] * 3
    assert_exact(call, 1)


class Branches(Call):
    """The agent is one of two branches; the other one has all frames as well, and lets nothing through."""

    def agent(self) -> list[FrameProcessor]:
        async def nothing(frame: Frame) -> bool:
            return False

        branches = ([self.llm, self.tts], [FunctionFilter(nothing)])
        return [ParallelPipeline(*branches)]  # type: ignore[no-untyped-call, unused-ignore]


async def broken_into_twice(call: Call) -> None:
    await call.say("Where is my cab?", interim="Where")
    await call.until_heard(0, 8)
    await call.say("Thank", "you.")
    await call.until_heard(1, 5)
    await call.say("Bye.")
    await call.until_silent()


@pytest.mark.parametrize("mode", ["words", "inline"])
def test_parallel_branches(mode: str) -> None:
    """What passes through several branches is remembered once."""
    answers = [Answer(one.text) for one in (CAB, CAR, OKAY)]
    call = record(Scenario("branches", broken_into_twice, answers, [CAB, CAR, OKAY]), MODES[mode], Branches)
    assert [text for role, text in said(call) if role == "user"] == ["Where is my cab?", "Thank you.", "Bye."]
    assert [role for role, _ in said(call)] == ["user", "assistant"] * 3
    assert_exact(call, 1)


# What the program says and asks


async def speaks_in_between(call: Call) -> None:
    await call.say("Where is my cab?")
    await call.until_heard(0, 4)
    await call.queue(TTSSpeakFrame(CAR.text))
    await call.queue(TTSSpeakFrame(OKAY.text))
    await call.until_heard(2, 3)
    await call.say("Wait.")
    await call.until_silent()


@pytest.mark.parametrize("mode", ["words", "inline"])
def test_texts_of_the_program_behind_a_reply(mode: str) -> None:
    """They are messages of their own, whole or cut, in the order in which they are heard."""
    answers = [Answer(CAB.text), Answer(GATE.text)]
    call = record(Scenario("speaks", speaks_in_between, answers, [CAB, CAR, OKAY, GATE]), MODES[mode])
    replies = [one for one in call.messages() if one["role"] == "assistant"]
    texts = [one["metadata"].get("original") or one["content"] for one in replies]
    assert texts == [CAB.text, CAR.text, OKAY.text, GATE.text]
    assert [one["metadata"].get("source") for one in replies][1:3] == ["command", "command"]
    assert_exact(call, 1)


async def asks_for_the_caller(call: Call) -> None:
    await call.say("Where is my cab?")
    await call.until_heard(0, 8)
    await call.queue(InterruptionFrame())
    await call.queue(LLMMessagesAppendFrame([{"role": "user", "content": "I typed this."}], run_llm=True))
    await call.until_silent()


def test_messages_that_the_program_appends() -> None:
    """A message of the user is in its place, between the reply that it cuts and its answer."""
    call = record(
        Scenario("append", asks_for_the_caller, [Answer(CAB.text), Answer(CAR.text)], [CAB, CAR]), MODES["words"]
    )
    roles = [(one["role"], one["metadata"].get("source")) for one in call.messages()]
    assert roles[2] == ("user", "message")
    assert [text for _, text in said(call)][2:] == ["I typed this.", CAR.text]
    assert_exact(call)


class MutedAtFirst(Call):
    def mutes(self) -> list[Any]:
        return [MuteUntilFirstBotCompleteUserMuteStrategy()]  # type: ignore[no-untyped-call, unused-ignore]


async def speaks_too_early(call: Call) -> None:
    await call.speak(BANK.text)
    await call.until_heard(0, 5)
    await call.say("Hello? Hello?", interim="Hello?")
    await call.until_silent()
    await call.say("My card is gone.")
    await call.until_silent()


def test_a_muted_caller() -> None:
    """What the pipeline drops is no part of the conversation: the greeting is whole, and no one answers."""
    call = record(Scenario("muted", speaks_too_early, [Answer(OKAY.text)], [BANK, OKAY]), MODES["words"], MutedAtFirst)
    texts = [text for _, text in said(call)]
    assert texts == [BANK.text, "My card is gone.", OKAY.text]


# Tools and interruptions


class SlowTool(Call):
    """The tool takes longer than the caller waits."""

    runs_on = False

    def agent(self) -> list[FrameProcessor]:
        async def ordered(params: FunctionCallParams) -> None:
            await asyncio.sleep(4)
            await params.result_callback({"ordered": True})

        self.llm.register_function("order", ordered, cancel_on_interruption=not self.runs_on)
        return super().agent()


class ToolThatRunsOn(SlowTool):
    runs_on = True


async def breaks_into_a_tool(call: Call) -> None:
    await call.say("A pizza, please.")
    await call.wait(1.5)
    await call.say("And a cab.")
    await call.wait(0.1)
    await call.until_silent()
    await call.wait(4)
    await call.until_silent()
    await call.say("Good.")
    await call.wait(2)
    await call.until_silent()


def tool_events(call: Recorded) -> list[tuple[str, Any]]:
    return [(one["type"], one.get("result")) for one in call.events if one["type"].startswith("tool.")]


TOOL_ANSWERS = [Answer(OKAY.text, ("call-1", "order", ORDER)), Answer(CAB.text), Answer(CAR.text), Answer(GATE.text)]


def test_a_tool_that_is_cancelled() -> None:
    """An interruption ends it; the memory has the call with the result that Pipecat tells the LLM."""
    call = record(
        Scenario("cancelled", breaks_into_a_tool, TOOL_ANSWERS[:3], [OKAY, CAB, CAR]), MODES["words"], SlowTool
    )
    assert tool_events(call) == [("tool.call", None), ("tool.result", "CANCELLED")]
    assert [text for _, text in said(call)][2:4] == ["And a cab.", CAB.text]
    assert_exact(call)


def test_a_tool_that_runs_on() -> None:
    """Its result comes in a later turn, once, and what was said meanwhile stays where it was."""
    call = record(
        Scenario("runs on", breaks_into_a_tool, TOOL_ANSWERS, [OKAY, CAB, CAR, GATE]), MODES["words"], ToolThatRunsOn
    )
    assert tool_events(call) == [("tool.call", None), ("tool.result", {"ordered": True})]
    assert_exact(call)


# What the LLM gets, from a running service in real time


class SlowToInterrupt(Call):
    """A TTS that takes a moment for an interruption, as those do that connect again."""

    def agent(self) -> list[FrameProcessor]:
        class Hesitates(FrameProcessor):
            async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
                await super().process_frame(frame, direction)
                if isinstance(frame, InterruptionFrame):
                    await asyncio.sleep(0.1)
                await self.push_frame(frame, direction)

        return [self.llm, Hesitates(), self.tts]


async def interjects(call: Call) -> None:
    await call.say("Where is my cab?")
    await call.until_heard(0, 8)
    await call.say("Thank you!", lasting_s=0.002)
    await call.until_heard(1, 2)


@pytest.mark.parametrize("kind", [Call, SlowToInterrupt])
async def test_an_interjection_of_milliseconds(serve: Serve, kind: type[Call]) -> None:
    """The LLM is asked while the interruption is still on its way to the output; it gets the heard part."""
    call = kind(Scenario("short", interjects, [Answer(CAB.text), Answer(CAR.text)], [CAB, CAR]), MODES["inline"])
    async with client_to(await serve()) as client:
        memory = pipecat.attach(call.worker, client, session_id="call", context=True)
        await call.run()
        await memory.aclose()
    _, asked, heard, thanked = call.llm.requests[1]
    assert (asked["content"], thanked["content"]) == ("Where is my cab?", "Thank you!")
    assert CAB.text.startswith(heard["content"])
    assert 0 < len(heard["content"]) < len(CAB.text)


async def test_the_llm_knows_of_a_tool_that_runs_on(serve: Serve) -> None:
    """The running call stands before the caller's newest words; later it is there once, with its result."""
    scenario = Scenario("runs on", breaks_into_a_tool, TOOL_ANSWERS, [OKAY, CAB, CAR, GATE])
    call = ToolThatRunsOn(scenario, MODES["inline"])
    async with client_to(await serve()) as client:
        memory = pipecat.attach(call.worker, client, session_id="call", context=True)
        await call.run()
        await memory.aclose()
    meanwhile, after, later = call.llm.requests[1], call.llm.requests[2], call.llm.requests[-1]
    assert meanwhile[-1] == {"role": "user", "content": "And a cab."}
    for request in (meanwhile, after, later):
        assert sum(bool(one.get("tool_calls")) for one in request) == 1
        assert sum(one["role"] == "tool" for one in request) == 1
    assert "ordered" in str(after)
    assert later[-1] == {"role": "user", "content": "Good."}
    assert not any(one["role"] == "developer" for one in later)
