"""Real runs of Google's ADK, of texts and live, with scripted models, over sessions of a running service."""

from __future__ import annotations

import asyncio
import signal
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.client_sessions import FAR_S, client_for, client_to, options
from tests.support.callers.rest import RestClient, wait_until_closed
from tests.support.processes.service_process import running_process
from voicemem.app import App
from voicemem.client import Client, Options, SyncClient
from voicemem.config.service import Address

if find_spec("google") is None or find_spec("google.adk") is None:
    pytest.skip("google-adk is tested in an environment of its own (make packaging)", allow_module_level=True)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    from google.adk.agents import LlmAgent, run_config
    from google.adk.agents.live_request_queue import LiveRequestQueue
    from google.adk.apps.app import App as AdkApp
    from google.adk.models.llm_response import LlmResponse
    from google.adk.runners import Runner
    from google.adk.sessions import InMemorySessionService

    from tests.support.callers.scripted_gemini import (
        ScriptedConnection,
        ScriptedGemini,
        audio,
        heard,
        scripted,
        spoken,
        tool_call,
        user_said,
    )
    from voicemem.integrations import google_adk

pytestmark = pytest.mark.filterwarnings("default")  # the framework's own are not ours
NOBODY = Address("127.0.0.1", 1)
WEATHER = "In Oslo it rains until the evening."
RunConfig: Any = run_config.RunConfig
STREAMED = RunConfig(streaming_mode="sse")


def look_up(city: str) -> dict[str, str]:
    """What the weather is."""
    return {"weather": f"rain in {city}"}


class Bot:
    """An agent with a runner."""

    def __init__(self, memory: Any, model: ScriptedGemini, service: Any = None, other: Any = None) -> None:
        self.service = service or InMemorySessionService()
        others = [] if other is None else [other]
        agent = LlmAgent(name="bot", model=model, instruction="Be brief.", tools=[look_up], sub_agents=others)
        app = AdkApp(name="app", root_agent=agent, plugins=[memory])
        self.runner = Runner(app=app, session_service=self.service)

    async def ask(self, text: str, name: str = "call", config: Any = None) -> str:
        """One run; the texts of its last event."""
        if await self.service.get_session(app_name="app", user_id="ann", session_id=name) is None:
            await self.service.create_session(app_name="app", user_id="ann", session_id=name)
        last = None
        async for event in self.runner.run_async(
            user_id="ann", session_id=name, new_message=user_said(text), run_config=config or RunConfig()
        ):
            last = event
        return "" if last is None or last.content is None else str((last.content.parts or [])[-1].text)


def contents(given: Any) -> list[tuple[str, str]]:
    """Role and text of what a model was given; calls and results by their names."""
    return [
        (
            one.role,
            "".join(
                part.text
                or (part.function_call and f"call {part.function_call.name}")
                or (part.function_response and f"result {part.function_response.response}")
                or ""
                for part in one.parts
            ),
        )
        for one in given
    ]


async def test_the_next_model_call_gets_what_was_heard(app: App) -> None:
    """After a barge-in the model sees the heard part, with the tool's call and result; a new process does so too."""
    model = scripted(tool_call("look_up", {"city": "Oslo"}), WEATHER, "Yes.", "Bye.")
    async with client_to(app) as client:
        memory = google_adk.plugin(client)
        bot = Bot(memory, model)
        assert await bot.ask("What is the weather in Oslo?") == WEATHER
        memory.call("call").interrupted(heard_text="In Oslo it ")
        await bot.ask("Rain again?")
        await memory.call("call").aclose()
    known = [
        ("user", "What is the weather in Oslo?"),
        ("model", "call look_up"),
        ("user", "result {'weather': 'rain in Oslo'}"),
        ("model", "In Oslo it "),
        ("user", "Rain again?"),
    ]
    assert contents(model.given[1]) == known[:3]
    assert contents(model.given[2]) == known
    stored = await RestClient(app).contents("call")
    assert [one["content"] for one in stored] == ["What is the weather in Oslo?", "In Oslo it ", "Rain again?", "Yes."]
    async with client_to(app) as client:
        later = google_adk.plugin(client)
        await Bot(later, model).ask("Goodbye.")
        await later.call("call").aclose()
    assert contents(model.given[3]) == [*known, ("model", "Yes."), ("user", "Goodbye.")]
    assert len(await RestClient(app).contents("call")) == 6


async def test_a_stream_is_one_reply(app: App) -> None:
    """Its pieces are recorded as they come, and what has the whole text is the same reply."""
    async with client_to(app) as client:
        memory = google_adk.plugin(client)
        bot = Bot(memory, scripted(WEATHER))
        await bot.ask("The weather?", config=STREAMED)
        await memory.call("call").aclose()
    rows = [row["event"] for row in await RestClient(app).journal("call")]
    assert [row["text"] for row in rows if row["type"] == "llm.delta"][:2] == ["In ", "Oslo "]
    assert len({row["item"] for row in rows if row["type"].startswith("llm.")}) == 1
    assert [one["content"] for one in await RestClient(app).contents("call")] == ["The weather?", WEATHER + " "]


async def test_a_run_that_fails_leaves_no_trouble(app: App) -> None:
    """The error is the program's, and the next run is remembered."""
    async with client_to(app) as client:
        memory = google_adk.plugin(client)
        bot = Bot(memory, scripted(ConnectionError("the vendor is gone"), "Yes."))
        with pytest.raises(ConnectionError):
            await bot.ask("The weather?")
        await bot.ask("Are you there?")
        await memory.call("call").aclose()
    said = [one["content"] for one in await RestClient(app).contents("call")]
    assert said == ["The weather? Are you there?", "Yes."]


async def test_sessions_are_kept_apart(app: App) -> None:
    """Two sessions whose runs are at the same time."""
    async with client_to(app) as client:
        memory = google_adk.plugin(client)
        bots = {name: Bot(memory, scripted(f"I am {name}.", "Yes.")) for name in ("one", "two")}
        for text in ("Who are you?", "Really?"):
            await asyncio.gather(*(bot.ask(f"{text} {name}", name) for name, bot in bots.items()))
        for name in bots:
            await memory.call(name).aclose()
    for name in bots:
        said = [one["content"] for one in await RestClient(app).contents(name)]
        assert said == [f"Who are you? {name}", f"I am {name}.", f"Really? {name}", "Yes."]


async def test_instructions_of_the_memory_follow_the_agents(app: App) -> None:
    """They are in the one system instruction."""
    model = scripted("Hi.")
    config = {"llm": {"system_messages": [{"role": "system", "content": "The caller is Ann."}]}}
    async with client_to(app) as client:
        memory = google_adk.plugin(client, config=config)
        await Bot(memory, model).ask("Hi.")
        await memory.call("call").aclose()
    assert model.instructions[0].startswith("Be brief.")
    assert model.instructions[0].endswith("The caller is Ann.")


def run_without_asyncio(app: App, model: ScriptedGemini) -> None:
    addresses = (f"ws://{app.ingest_address}", f"http://{app.rest_address}")
    with SyncClient(*addresses, options=options()) as client:
        memory = google_adk.plugin(client)
        bot = Bot(memory, model)
        asyncio.run(bot.service.create_session(app_name="app", user_id="ann", session_id="call"))
        call = memory.call("call")
        call.announced("Hello.")
        for text in ("The weather?", "Rain?"):
            for _ in bot.runner.run(user_id="ann", session_id="call", new_message=user_said(text)):
                pass
            call.interrupted(heard_text="In ")
        call.end()
        call.close()


async def test_a_runner_with_an_event_loop_of_its_own_is_remembered(app: App) -> None:
    """`Runner.run` has one for each run; with a `SyncClient` it is as good as `run_async`."""
    model = scripted(WEATHER, "In short: yes.")
    await asyncio.to_thread(run_without_asyncio, app, model)
    assert contents(model.given[1]) == [
        ("model", "Hello."),
        ("user", "The weather?"),
        ("model", "In "),
        ("user", "Rain?"),
    ]
    await wait_until_closed(app, "call")


async def test_without_a_memory_the_agent_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """The model gets the ADK's own contents, as far as the player says that they were heard; the log says so once."""
    model = scripted(WEATHER, "Yes.", "Bye.")
    client = client_for(NOBODY, NOBODY, open_timeout_s=0.2, context_timeout_s=0.2)
    async with asyncio.timeout(30):
        memory = google_adk.plugin(client)
        bot = Bot(memory, model)
        await bot.ask("The weather?")
        memory.call("call").interrupted(heard_text="In Oslo ")
        await bot.ask("Rain?")
        await bot.ask("Bye.")
        await client.close(0)
    assert contents(model.given[1]) == [("user", "The weather?"), ("model", "In Oslo "), ("user", "Rain?")]
    named = [one for one in caplog.records if one.name == "voicemem.integrations" and "Session call" in one.message]
    assert len(named) == 1


async def test_without_a_memory_another_agent_is_told_what_was_heard() -> None:
    """What the ADK tells one agent of another has no more of a cut reply than the player says."""
    model = scripted(WEATHER, tool_call("transfer_to_agent", {"agent_name": "other"}), "Yes.")
    async with asyncio.timeout(30):
        client = client_for(NOBODY, NOBODY, open_timeout_s=0.2, context_timeout_s=0.2)
        memory = google_adk.plugin(client)
        bot = Bot(memory, model, other=LlmAgent(name="other", model=model, description="knows the rain"))
        await bot.ask("The weather?")
        memory.call("call").interrupted(heard_text="In Oslo ")
        await bot.ask("Rain?")
        await client.close(0)
    told = str(contents(model.given[2]))
    assert "In Oslo " in told
    assert "it rains" not in told


async def test_a_frozen_memory_holds_nobody_up(tmp_path: Path) -> None:
    """The agent continues with its own contents, and what was said meanwhile is stored afterwards."""
    model = scripted(WEATHER, "Yes.")
    async with running_process(tmp_path / "calls.db") as process:
        settings = Options(open_timeout_s=FAR_S, close_timeout_s=FAR_S)
        async with Client(f"ws://{process.ingest_address}", process.rest, options=settings) as client:
            memory = google_adk.plugin(client)
            bot = Bot(memory, model)
            await bot.ask("The weather?")
            process.signal(signal.SIGSTOP)
            async with asyncio.timeout(FAR_S):
                memory.call("call").interrupted(heard_text="In Oslo ")
                await bot.ask("Rain?")
            process.signal(signal.SIGCONT)
            await memory.call("call").aclose()
            said = [one["content"] for one in await process.api.contents("call")]
    assert said == ["The weather?", "In Oslo ", "Rain?", "Yes."]
    assert contents(model.given[1]) == [("user", "The weather?"), ("model", "In Oslo "), ("user", "Rain?")]


# Live


class LiveCall:
    """A live run under way."""

    def __init__(self, memory: Any, connection: ScriptedConnection) -> None:
        self.player = memory.call("call")
        self.connection = connection
        self.seen: asyncio.Queue[Any] = asyncio.Queue()

    async def tell(self, *responses: LlmResponse) -> None:
        """The model says this, and the program has all of it."""
        for response in responses:
            await self.connection.told.put(response)
            async with asyncio.timeout(FAR_S):
                await self.seen.get()


@asynccontextmanager
async def live(client: Client) -> AsyncIterator[LiveCall]:
    """A live run, which ends here; then the call does."""
    memory = google_adk.plugin(client)
    model = scripted()
    model.connection = ScriptedConnection()
    bot = Bot(memory, model)
    await bot.service.create_session(app_name="app", user_id="ann", session_id="call")
    call, queue = LiveCall(memory, model.connection), LiveRequestQueue()

    async def run() -> None:
        async for event in bot.runner.run_live(user_id="ann", session_id="call", live_request_queue=queue):
            await call.seen.put(event)

    task = asyncio.create_task(run())
    try:
        yield call
    finally:
        queue.close()
        task.cancel()
        await asyncio.wait({task})
    call.player.end()
    await call.player.aclose()


DONE = LlmResponse(turn_complete=True)


async def test_a_live_reply_ends_where_the_player_was(app: App) -> None:
    """Transcripts, the interruption and the rest of the call are recorded; positions are the player's."""
    async with client_to(app) as client, live(client) as call:
        await call.tell(heard("The "), heard("weather?"), heard("The weather?", True))
        await call.tell(spoken("In Oslo it rains "), audio(1000), spoken("until the evening."), audio(1000))
        await call.tell(spoken(WEATHER, True), DONE)
        call.player.played(audio_ms=1000)
        await call.tell(heard("Thanks."), LlmResponse(interrupted=True), heard("Thanks.", True))
        await call.tell(spoken("Bye."), audio(300), spoken("Bye.", True), DONE)
        call.player.played(audio_ms=300)
    messages = await RestClient(app).contents("call")
    assert [(one["role"], one["content"]) for one in messages] == [
        ("user", "The weather?"),
        ("assistant", "In Oslo it rains "),
        ("user", "Thanks."),
        ("assistant", "Bye."),
    ]
    assert messages[1]["metadata"]["original"] == WEATHER
    assert "interrupted" not in messages[3]["metadata"]


async def test_the_player_may_state_what_was_heard(app: App) -> None:
    """Its text is kept to the character, also when the model is told of the interruption later."""
    async with client_to(app) as client, live(client) as call:
        await call.tell(heard("The weather?", True), spoken(WEATHER), audio(2000))
        call.player.interrupted(heard_text="In Oslo it r")
        await call.tell(LlmResponse(interrupted=True))
    _, reply = await RestClient(app).contents("call")
    assert reply["content"] == "In Oslo it r"


async def test_without_a_player_the_clock_tells_what_was_heard(app: App) -> None:
    """A reply of an hour that is cut at once was hardly heard, and the message says that this is an estimate."""
    async with client_to(app) as client, live(client) as call:
        await call.tell(heard("The weather?", True), spoken(WEATHER), *[audio(60_000)] * 3)
        await call.tell(DONE, LlmResponse(interrupted=True))
    _, reply = await RestClient(app).contents("call")
    assert reply["metadata"]["interrupted"] is True
    assert len(reply["content"]) < len(WEATHER) / 2


async def test_a_player_that_stops_late_is_believed(app: App) -> None:
    """Its last position comes after the model was told, and counts more than the clock."""
    async with client_to(app) as client, live(client) as call:
        await call.tell(heard("The weather?", True), spoken(WEATHER), audio(2000))
        await call.tell(LlmResponse(interrupted=True))
        call.player.played(audio_ms=1200)
    _, reply = await RestClient(app).contents("call")
    assert reply["content"] == "In Oslo it rains "


async def test_words_that_come_after_the_answer_to_them_stand_before_it(app: App) -> None:
    """The utterance has its place when the model answers, and its text later."""
    async with client_to(app) as client, live(client) as call:
        await call.tell(heard("Hi.", True), spoken("Hello."), audio(100), DONE)
        call.player.played(audio_ms=100)
        await call.tell(spoken("It rains."), audio(100), heard("The weather?", True), DONE)
        call.player.played(audio_ms=100)
        await call.tell(heard("Bye.", True))
    said = [one["content"] for one in await RestClient(app).contents("call")]
    assert said == ["Hi.", "Hello.", "The weather?", "It rains.", "Bye."]


async def test_tools_of_a_live_run_are_recorded_once(app: App) -> None:
    """The call and the result are in the turn of the question."""
    async with client_to(app) as client, live(client) as call:
        await call.tell(heard("Hi.", True), spoken("Hello."), audio(100), DONE)
        call.player.played(audio_ms=100)
        await call.tell(heard("The weather?", True))
        await call.connection.told.put(LlmResponse(content=tool_call("look_up", {"city": "Oslo"})))
        async with asyncio.timeout(FAR_S):
            for _ in range(2):  # the call, and its result
                await call.seen.get()
        await call.tell(spoken("It rains."), audio(100), DONE)
        call.player.played(audio_ms=100)
    context = await RestClient(app).context("?tools=true", "call")
    assert [one["role"] for one in context["messages"]] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    rows = [row["event"]["type"] for row in await RestClient(app).journal("call")]
    assert (rows.count("tool.call"), rows.count("tool.result")) == (1, 1)


async def test_a_live_run_without_a_memory_goes_on() -> None:
    """Every event reaches the program."""
    client = client_for(NOBODY, NOBODY, open_timeout_s=0.2, context_timeout_s=0.2, close_timeout_s=0.2)
    async with asyncio.timeout(30):
        async with live(client) as call:
            await call.tell(heard("The weather?", True), spoken(WEATHER), audio(100), DONE)
        await client.close(0)
