"""Runs of the real OpenAI Agents SDK, with a scripted model, over a session of a running service."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest

from tests.support.callers.client_sessions import client_for, client_to
from tests.support.callers.rest import RestClient
from tests.support.services import Serve
from voicemem.app import App
from voicemem.client import Client
from voicemem.config.service import Address

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    pytest.importorskip("agents", reason="openai-agents is tested in an environment of its own (make packaging)")
    from agents import Agent, Runner, function_tool
    from agents.memory import Session
    from agents.realtime import RealtimeAgent, RealtimePlaybackTracker, RealtimeRunner
    from agents.realtime import model_events as said
    from agents.realtime.items import UserMessageItem
    from agents.realtime.testing import ScriptedRealtimeModel
    from agents.run import RunConfig
    from agents.testing import ScriptedModel, assistant_message, function_call

    from voicemem.integrations import openai_agents
    from voicemem.integrations.openai_agents.items import text_of

pytestmark = pytest.mark.filterwarnings("default")  # the framework's own are not ours
NOBODY = Address("127.0.0.1", 1)
WEATHER = "In Oslo it rains until the evening."
CONFIG = RunConfig(tracing_disabled=True)


def look_up(city: str) -> str:
    """What the weather is."""
    return f"rain in {city}"


@pytest.fixture
async def app(serve: Serve) -> App:
    return await serve()


def bot(*steps: Any, tools: list[Any] | None = None) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel(steps)
    return Agent(name="bot", instructions="Be brief.", model=model, tools=tools or []), model


async def ask(agent: Agent, text: str, memory: Any) -> str:
    return str((await Runner.run(agent, text, session=memory, run_config=CONFIG)).final_output)


def contents(items: Any) -> list[tuple[str, str]]:
    """Role or type of each item, and its text."""
    return [
        (one.get("role") or one["type"], str(one.get("content") or one.get("output") or one.get("name")))
        for one in items
    ]


async def test_the_next_run_gets_what_was_heard(app: App) -> None:
    """After a barge-in the model sees the heard part, with the tool's call and result; a new process does so too."""
    agent, model = bot(
        [function_call("look_up", {"city": "Oslo"}, call_id="call-1")],
        [assistant_message(WEATHER)],
        [assistant_message("Yes.")],
        [assistant_message("Bye.")],
        tools=[function_tool(look_up)],
    )
    async with client_to(app) as client:
        memory = openai_agents.session(client, "call")
        assert isinstance(memory, Session)
        assert await ask(agent, "What is the weather in Oslo?", memory) == WEATHER
        memory.interrupted(heard_text="In Oslo it ")
        await ask(agent, "Rain again?", memory)
        await memory.aclose()
    heard = [
        ("user", "What is the weather in Oslo?"),
        ("function_call", "look_up"),
        ("function_call_output", "rain in Oslo"),
        ("assistant", "In Oslo it "),
    ]
    assert sorted(contents(model.calls[2].input)) == sorted([*heard, ("user", "Rain again?")])
    stored = await RestClient(app).contents("call")
    assert stored[1]["metadata"]["original"] == WEATHER
    async with client_to(app) as client:
        later = openai_agents.session(client, "call", producer="later")
        await later.session.opening
        await ask(agent, "Goodbye.", later)
        await later.aclose()
    assert ("assistant", "In Oslo it ") in contents(model.calls[3].input)


async def test_a_session_does_what_the_protocol_asks(app: App) -> None:
    """Items have a limit, the newest is taken back, and all are forgotten."""
    async with client_to(app) as client:
        memory = openai_agents.session(client, "call")
        await memory.session.opening
        await memory.add_items([{"role": "user", "content": "One."}, {"role": "assistant", "content": "Two."}])
        await memory.add_items([{"role": "user", "content": [{"type": "input_text", "text": "Three."}]}])
        assert contents(await memory.get_items(2)) == [("assistant", "Two."), ("user", "Three.")]
        popped = [await memory.pop_item() for _ in range(2)]
        assert [text_of(one) for one in popped] == ["Three.", "Two."]
        assert contents(await memory.get_items()) == [("user", "One.")]
        await memory.clear_session()
        assert await memory.get_items() == []
        assert await memory.pop_item() is None


async def test_without_a_memory_the_agent_goes_on() -> None:
    """The session has what this process added, as far as it was heard."""
    agent, model = bot([assistant_message(WEATHER)], [assistant_message("Yes.")])
    client = client_for(NOBODY, NOBODY, open_timeout_s=0.2, context_timeout_s=0.2)
    async with asyncio.timeout(30):
        memory = openai_agents.session(client, "call")
        await ask(agent, "What is the weather?", memory)
        memory.interrupted(heard_text="In Oslo ")
        await ask(agent, "Rain?", memory)
        await memory.session.aclose(0.1)
        await client.close(0)
    assert contents(model.calls[1].input) == [
        ("user", "What is the weather?"),
        ("assistant", "In Oslo "),
        ("user", "Rain?"),
    ]


# Realtime


def user_item(item_id: str) -> Any:
    """The caller's turn, as the server announces it."""
    return UserMessageItem(item_id=item_id, content=[])


async def realtime_call(client: Client, tracker: Any) -> None:
    """The caller asks, the model answers with two seconds of audio, and the caller breaks in after a half of it."""
    model = ScriptedRealtimeModel(strict=False)
    runner = RealtimeRunner(RealtimeAgent(name="bot"), model=model)
    session = await runner.run(model_config={"playback_tracker": tracker} if tracker else {})
    memory = openai_agents.attach(session, client, tracker=tracker, session_id="call")
    await memory.session.opening
    hear = memory.listener.on_event
    await hear(said.RealtimeModelItemUpdatedEvent(item=user_item("u1")))
    for delta in ("In Oslo it rains ", "until the evening."):
        await hear(said.RealtimeModelTranscriptDeltaEvent(item_id="a1", delta=delta, response_id="r1"))
    for _ in range(20):
        await hear(said.RealtimeModelAudioEvent(data=bytes(4800), response_id="r1", item_id="a1", content_index=0))
    await hear(said.RealtimeModelTurnEndedEvent(response_id="r1"))
    await hear(said.RealtimeModelInputAudioTranscriptionCompletedEvent(item_id="u1", transcript="The weather?"))
    if tracker is not None:
        tracker.on_play_ms("a1", 0, 1000)
    await hear(said.RealtimeModelAudioInterruptedEvent(item_id="a1", content_index=0))
    if tracker is not None:
        tracker.on_interrupted()
    await hear(said.RealtimeModelItemUpdatedEvent(item=user_item("u2")))
    await hear(said.RealtimeModelInputAudioTranscriptionCompletedEvent(item_id="u2", transcript="Thanks."))
    await hear(object())
    await memory.aclose()


async def test_a_realtime_reply_ends_where_the_player_was(app: App) -> None:
    """The caller's late transcript stands before the reply, and the reply ends at the tracker's position."""
    async with client_to(app) as client:
        await realtime_call(client, RealtimePlaybackTracker())
    messages = await RestClient(app).contents("call")
    assert [one["role"] for one in messages] == ["user", "assistant", "user"]
    assert [messages[0]["content"], messages[2]["content"]] == ["The weather?", "Thanks."]
    assert messages[1]["content"] == "In Oslo it rains "
    assert messages[1]["metadata"]["original"] == WEATHER


async def test_without_a_tracker_a_cut_is_a_cut(app: App) -> None:
    """How much was heard is then estimated."""
    async with client_to(app) as client:
        await realtime_call(client, None)
    messages = await RestClient(app).contents("call")
    assert messages[1]["metadata"]["interrupted"] is True
