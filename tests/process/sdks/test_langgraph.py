"""Real agents of LangChain on LangGraph, with scripted models, over sessions of a running service."""

from __future__ import annotations

import asyncio
import logging
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.client_sessions import FAR_S, client_for, client_to, options
from tests.support.callers.rest import RestClient, wait_until_closed
from tests.support.processes.ports import free_ports
from tests.support.processes.service_process import running_process
from voicemem.app import App
from voicemem.client import Client, Options, SyncClient
from voicemem.config.service import Address

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    pytest.importorskip("langchain", reason="LangChain is not installed")
    from langchain.agents import create_agent
    from langchain.agents.middleware import ModelRetryMiddleware
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
    from langgraph.checkpoint.memory import InMemorySaver

    from tests.support.callers.scripted_chat_model import ScriptedChatModel, scripted, tool_call
    from voicemem.integrations import langgraph

pytestmark = pytest.mark.filterwarnings("default")  # the framework's own are not ours
NOBODY = Address("127.0.0.1", 1)
WEATHER = "In Oslo it rains until the evening."


def look_up(city: str) -> str:
    """What the weather is."""
    return f"rain in {city}"


def bot(memory: Any, model: ScriptedChatModel, saver: Any = None, **more: Any) -> Any:
    return create_agent(
        model,
        [look_up],
        system_prompt="Be brief.",
        middleware=[memory, *more.pop("inner", ())],
        checkpointer=saver or InMemorySaver(),
        **more,
    )


def thread(name: str = "call") -> Any:
    return {"configurable": {"thread_id": name}}


def saying(*texts: str) -> Any:
    return {"messages": [HumanMessage(text) for text in texts]}


async def ask(agent: Any, text: str, name: str = "call") -> str:
    return str((await agent.ainvoke(saying(text), thread(name)))["messages"][-1].content)


def contents(messages: Any) -> list[tuple[str, str]]:
    """Type and text of what a model was given; tool calls by their names."""
    return [
        (one.type, str(one.content or [call["name"] for call in getattr(one, "tool_calls", [])])) for one in messages
    ]


SYSTEM = ("system", "Be brief.")


async def test_the_next_model_call_gets_what_was_heard(app: App) -> None:
    """After a barge-in the model sees the heard part, with the tool's call and result; a new process does so too."""
    model = scripted(tool_call("look_up", {"city": "Oslo"}, "c1"), WEATHER, "Yes.", "Bye.")
    saver = InMemorySaver()
    async with client_to(app) as client:
        memory = langgraph.middleware(client)
        agent = bot(memory, model, saver)
        assert await ask(agent, "What is the weather in Oslo?") == WEATHER
        memory.call("call").interrupted(heard_text="In Oslo it ")
        await ask(agent, "Rain again?")
        await memory.call("call").aclose()
    heard = [
        SYSTEM,
        ("human", "What is the weather in Oslo?"),
        ("ai", "['look_up']"),
        ("tool", "rain in Oslo"),
        ("ai", "In Oslo it "),
        ("human", "Rain again?"),
    ]
    assert contents(model.given[1]) == heard[:4]
    assert contents(model.given[2]) == heard
    stored = await RestClient(app).contents("call")
    assert [one["content"] for one in stored] == ["What is the weather in Oslo?", "In Oslo it ", "Rain again?", "Yes."]
    assert stored[1]["metadata"]["original"] == WEATHER
    async with client_to(app) as client:
        later = langgraph.middleware(client)
        await ask(bot(later, model, saver), "Goodbye.")
        await later.call("call").aclose()
    assert contents(model.given[3]) == [*heard, ("ai", "Yes."), ("human", "Goodbye.")]
    assert len(await RestClient(app).contents("call")) == 6


async def test_the_state_of_the_thread_stays_as_it_is(app: App) -> None:
    """The checkpoint has what was generated; only the request to the model is another."""
    async with client_to(app) as client:
        memory = langgraph.middleware(client)
        agent = bot(memory, scripted(WEATHER, "Yes."))
        await ask(agent, "The weather?")
        memory.call("call").interrupted(heard_text="In ")
        await ask(agent, "Rain?")
        state = await agent.aget_state(thread())
        await memory.call("call").aclose()
    assert [one.content for one in state.values["messages"]] == ["The weather?", WEATHER, "Rain?", "Yes."]


async def test_a_stream_is_recorded_as_it_comes(app: App) -> None:
    """A run that is cancelled leaves what it had said, and the reply is cut where the player was."""
    spoken = asyncio.Event()
    async with client_to(app) as client:
        memory = langgraph.middleware(client)
        model = scripted(WEATHER, "Yes.")
        agent = bot(memory, model)
        call = memory.call("call")
        items = set()

        async def speak() -> None:
            async for chunk, _ in agent.astream(saying("The weather?"), thread(), stream_mode="messages"):
                items.add(chunk.id)
                if "rains" in chunk.content:
                    spoken.set()
                    await asyncio.Event().wait()

        run = asyncio.create_task(speak())
        await spoken.wait()
        run.cancel()
        await asyncio.wait({run})
        call.interrupted(heard_text="In Oslo ", item=items.pop())
        await ask(agent, "Rain?")
        await call.aclose()
    assert contents(model.given[1]) == [
        SYSTEM,
        ("human", "The weather?"),
        ("ai", "In Oslo "),
        ("human", "Rain?"),
    ]
    first, reply, *_ = await RestClient(app).contents("call")
    assert (first["content"], reply["content"]) == ("The weather?", "In Oslo ")
    assert reply["metadata"]["original"].startswith("In Oslo it rains ")


async def test_a_whole_stream_is_one_reply(app: App) -> None:
    """Its pieces and its end have the item that the chunks name; tools in between are recorded once."""
    model = scripted(tool_call("look_up", {"city": "Oslo"}, "c1", "Let me look."), WEATHER)
    async with client_to(app) as client:
        memory = langgraph.middleware(client)
        agent = bot(memory, model)
        items = []
        async for chunk, _ in agent.astream(saying("The weather?"), thread(), stream_mode="messages"):
            if chunk.type == "AIMessageChunk" and chunk.id not in items:
                items.append(chunk.id)
        memory.call("call").interrupted(heard_text="Let ", item=items[0])
        await memory.call("call").aclose()
    rows = [row["event"] for row in await RestClient(app).journal("call")]
    kinds = [row["type"] for row in rows]
    assert (kinds.count("asr"), kinds.count("llm.done")) == (1, 2)
    assert (kinds.count("tool.call"), kinds.count("tool.result"), kinds.count("llm.cancel")) == (1, 1, 0)
    assert [row["text"] for row in rows if row["type"] == "llm.delta" and row["item"] == items[0]] == [
        "Let ",
        "me ",
        "look. ",
    ]
    said = [(one["role"], one["content"]) for one in await RestClient(app).contents("call")]
    assert said == [("user", "The weather?"), ("assistant", "Let "), ("assistant", WEATHER + " ")]


async def test_an_attempt_that_fails_is_no_reply(app: App) -> None:
    """What a failed stream had said is withdrawn, and the error is the program's."""
    model = scripted(WEATHER, "Yes.")

    def fail(word: str) -> None:
        if word == "rains" and len(model.given) == 1:
            raise ConnectionError("the vendor is gone")

    model.on_word = fail
    async with client_to(app) as client:
        memory = langgraph.middleware(client)
        agent = bot(memory, model)
        with pytest.raises(ConnectionError):
            async for _ in agent.astream(saying("The weather?"), thread(), stream_mode="messages"):
                pass
        await ask(agent, "Are you there?")
        await memory.call("call").aclose()
    assert contents(model.given[1]) == [SYSTEM, ("human", "The weather? Are you there?")]
    assert [one["role"] for one in await RestClient(app).contents("call")][-1] == "assistant"


async def test_an_attempt_that_is_made_again_is_recorded_once(app: App) -> None:
    """Another middleware asks the model again; what the first attempt had streamed is withdrawn."""
    model = scripted(WEATHER, "Rain.")

    def fail(word: str) -> None:
        if word == "rains":
            raise ConnectionError("the vendor is gone")

    model.on_word = fail
    async with client_to(app) as client:
        memory = langgraph.middleware(client)
        agent = bot(memory, model, inner=[ModelRetryMiddleware(max_retries=1, initial_delay=0.0)])
        async for _ in agent.astream(saying("The weather?"), thread(), stream_mode="messages"):
            pass
        await memory.call("call").aclose()
    assert [one["content"] for one in await RestClient(app).contents("call")] == ["The weather?", "Rain. "]


async def test_a_stream_in_the_newer_protocol_is_recorded_as_it_comes(app: App) -> None:
    """LangChain's third version of streams has events of its own in the place of tokens."""
    async with client_to(app) as client:
        memory = langgraph.middleware(client)
        agent = bot(memory, scripted(WEATHER))
        try:
            stream = await agent.astream_events(saying("The weather?"), thread(), version="v3")
        except (NotImplementedError, TypeError):
            pytest.skip("this version has no such stream")
        async for message in stream.messages:
            assert "".join([piece async for piece in message.text]) == WEATHER + " "
        await stream.output()
        await memory.call("call").aclose()
    rows = [row["event"] for row in await RestClient(app).journal("call")]
    assert [row["text"] for row in rows if row["type"] == "llm.delta"][:2] == ["In ", "Oslo "]
    assert [one["content"] for one in await RestClient(app).contents("call")] == ["The weather?", WEATHER + " "]


async def test_threads_are_kept_apart(app: App) -> None:
    """Two threads that run at once have two sessions."""
    async with client_to(app) as client:
        memory = langgraph.middleware(client)
        agents = {name: bot(memory, scripted(f"I am {name}.", "Yes.")) for name in ("one", "two")}
        for text in ("Who are you?", "Really?"):
            await asyncio.gather(*(ask(agent, f"{text} {name}", name) for name, agent in agents.items()))
        for name in agents:
            await memory.call(name).aclose()
    for name in agents:
        said = [one["content"] for one in await RestClient(app).contents(name)]
        assert said == [f"Who are you? {name}", f"I am {name}.", f"Really? {name}", "Yes."]


def run_without_asyncio(app: App, model: ScriptedChatModel) -> None:
    addresses = (f"ws://{app.ingest_address}", f"http://{app.rest_address}")
    with SyncClient(*addresses, options=options()) as client:
        memory = langgraph.middleware(client)
        agent = bot(memory, model)
        call = memory.call("call")
        call.announced("Hello.")
        for _ in agent.stream(saying("What is the weather in Oslo?"), thread(), stream_mode="messages"):
            pass
        call.interrupted(heard_text="In Oslo it ")
        agent.invoke(saying("Rain again?"), thread())
        call.end()
        call.close()


async def test_an_agent_without_asyncio_is_remembered(app: App) -> None:
    """With a `SyncClient`, `invoke` and `stream` do what the asynchronous methods do."""
    model = scripted(tool_call("look_up", {"city": "Oslo"}, "c1"), WEATHER, "Yes.")
    await asyncio.to_thread(run_without_asyncio, app, model)
    assert contents(model.given[2]) == [
        SYSTEM,
        ("ai", "Hello."),
        ("human", "What is the weather in Oslo?"),
        ("ai", "['look_up']"),
        ("tool", "rain in Oslo"),
        ("ai", "In Oslo it "),
        ("human", "Rain again?"),
    ]
    await wait_until_closed(app, "call")


async def test_what_others_record_is_not_recorded_twice(app: App) -> None:
    """Where a transport sends transcripts and replies, the middleware adds tools, and brings what was heard."""
    model = scripted(tool_call("look_up", {"city": "Oslo"}, "c1"), WEATHER, "Yes.")
    async with client_to(app) as client:
        transport = await client.open("call", producer="transport")
        memory = langgraph.middleware(client, record=["tools"])
        agent = bot(memory, model)
        transport.send({"type": "asr", "item": "u1", "segment": 0, "text": "The weather?", "final": True})
        await transport.flush()
        await ask(agent, "The weather?")
        transport.send({"type": "llm.done", "item": "r1", "text": WEATHER})
        transport.send({"type": "interrupt", "item": "r1", "heard_text": "In Oslo it "})
        await transport.flush()
        await ask(agent, "Rain?")  # its transcript is on its way
        await memory.call("call").aclose()
    assert contents(model.given[1]) == [
        SYSTEM,
        ("human", "The weather?"),
        ("ai", "['look_up']"),
        ("tool", "rain in Oslo"),
    ]
    assert contents(model.given[2]) == [*contents(model.given[1]), ("ai", "In Oslo it "), ("human", "Rain?")]
    assert [one["content"] for one in await RestClient(app).contents("call")] == ["The weather?", "In Oslo it "]


async def test_a_transport_names_replies_by_the_ids_of_messages(app: App) -> None:
    """Another producer of the session cuts the reply whose item is the id of its `AIMessage`."""
    model = scripted(WEATHER, "Yes.")
    async with client_to(app) as client:
        transport = await client.open("call", producer="transport")
        memory = langgraph.middleware(client)
        agent = bot(memory, model)
        done = await agent.ainvoke(saying("The weather?"), thread())
        transport.send({"type": "interrupt", "item": done["messages"][-1].id, "heard_text": "In "})
        await transport.flush()
        await ask(agent, "Rain?")
        await memory.call("call").aclose()
    assert contents(model.given[1])[2] == ("ai", "In ")


async def test_what_was_there_before_the_memory_stays(app: App) -> None:
    """Messages that the program put before the call are in each request, and so are its own instructions."""
    model = scripted("Hi.", "Yes.")
    async with client_to(app) as client:
        memory = langgraph.middleware(client)
        agent = bot(memory, model)
        before = [SystemMessage("The caller is Ann."), AIMessage("Hello, this is Oslo Weather.")]
        await agent.ainvoke({"messages": [*before, HumanMessage("Hi.")]}, thread())
        await ask(agent, "Rain?")
        await memory.call("call").aclose()
    start = [SYSTEM, ("system", "The caller is Ann."), ("ai", "Hello, this is Oslo Weather."), ("human", "Hi.")]
    assert contents(model.given[0]) == start
    assert contents(model.given[1]) == [*start, ("ai", "Hi."), ("human", "Rain?")]


async def test_instructions_of_the_memory_are_in_the_one_system_message(app: App) -> None:
    """Providers take only one, so what the session's configuration says follows the agent's prompt."""
    model = scripted("Hi.")
    config = {"llm": {"system_messages": [{"role": "system", "content": "The caller is Ann."}]}}
    async with client_to(app) as client:
        memory = langgraph.middleware(client, config=config)
        await ask(bot(memory, model), "Hi.")
        await memory.call("call").aclose()
    assert contents(model.given[0]) == [("system", "Be brief.\n\nThe caller is Ann."), ("human", "Hi.")]


async def test_without_a_memory_the_agent_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """The model gets the agent's own messages, as far as the player says that they were heard; the log says so once."""
    model = scripted(WEATHER, "Yes.", "Bye.")
    client = client_for(NOBODY, NOBODY, open_timeout_s=0.2, context_timeout_s=0.2)
    async with asyncio.timeout(30):
        memory = langgraph.middleware(client)
        agent = bot(memory, model)
        await ask(agent, "The weather?")
        memory.call("call").interrupted(heard_text="In Oslo ")
        await ask(agent, "Rain?")
        await ask(agent, "Bye.")
        await client.close(0)
    assert contents(model.given[1]) == [SYSTEM, ("human", "The weather?"), ("ai", "In Oslo "), ("human", "Rain?")]
    named = [one for one in caplog.records if one.name == "voicemem.integrations" and "Session call" in one.message]
    assert len(named) == 1


async def test_a_run_without_a_thread_is_not_remembered(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """The agent runs as it is, and the log says once what is missing."""
    async with client_to(app) as client:
        agent = create_agent(scripted("Hi.", "Hi."), [], middleware=[langgraph.middleware(client)])
        for _ in range(2):
            assert (await agent.ainvoke(saying("Hi.")))["messages"][-1].content == "Hi."
    named = [one for one in caplog.records if one.name == "voicemem.integrations"]
    assert [one.levelno for one in named] == [logging.WARNING]
    assert "thread_id" in named[0].message


async def test_a_frozen_memory_holds_nobody_up(tmp_path: Path) -> None:
    """The agent continues with its own messages, and what was said meanwhile is stored afterwards."""
    model = scripted(WEATHER, "Yes.", "Bye.")
    async with running_process(tmp_path / "calls.db") as process:
        settings = Options(open_timeout_s=FAR_S, close_timeout_s=FAR_S)
        async with Client(f"ws://{process.ingest_address}", process.rest, options=settings) as client:
            memory = langgraph.middleware(client)
            agent = bot(memory, model)
            call = memory.call("call")
            await ask(agent, "The weather?")
            process.signal(signal.SIGSTOP)
            async with asyncio.timeout(FAR_S):
                call.interrupted(heard_text="In Oslo ")
                await ask(agent, "Rain?")
            process.signal(signal.SIGCONT)
            await call.aclose()
            assert [one["content"] for one in await process.api.contents("call")] == [
                "The weather?",
                "In Oslo ",
                "Rain?",
                "Yes.",
            ]
    assert contents(model.given[1]) == [SYSTEM, ("human", "The weather?"), ("ai", "In Oslo "), ("human", "Rain?")]


async def test_a_service_that_restarts_loses_nothing(tmp_path: Path) -> None:
    """A thread goes on in the same session, and each message is in it once."""
    rest, ingest = free_ports(2)
    model = scripted(WEATHER, "Yes.", "Bye.")
    async with client_for(Address("127.0.0.1", ingest), Address("127.0.0.1", rest)) as client:
        memory = langgraph.middleware(client)
        agent = bot(memory, model)
        call = memory.call("call")
        async with running_process(tmp_path / "calls.db", rest=rest, ingest=ingest) as process:
            await ask(agent, "The weather?")
            call.interrupted(heard_text="In Oslo ")
            await ask(agent, "Rain?")
            await process.kill()
        async with running_process(tmp_path / "calls.db", rest=rest, ingest=ingest) as process:
            await ask(agent, "Bye.")
            await call.aclose()
            said = [one["content"] for one in await process.api.contents("call")]
    assert said == ["The weather?", "In Oslo ", "Rain?", "Yes.", "Bye.", "Bye."]
    assert contents(model.given[2])[1:] == list(zip(["human", "ai"] * 3, said[:-1], strict=False))
