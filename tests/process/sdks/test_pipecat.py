"""Calls of real Pipecat pipelines: against what their device has played, and remembered by a running service."""

from __future__ import annotations

import asyncio
import logging
import warnings
from functools import cache
from typing import Any

import pytest

from tests.support.callers.client_sessions import client_for, client_to
from tests.support.callers.rest import RestClient
from tests.support.needs import needs_module
from voicemem.app import App
from voicemem.config.service import Address

needs_module("pipecat", "pipecat")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    from pipecat.frames.frames import EndFrame
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.worker import PipelineWorker
    from pipecat.processors.frame_processor import FrameProcessor

    from bench.harness.pipecat.call import MODES, Call, Scenario
    from bench.harness.pipecat.scenarios import CAB, CAR, ONIONS, SCENARIOS
    from bench.harness.pipecat.scoring import Recorded, record
    from bench.harness.pipecat.services import Answer
    from voicemem.integrations import pipecat

pytestmark = pytest.mark.filterwarnings("default")  # the framework's own are not ours
BY_NAME = {one.name: one for one in SCENARIOS}
NOBODY = Address("127.0.0.1", 1)
MOST_WRONG = {name: 0 if mode.words else 2 if mode.tokens else 1 for name, mode in MODES.items()}
"""Words that one cut reply may be wrong by: with word times none, else one at the edge of the cut."""


@cache
def recorded(scenario: str, mode: str) -> Recorded:
    """A call in virtual time, made once."""
    return record(BY_NAME[scenario], MODES[mode])


# What was heard, in virtual time


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scenario", ["early", "late"])
def test_what_was_heard_is_remembered(scenario: str, mode: str) -> None:
    """A cut reply ends where its audio did, in the first sentence and in a later one, and a whole one is whole."""
    scores = recorded(scenario, mode).scores
    assert any(one.cut for one in scores)
    assert all(abs(one.wrong) <= (MOST_WRONG[mode] if one.cut else 0) for one in scores), scores


@pytest.mark.parametrize("mode", ["words", "inline"])
@pytest.mark.parametrize("scenario", ["twice", "tool", "slow TTS", "slow LLM", "greeting"])
def test_it_is_remembered_whatever_else_goes_on(scenario: str, mode: str) -> None:
    """Cuts soon after one another, tools, audio and text that are late, and texts of the program."""
    scores = recorded(scenario, mode).scores
    assert all(abs(one.wrong) <= (MOST_WRONG[mode] if one.cut else 0) for one in scores), scores


@pytest.mark.parametrize("scenario", ["hang-up, EndFrame", "hang-up, CancelFrame"])
def test_nothing_is_heard_after_the_caller_has_gone(scenario: str) -> None:
    """An orderly end of the pipeline is no proof that anybody listened."""
    call = recorded(scenario, "words")
    (score,) = call.scores
    assert score.cut
    assert score.wrong == 0
    assert call.messages()[-1]["metadata"]["interrupted"] is True
    assert [one["type"] for one in call.events][-1] == "session.end"


def test_a_reply_that_nobody_heard_leaves_nothing() -> None:
    """The caller went on before it was played."""
    contents = [one["content"] for one in recorded("before audio", "words").messages()]
    assert contents[0] == "How do I fry onions? I mean for a soup."
    assert not any(one in ONIONS.text for one in contents)


def test_interruptions_of_a_silent_agent_do_nothing() -> None:
    """Pipecat sends one at each turn of the caller; several finals of a turn are one message."""
    call = recorded("all heard", "inline")
    assert "interrupt" not in [one["type"] for one in call.events]
    assert [one["content"] for one in call.messages()][2:] == ["Thank you.", CAR.text]


def test_texts_of_the_program_and_tools_are_in_the_memory() -> None:
    """A text to say at the beginning is a greeting; each tool is called and answered once."""
    greeting = recorded("greeting", "words").messages()[0]
    assert (greeting["role"], greeting["metadata"]["source"]) == ("assistant", "greeting")
    tools = [one for one in recorded("tool", "words").events if one["type"].startswith("tool.")]
    assert [(one["type"], one["call_id"]) for one in tools] == [("tool.call", "call-1"), ("tool.result", "call-1")]
    assert (tools[0]["arguments"], tools[1]["result"]) == ({"item": "pizza"}, {"ordered": True})


def test_what_cannot_be_understood_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    """A frame of another version is dropped, with one line in the log."""
    observer: Any = pipecat.observer(lambda event: None)
    listener = observer.listener

    class Pushed:
        frame, direction, timestamp, first_push, source = EndFrame(), None, 1, True, None

    with caplog.at_level(logging.WARNING, "voicemem.integrations"):
        for _ in range(3):
            listener.on_push(Pushed())
    assert len(caplog.records) == 1


# A running service, in real time


async def interrupts(call: Call) -> None:
    await call.say("Where is my cab?")
    await call.until_heard(0, 8)
    await call.say("Thank you!")
    await call.until_heard(1, 2)


SHORT = Scenario("short", interrupts, [Answer(CAB.text), Answer(CAR.text)], [CAB, CAR])


async def test_the_llm_gets_what_was_heard(app: App) -> None:
    """After a barge-in the next request has the heard part of the reply, and the caller's words once."""
    call = Call(SHORT, MODES["inline"])
    async with client_to(app) as client:
        memory = pipecat.attach(call.worker, client, session_id="call", context=True)
        await call.run()
        await memory.aclose()
    system, asked, heard, thanked = call.llm.requests[1]
    assert (system["role"], asked["content"], thanked["content"]) == ("system", "Where is my cab?", "Thank you!")
    assert CAB.text.startswith(heard["content"])
    assert 0 < len(heard["content"]) < len(CAB.text)
    stored = await RestClient(app).contents("call")
    assert stored[1]["content"] == heard["content"]
    assert stored[1]["metadata"]["original"] == CAB.text


async def test_the_memory_instructs_beside_the_settings_of_the_llm(app: App) -> None:
    """Pipecat sends one system message with an instruction of the settings; Gemini's would replace the context's."""
    config = {"system_messages": [{"role": "system", "content": "The caller is Ann."}]}
    call = Call(SHORT, MODES["inline"])
    call.llm.append_system_instruction("Be brief.")  # as the settings of a program have it
    call.context.set_messages([])
    async with client_to(app) as client:
        memory = pipecat.attach(call.worker, client, session_id="call", context=True, config=config)
        await call.run()
        await memory.aclose()
    assert call.llm.requests[1][0] == {"role": "developer", "content": "The caller is Ann."}
    assert [one["role"] for one in call.llm.requests[1][1:]] == ["user", "assistant", "user"]


async def test_a_pipeline_without_an_llm_service_is_reported(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """What answers is a plain processor, which no request passes on its way to."""
    async with client_to(app) as client:
        memory = pipecat.attach(PipelineWorker(Pipeline([FrameProcessor()])), client, context=True)
        await memory.aclose()
    assert [one for one in caplog.messages if "LLMService" in one]


async def test_without_a_memory_the_agent_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Pipecat's own messages are used, at once."""
    call = Call(SHORT, MODES["inline"])
    client = client_for(NOBODY, NOBODY, open_timeout_s=0.2, context_timeout_s=0.2)
    async with asyncio.timeout(60):
        memory = pipecat.attach(call.worker, client, context=True)
        await call.run()
        await memory.session.aclose(0.1)
        await client.close(0)
    assert [one["role"] for one in call.llm.requests[1]][:2] == ["system", "user"]
    assert call.llm.requests[1][-1]["content"] == "Thank you!"
    assert len([one for one in caplog.messages if "not open yet" in one]) == 1
