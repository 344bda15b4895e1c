"""Runs of the real OpenAI Agents SDK, with a scripted model, over a session of a running service."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.callers.client_sessions import client_for, client_to
from tests.support.callers.rest import RestClient
from voicemem.app import App
from voicemem.client import Client
from voicemem.config.service import Address

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    pytest.importorskip("agents", reason="openai-agents is tested in an environment of its own (make packaging)")
    from agents import (
        Agent,
        GuardrailFunctionOutput,
        OutputGuardrail,
        OutputGuardrailTripwireTriggered,
        Runner,
        function_tool,
    )
    from agents.memory import Session
    from agents.realtime import RealtimeAgent, RealtimePlaybackTracker, RealtimeRunner
    from agents.realtime import model_events as said
    from agents.realtime.items import UserMessageItem
    from agents.run import RunConfig

    from tests.support.callers.scripted_agents import (
        ScriptedModel,
        ScriptedRealtimeModel,
        assistant_message,
        function_call,
    )
    from voicemem.integrations import openai_agents
    from voicemem.integrations.openai_agents import text_of

pytestmark = pytest.mark.filterwarnings("default")  # the framework's own are not ours
NOBODY = Address("127.0.0.1", 1)
WEATHER = "In Oslo it rains until the evening."
CONFIG = RunConfig(tracing_disabled=True)


async def wait_until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not happened():  # noqa: ASYNC110 (what it waits for is the SDK's)
            await asyncio.sleep(0.01)


def look_up(city: str) -> str:
    """What the weather is."""
    return f"rain in {city}"


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
        [function_call("look_up", '{"city": "Oslo"}', "call-1")],
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
    assert contents(model.calls[2].input) == [*heard, ("user", "Rain again?")]
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


def audio(item_id: str, ms: int) -> Any:
    """Audio of the model, PCM of 24 kHz."""
    return said.RealtimeModelAudioEvent(data=bytes(48 * ms), response_id="r", item_id=item_id, content_index=0)


def spoken(item_id: str, text: str, ms: int) -> list[Any]:
    """A reply, generated whole."""
    words = said.RealtimeModelTranscriptDeltaEvent(item_id=item_id, delta=text, response_id="r")
    return [words, audio(item_id, ms), said.RealtimeModelTurnEndedEvent()]


async def realtime_call(client: Client, tracker: Any) -> None:
    """The caller asks, the model answers with two seconds of audio, and the caller breaks in after a half of it."""
    model = ScriptedRealtimeModel()
    runner = RealtimeRunner(RealtimeAgent(name="bot"), model=model)
    session = await runner.run(model_config={"playback_tracker": tracker} if tracker else {})
    memory = openai_agents.attach(session, client, tracker=tracker, session_id="call")
    await memory.session.opening
    hear = model.emit
    await hear(said.RealtimeModelRawServerEvent(data={"type": "input_audio_buffer.speech_stopped", "item_id": "u1"}))
    await hear(said.RealtimeModelItemUpdatedEvent(item=user_item("u1")))
    for delta in ("In Oslo it rains ", "until the evening."):
        await hear(said.RealtimeModelTranscriptDeltaEvent(item_id="a1", delta=delta, response_id="r1"))
    for _ in range(20):
        await hear(said.RealtimeModelAudioEvent(data=bytes(4800), response_id="r1", item_id="a1", content_index=0))
    await hear(said.RealtimeModelTurnEndedEvent())
    await hear(said.RealtimeModelInputAudioTranscriptionCompletedEvent(item_id="u1", transcript="The weather?"))
    if tracker is not None:
        tracker.on_play_ms("a1", 0, 1000)
    await hear(said.RealtimeModelAudioInterruptedEvent(item_id="a1", content_index=0))
    if tracker is not None:
        tracker.on_interrupted()
    await hear(said.RealtimeModelItemUpdatedEvent(item=user_item("u2")))
    await hear(said.RealtimeModelInputAudioTranscriptionCompletedEvent(item_id="u2", transcript="Thanks."))
    await model.listeners[0].on_event(object())
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
    assert messages[1]["metadata"]["agent"] == "bot"
    turns = (await RestClient(app).get("/v1/sessions/call/turns")).json
    assert turns["turns"][0]["reply_after_by"] == "marks"


async def test_without_a_tracker_a_cut_is_a_cut(app: App) -> None:
    """How much was heard is then estimated."""
    async with client_to(app) as client:
        await realtime_call(client, None)
    messages = await RestClient(app).contents("call")
    assert messages[1]["metadata"]["interrupted"] is True


async def test_tools_of_a_realtime_call_are_remembered(app: App) -> None:
    """A tool, and a hand-over to another agent: each is called and answered once, in the turn of the question."""
    model = ScriptedRealtimeModel()
    other = RealtimeAgent(name="colleague")
    agent = RealtimeAgent(name="bot", tools=[function_tool(look_up)], handoffs=[other])
    async with client_to(app) as client:
        session = await RealtimeRunner(agent, model=model).run()
        memory = openai_agents.attach(session, client, session_id="call")
        async with session:
            await model.emit(said.RealtimeModelItemUpdatedEvent(item=user_item("u1")))
            heard = said.RealtimeModelInputAudioTranscriptionCompletedEvent(item_id="u1", transcript="The weather?")
            await model.emit(heard)
            calls = {"c1": ("look_up", '{"city": "Oslo"}'), "c2": ("transfer_to_colleague", "{}")}
            for call_id, (name, arguments) in calls.items():
                asked = said.RealtimeModelToolCallEvent(name=name, call_id=call_id, arguments=arguments)
                await model.emit(asked)
                await wait_until(lambda: any(getattr(one, "tool_call", None) is asked for one in model.sent))  # noqa: B023
            await model.emit(*spoken("a1", WEATHER, 2000))
        await memory.aclose()
    context = await RestClient(app).context("?tools=true", "call")
    messages = context["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert messages[2]["content"] == "rain in Oslo"
    assert messages[3]["tool_calls"][0]["function"]["name"] == "transfer_to_colleague"
    assert messages[5]["content"] == WEATHER


async def test_a_guardrail_cuts_a_realtime_reply(app: App) -> None:
    """The reply ends where the player was, and what the SDK tells the model then was said by no user."""

    async def forbid(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered="evening" in str(output))

    model = ScriptedRealtimeModel()
    tracker = RealtimePlaybackTracker()
    agent = RealtimeAgent(name="bot", output_guardrails=[OutputGuardrail(forbid)])
    runner = RealtimeRunner(agent, model=model, config={"guardrails_settings": {"debounce_text_length": 1}})
    async with client_to(app) as client:
        session = await runner.run(model_config={"playback_tracker": tracker})
        memory = openai_agents.attach(session, client, tracker=tracker, session_id="call")
        async with session:
            *words, ended = spoken("a1", WEATHER, 2000)
            await model.emit(said.RealtimeModelTurnStartedEvent(), *words)
            tracker.on_play_ms("a1", 0, 1000)
            await wait_until(lambda: any(hasattr(one, "user_input") for one in model.sent))
            told = next(one.user_input for one in model.sent if hasattr(one, "user_input"))
            content = [{"type": "input_text", "text": told}]
            await model.emit(ended, said.RealtimeModelAudioInterruptedEvent(item_id="a1", content_index=0))
            tracker.on_interrupted()
            item = UserMessageItem.model_validate({"item_id": "u1", "role": "user", "content": content})
            await model.emit(said.RealtimeModelItemUpdatedEvent(item=item))
            await model.emit(*spoken("a2", "I may not say that.", 800))
            tracker.on_play_ms("a2", 0, 800)
        await memory.aclose()
    messages = await RestClient(app).contents("call")
    assert [(one["role"], one["content"]) for one in messages] == [
        ("assistant", "In Oslo it rains "),
        ("assistant", "I may not say that."),
    ]
    assert messages[0]["metadata"]["interrupted"] is True


async def test_a_reply_that_a_guardrail_stopped_can_be_taken_back(app: App) -> None:
    """The run raises, no one has heard the reply, and the next run does not know it."""

    async def forbid(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered="evening" in output)

    agent, model = bot([assistant_message(WEATHER)], [assistant_message("Yes.")])
    agent.output_guardrails.append(OutputGuardrail(forbid))
    async with client_to(app) as client:
        memory = openai_agents.session(client, "call")
        await memory.session.opening
        with pytest.raises(OutputGuardrailTripwireTriggered):
            await ask(agent, "The weather?", memory)
        await ask(agent, "Are you there?", memory)
        await memory.aclose()
    assert WEATHER not in [text for _, text in contents(model.calls[1].input)]


async def test_a_hand_over_is_in_the_history(app: App) -> None:
    """The second agent's reply follows the call that handed over to it, and names it; the next run does not say."""
    second, _ = bot([assistant_message("This is Anna.")], [assistant_message("I am.")])
    second.name = "anna"
    agent, _ = bot([function_call("transfer_to_anna", "{}", "call-1")])
    agent.handoffs.append(second)
    async with client_to(app) as client:
        memory = openai_agents.session(client, "call")
        await memory.session.opening
        assert await ask(agent, "Anna, please.", memory) == "This is Anna."
        items = contents(await memory.get_items())
        await ask(second, "Are you?", memory)
        await memory.aclose()
    assert [kind for kind, _ in items] == ["user", "function_call", "function_call_output", "assistant"]
    assert items[-1] == ("assistant", "This is Anna.")
    agents = [one["metadata"].get("agent") for one in await RestClient(app).contents("call")]
    assert agents == [None, "anna", None, None]
