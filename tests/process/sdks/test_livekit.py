"""Calls of a real LiveKit `AgentSession`, remembered by a running service: against what its device has played."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.callers.client_sessions import client_for, client_to
from tests.support.callers.rest import RestClient, wait_until_closed
from tests.support.needs import needs_module
from voicemem.app import App
from voicemem.client import Client
from voicemem.config.service import Address
from voicemem.protocol.types import JsonObject

needs_module("livekit.agents", "livekit")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    from livekit.agents import Agent, ChatContext, llm

    from bench.harness.livekit import scenarios
    from bench.harness.livekit.scenarios import JOKE, SCENARIOS, SHORT, STORY, OwnNodes, Scenario, answer
    from bench.harness.livekit.stage import ALIGNED, MODES, PLAIN, Mode, Stage
    from voicemem.integrations import livekit
    from voicemem.integrations.livekit.remembering import text_of

NOBODY = Address("127.0.0.1", 1)
EDGE = {"aligned": 1, "plain": 2, "unsynced": 2}
"""Words that may be wrong: the device of a busy machine stops a little before or after it says so."""
BY_NAME = {one.name: one for one in SCENARIOS}


async def remembered(app: App, scenario: Scenario, mode: Mode) -> tuple[Stage, list[JsonObject]]:
    """A call, and the messages that the service has of it."""
    async with client_to(app) as client:
        stage = scenario.stage(mode)
        memory = livekit.attach(stage.session, client, session_id="call")
        await stage.start(scenario.agent())
        await scenario.act(stage)
        await stage.close()
        await memory.aclose()
    return stage, await RestClient(app).contents("call")


def reply_with(messages: list[JsonObject], text: str) -> JsonObject:
    """The message of a reply; each reply has its own words."""
    (found,) = [one for one in messages if one["metadata"].get("original", one["content"]).strip() in text]
    return found


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", ["plain", "false_then_real"])
async def test_what_was_heard_is_remembered(app: App, name: str, mode: Mode) -> None:
    """A reply that is cut ends where its audio did, with word times and without, also after a false alarm."""
    scenario = BY_NAME[name]
    stage, messages = await remembered(app, scenario, mode)
    found = reply_with(messages, scenario.replies[0])
    assert found["metadata"]["interrupted"] is True
    assert abs(stage.heard(scenario.replies[0]).wrong(found["content"])) <= EDGE[mode.name]
    assert [one["content"] for one in messages if one["role"] == "user"][-1] == "No stop that please"
    assert messages[-1]["content"].strip() == SHORT


@pytest.mark.parametrize("name", ["slow_tts", "say", "hand_over", "realtime", "hang_up", "early"])
async def test_other_ways_of_a_call(app: App, name: str) -> None:
    """A slow TTS, a text that no LLM made, a second agent, a hang-up: the reply ends where its audio did."""
    scenario = BY_NAME[name]
    stage, messages = await remembered(app, scenario, ALIGNED)
    found = reply_with(messages, scenario.replies[0])
    assert found["metadata"]["interrupted"] is True
    assert abs(stage.heard(scenario.replies[0]).wrong(found["content"])) <= EDGE["plain"]


async def test_a_false_alarm_cuts_nothing(app: App) -> None:
    """After a cough the reply is played to its end, and is whole in the memory."""
    _, messages = await remembered(app, BY_NAME["false_alarm"], PLAIN)
    assert [(one["content"].strip(), "interrupted" in one["metadata"]) for one in messages] == [
        ("Tell me a joke", False),
        (JOKE, False),
    ]


async def test_an_answer_that_was_thrown_away_never_existed(app: App) -> None:
    """The preemptive answer to half of the question is in no one's memory; both halves are one message."""
    _, messages = await remembered(app, BY_NAME["preemptive"], ALIGNED)
    assert messages[0]["content"] == "Tell me a joke no a story"
    originals = [one["metadata"].get("original", one["content"]).strip() for one in messages]
    assert JOKE not in originals
    assert originals[1] == STORY


async def test_tools_are_in_the_turn_of_the_question(app: App) -> None:
    """The call and its result stand in the turn in which the caller asked, before the agent has said a word."""
    await remembered(app, BY_NAME["tool"], ALIGNED)
    context = await RestClient(app).context("?tools=true", "call")
    assert [one["role"] for one in context["messages"]][:3] == ["user", "assistant", "tool"]
    assert context["messages"][1]["tool_calls"][0]["function"]["name"] == "look_up"
    assert context["messages"][2]["content"] == "12 crowns"


async def test_typed_text_is_remembered(app: App) -> None:
    """What reaches the agent without a recogniser is a message of the user."""
    _, messages = await remembered(app, BY_NAME["hand_over"], ALIGNED)
    typed = [one for one in messages if one["content"] == "Hello, is this Anna?"]
    assert [one["metadata"]["source"] for one in typed] == ["message"]


async def test_the_call_ends_with_the_session(app: App) -> None:
    """`session.end` has LiveKit's reason, and the session is closed."""
    await remembered(app, BY_NAME["hang_up"], PLAIN)
    await wait_until_closed(app, "call")


async def test_nodes_of_an_agent_are_kept(app: App) -> None:
    """What the agent's own nodes make is played and remembered."""

    async def act(stage: Stage) -> None:
        await stage.caller.says("Good morning")
        await stage.until_remembered(1)
        await stage.until_silent()

    stage, messages = await remembered(app, Scenario("own", "", act, (), OwnNodes), ALIGNED)
    assert [one["content"] for one in messages] == ["Good morning", "Hello **there**."]
    assert stage.heard("Hello there.").ended == 2


async def test_a_call_without_audio_is_remembered(app: App) -> None:
    """Where the agent writes, its replies are whole once LiveKit has them."""

    async def act(stage: Stage) -> None:
        stage.session.output.set_audio_enabled(False)
        stage.session.generate_reply(user_input="Tell me a joke")
        await stage.until_remembered(1)
        await stage.until_silent()

    _, messages = await remembered(app, Scenario("text", "", act, ()), PLAIN)
    assert [(one["content"], "interrupted" in one["metadata"]) for one in messages] == [
        ("Tell me a joke", False),
        (JOKE, False),
    ]


@asynccontextmanager
async def call_with_context(client: Client, **given: Any) -> AsyncIterator[Stage]:
    """A call whose LLM gets the memory."""
    stage = Stage(PLAIN, answer, tools=[scenarios.look_up])
    memory = livekit.attach(stage.session, client, session_id="call", context=True, **given)
    await stage.start(Agent(instructions="Be brief."))
    try:
        yield stage
    finally:
        await stage.close()
        await memory.aclose(timeout=0.5)


def said(context: llm.ChatContext) -> list[tuple[str, str]]:
    return [(one.role, text_of(one).strip()) for one in context.messages()]


async def test_the_llm_gets_what_was_heard(app: App) -> None:
    """After a barge-in, the next request has LiveKit's instructions, the heard text, and the caller's last words."""
    async with client_to(app) as client, call_with_context(client) as stage:
        await scenarios.plain(stage)
        context = said(stage.llm.contexts[-1])
        stored = await RestClient(app).contents("call")
    assert context[0] == ("system", "Be brief.")
    assert context[1:] == [(one["role"], one["content"].strip()) for one in stored[:3]]
    assert context[-1] == ("user", "No stop that please")
    assert JOKE.startswith(context[2][1])
    assert len(context[2][1]) < len(JOKE)


async def test_tool_results_are_in_the_context(app: App) -> None:
    """The request after a tool call has the call and its result once, after the question."""
    async with client_to(app) as client, call_with_context(client) as stage:
        await scenarios.tool(stage)
        kinds = [one.type for one in stage.llm.contexts[1].items]
    assert [kind for kind in kinds if kind != "agent_handoff"] == [
        "message",
        "message",
        "function_call",
        "function_call_output",
    ]


async def test_earlier_calls_are_in_the_context(app: App) -> None:
    """With `memory_from`, the first request knows what was said in the user's call before."""
    async with client_to(app) as client:
        earlier = await client.open("before", config={"user_id": "ann"})
        earlier.send({"type": "asr", "text": "My dog is called Bello.", "final": True})
        await earlier.end()
        config = {"user_id": "ann", "memory_from": {"sessions": 1, "what": "messages"}}
        async with call_with_context(client, config=config) as stage:
            await stage.until(lambda: memory_is_open(client))
            await stage.caller.says("Never mind")
            await stage.until_remembered(1)
            context = said(stage.llm.contexts[0])
    assert any("Bello" in text for _, text in context)


def memory_is_open(client: Client) -> bool:
    return any(session_id == "call" and producer.opened for (session_id, _), producer in client._producers.items())


async def test_without_the_memory_the_call_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """The LLM gets LiveKit's own messages, the agent speaks, and the log says once why."""
    client = client_for(NOBODY, NOBODY, open_timeout_s=0.2, context_timeout_s=0.2)
    async with asyncio.timeout(60):
        async with call_with_context(client) as stage:
            await scenarios.plain(stage)
            contexts = [said(one) for one in stage.llm.contexts]
        await client.close(0)
    assert contexts[0][-1] == ("user", "Tell me a joke")
    assert contexts[1][-1] == ("user", "No stop that please")
    assert len([one for one in caplog.messages if "not open yet" in one]) == 1


def test_messages_become_chat_items() -> None:
    """A context of the service as LiveKit's own: text, calls of tools, and their results."""
    messages: list[JsonObject] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How much?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "12"},
    ]
    made = livekit.chat_context(messages)
    assert isinstance(made, ChatContext)
    assert [one.type for one in made.items] == [
        "message",
        "message",
        "message",
        "function_call",
        "function_call_output",
    ]


@pytest.mark.parametrize("broken", ["on", "current_agent", "output"])
async def test_a_framework_that_has_changed_is_no_failure(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    """A session that lacks what is listened to is followed as far as it goes, and the log says what is missing."""

    class Changed:
        """Has none of the parts that LiveKit's session has, but for its events."""

        def __init__(self) -> None:
            self.callbacks: dict[str, Callable[[Any], None]] = {}

        def on(self, name: str, callback: Callable[[Any], None]) -> None:
            if broken == "on":
                raise ValueError(name)
            self.callbacks[name] = callback

    session: Any = Changed()
    client = client_for(NOBODY, open_timeout_s=0.2, context_timeout_s=0.2)
    memory = livekit.attach(session, client)
    for callback in session.callbacks.values():
        callback(object())
    await memory.aclose()
    await client.close(0)
    assert any("is not as expected" in one.getMessage() for one in caplog.records)
