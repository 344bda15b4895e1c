"""The ADK's memory service over a running service: real runners, with `load_memory` and a scripted model."""

from __future__ import annotations

import asyncio
import warnings
from importlib.util import find_spec
from typing import Any

import pytest

from tests.support.callers.client_sessions import client_for, client_to, options
from tests.support.callers.rest import RestClient
from voicemem.app import App
from voicemem.client import SyncClient
from voicemem.config.service import Address

if find_spec("google") is None or find_spec("google.adk") is None:
    pytest.skip("google-adk is tested in an environment of its own (make packaging)", allow_module_level=True)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    from google.adk.agents import LlmAgent
    from google.adk.apps.app import App as AdkApp
    from google.adk.events.event import Event
    from google.adk.memory.memory_entry import MemoryEntry
    from google.adk.runners import Runner
    from google.adk.sessions import InMemorySessionService
    from google.adk.tools import load_memory
    from google.adk.tools.preload_memory_tool import PreloadMemoryTool
    from google.genai import types

    from tests.support.callers.scripted_gemini import ScriptedGemini, model_said, scripted, tool_call, user_said
    from voicemem.integrations import google_adk

pytestmark = pytest.mark.filterwarnings("default")  # the framework's own are not ours
NUTS = "I am allergic to walnuts."


class Bot:
    """An agent with a runner and a memory service."""

    def __init__(
        self, memory: Any, model: ScriptedGemini, tools: Any = (), plugins: Any = (), name: str = "app"
    ) -> None:
        self.sessions = InMemorySessionService()
        agent = LlmAgent(name="bot", model=model, instruction="Be brief.", tools=[*tools])
        self.app = AdkApp(name=name, root_agent=agent, plugins=[*plugins])
        self.memory = memory
        self.runner = Runner(app=self.app, session_service=self.sessions, memory_service=memory)

    async def ask(self, text: str, session: str, user: str = "ann") -> None:
        where = {"app_name": self.app.name, "user_id": user, "session_id": session}
        if await self.sessions.get_session(**where) is None:
            await self.sessions.create_session(**where)
        async for _ in self.runner.run_async(user_id=user, session_id=session, new_message=user_said(text)):
            pass

    async def remember(self, session: str, user: str = "ann") -> None:
        found = await self.sessions.get_session(app_name=self.app.name, user_id=user, session_id=session)
        assert found is not None
        await self.memory.add_session_to_memory(found)


def said(given: Any) -> str:
    """All that a model was given, as text."""
    return str([part.model_dump(exclude_none=True) for one in given for part in one.parts])


async def test_a_second_session_knows_the_first(app: App) -> None:
    """`load_memory` finds what was said in a session that was added, of this user and app alone."""
    model = scripted("I will remember.", tool_call("load_memory", {"query": "walnuts"}), "No walnuts.")
    async with client_to(app) as client:
        bot = Bot(google_adk.memory_service(client), model, [load_memory])
        await bot.ask(NUTS, "first")
        await bot.remember("first")
        await bot.ask("May I eat cake?", "second")
        assert NUTS in said(model.given[-1])
        for user, name in (("bob", "app"), ("ann", "other")):
            found = await bot.memory.search_memory(app_name=name, user_id=user, query="walnuts")
            assert found.memories == []
        (entry,) = (await bot.memory.search_memory(app_name="app", user_id="ann", query="walnuts")).memories
        assert (entry.author, entry.content.parts[0].text) == ("user", NUTS)
        assert entry.timestamp.startswith("20")
    assert (await RestClient(app).session("first"))["config"]["user_id"] == "ann"


async def test_a_session_that_is_added_again_brings_what_is_new(app: App) -> None:
    """Nothing is there twice; tool calls and results come along."""
    model = scripted(tool_call("look_up", {"city": "Oslo"}), "Rain.", "Snow.")

    def look_up(city: str) -> dict[str, str]:
        """What the weather is."""
        return {"weather": f"rain in {city}"}

    async with client_to(app) as client:
        bot = Bot(google_adk.memory_service(client), model, [look_up])
        await bot.ask("Oslo?", "s")
        for _ in range(2):
            await bot.remember("s")
        await bot.ask("Bergen?", "s")
        for _ in range(2):
            await bot.remember("s")
    contents = await RestClient(app).contents("s")
    assert [(one["role"], one["content"]) for one in contents] == [
        ("user", "Oslo?"),
        ("assistant", "Rain."),
        ("user", "Bergen?"),
        ("assistant", "Snow."),
    ]
    context = (await RestClient(app).get("/v1/sessions/s/context?tools=true")).json["messages"]
    assert [one["role"] for one in context if one["role"] == "tool"] == ["tool"]


@pytest.mark.parametrize("same_client", [True, False])
async def test_what_the_plugin_records_is_not_added_again(app: App, same_client: bool) -> None:
    """The session gets its user and its app; what was heard stays as the plugin has it."""
    model = scripted("In Oslo it rains until the evening.")
    async with client_to(app) as client, client_to(app) as other:
        plugin = google_adk.plugin(client)
        bot = Bot(google_adk.memory_service(client if same_client else other), model, plugins=[plugin])
        await bot.ask("The weather?", "s")
        plugin.call("s").interrupted(heard_text="In Oslo it ")
        if not same_client:
            await plugin.call("s").aclose()
        await bot.remember("s")
        await plugin.call("s").aclose()
        found = await bot.memory.search_memory(app_name="app", user_id="ann", query="Oslo")
        assert [one.content.parts[0].text for one in found.memories] == ["In Oslo it "]
    assert [one["content"] for one in await RestClient(app).contents("s")] == ["The weather?", "In Oslo it "]


async def test_the_preloaded_memory_has_what_fits(app: App) -> None:
    """`preload_memory` puts it before the model's request, with its time."""
    model = scripted("Noted.", "No.")
    async with client_to(app) as client:
        bot = Bot(google_adk.memory_service(client), model, [PreloadMemoryTool()])
        await bot.ask(NUTS, "first")
        await bot.remember("first")
        await bot.ask("Are walnuts in it?", "second")
    assert NUTS in said(model.given[-1]) + str(model.instructions[-1:])


async def test_memories_are_kept_found_and_deleted(app: App) -> None:
    """Explicit ones, with their time and metadata; only those of this user and app can be deleted."""

    def entry(*texts: str, **more: Any) -> MemoryEntry:
        return MemoryEntry(content=types.Content(parts=[types.Part(text=text) for text in texts]), **more)

    async with client_to(app) as client:
        memory = google_adk.memory_service(client)
        mine: Any = {"app_name": "app", "user_id": "ann"}
        given = [
            entry("Ann has a green bicycle.", timestamp="2026-05-03T14:30:00Z", author="shop"),
            entry("Ann is 41."),
        ]
        await memory.add_memory(**mine, memories=given, custom_metadata={"from": "crm"})
        (found,) = (await memory.search_memory(**mine, query="bicycle")).memories
        assert (found.author, found.timestamp) == ("shop", "2026-05-03T14:30:00+00:00")
        assert found.custom_metadata["from"] == "crm"
        for wrong in ({"app_name": "app", "user_id": "bob"}, {"app_name": "x", "user_id": "ann"}):
            with pytest.raises(ValueError, match="no memory of this user"):
                await memory.delete_memory(**wrong, memory_id=found.id)
        with pytest.raises(ValueError, match="no memory of this user"):
            await memory.delete_memory(**mine, memory_id="mem_none")
        await memory.delete_memory(**mine, memory_id=found.id)
        assert (await memory.search_memory(**mine, query="bicycle")).memories == []
        blob = types.Part(inline_data=types.Blob(data=b"x", mime_type="image/png"))
        for bad in (entry(""), MemoryEntry(content=types.Content(parts=[blob]))):
            with pytest.raises(ValueError, match="is a text"):
                await memory.add_memory(**mine, memories=[bad])


async def test_events_are_added_without_a_session(app: App) -> None:
    """They go to a session of the user's; transcripts of live calls are what was said, partial events are not."""
    heard = types.Transcription(text="I like tea.", finished=True)
    events = [
        Event(author="user", content=types.Content(role="user", parts=[types.Part(text="I like coffee.")])),
        Event(author="user", input_transcription=heard),
        Event(author="bot", partial=True, content=types.Content(role="model", parts=[types.Part(text="Go")])),
        Event(author="bot", content=model_said("Good.")),
    ]
    async with client_to(app) as client:
        memory = google_adk.memory_service(client)
        for _ in range(2):
            await memory.add_events_to_memory(app_name="app", user_id="ann", events=events)
        assert [one["content"] for one in await RestClient(app).contents("app.ann")] == [
            "I like coffee.",
            "I like tea.",
            "Good.",
        ]
        await memory.add_events_to_memory(
            app_name="app", user_id="ann", events=events[:1], session_id="a b", custom_metadata={"shop": 7}
        )
        found = (await memory.search_memory(app_name="app", user_id="ann", query="coffee")).memories
        texts = [one.content.parts[0].text for one in found]
        assert texts.count("I like coffee.") == 2


async def test_a_memory_that_is_away_finds_nothing(app: App) -> None:
    """The agent continues; whoever adds something hears of it."""
    async with client_for(Address("127.0.0.1", 1), Address("127.0.0.1", 1), read_timeout_s=0.5) as client:
        memory = google_adk.memory_service(client)
        assert (await memory.search_memory(app_name="app", user_id="ann", query="x")).memories == []
        with pytest.raises(Exception, match="unreachable"):
            await memory.add_events_to_memory(app_name="app", user_id="ann", events=[])


async def test_a_synchronous_client_will_do(app: App) -> None:
    """Its own thread runs the requests."""

    def run() -> int:
        with SyncClient(f"ws://{app.ingest_address}", f"http://{app.rest_address}", options=options()) as client:
            memory = google_adk.memory_service(client)
            event = Event(author="user", content=types.Content(role="user", parts=[types.Part(text=NUTS)]))

            async def add_and_find() -> int:
                await memory.add_events_to_memory(app_name="a", user_id="ann", events=[event])
                return len((await memory.search_memory(app_name="a", user_id="ann", query="walnuts")).memories)

            return asyncio.run(add_and_find())

    assert await asyncio.to_thread(run) == 1
