"""Real agents of Pipecat, LangChain and OpenAI's SDK whose LLM is the gateway, beside the same agents without it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from tests.support.callers.gateway import role_and_text
from tests.support.callers.rest import RestClient
from tests.support.servers.booking_llm import BookingLlm
from tests.support.servers.llm_server import running_llm
from tests.support.services import Serve

pytestmark = pytest.mark.filterwarnings("default")  # the frameworks' own are not ours
SYSTEM = "You are a waiter."
TURNS = ["Hi, I am Ann.", "Book a table and a taxi.", "Thanks.", "Thanks.", "Book a table."]
Answers = list[str]


class Tools:
    """The tools of each agent, and how often they were called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    async def book_table(self) -> str:
        """Book a table."""
        self.called.append("book_table")
        await asyncio.sleep(0.05)
        return "book_table: 77"

    async def call_taxi(self) -> str:
        """Call a taxi."""
        self.called.append("call_taxi")
        return "call_taxi: 12"


Talk = Callable[[str, Tools, bool], Awaitable[Answers]]
"""A conversation of an agent whose LLM is at a base URL, streaming or not: its answers to the turns."""


async def langchain(url: str, tools: Tools, stream: bool, **more: Any) -> Answers:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the framework imports is not ours
        openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
        from langchain.agents import create_agent
        from langgraph.checkpoint.memory import InMemorySaver
    answers = []
    async with httpx2.AsyncClient() as http:
        model = openai.ChatOpenAI(
            model="any", base_url=url, api_key="key", streaming=stream, http_async_client=http, **more
        )
        agent: Any = create_agent(
            model, [tools.book_table, tools.call_taxi], system_prompt=SYSTEM, checkpointer=InMemorySaver()
        )
        for words in TURNS:
            asked = {"messages": [{"role": "user", "content": words}]}
            state = await agent.ainvoke(asked, {"configurable": {"thread_id": "call"}})
            answers.append(str(state["messages"][-1].text))
    return answers


async def langchain_responses(url: str, tools: Tools, stream: bool) -> Answers:
    return await langchain(url, tools, stream, use_responses_api=True)


async def openai_agents(url: str, tools: Tools, stream: bool, kind: str = "OpenAIChatCompletionsModel") -> Answers:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the framework imports is not ours
        pytest.importorskip("agents", reason="openai-agents is tested in an environment of its own (make packaging)")
        import agents
        from agents import Agent, Runner, function_tool
        from agents.run import RunConfig
        from openai import AsyncOpenAI
    said: list[Any] = []
    answers = []
    async with AsyncOpenAI(base_url=url, api_key="key") as client:
        model = getattr(agents, kind)("any", client)
        functions: list[Any] = [function_tool(tools.book_table), function_tool(tools.call_taxi)]
        agent = Agent(name="waiter", instructions=SYSTEM, model=model, tools=functions)
        for words in TURNS:
            said.append({"role": "user", "content": words})
            if stream:
                run: Any = Runner.run_streamed(agent, said, run_config=RunConfig(tracing_disabled=True))
                async for _ in run.stream_events():
                    pass
            else:
                run = await Runner.run(agent, said, run_config=RunConfig(tracing_disabled=True))
            said = run.to_input_list()
            answers.append(str(run.final_output))
    return answers


async def openai_agents_responses(url: str, tools: Tools, stream: bool) -> Answers:
    return await openai_agents(url, tools, stream, "OpenAIResponsesModel")


async def livekit_responses(url: str, tools: Tools, stream: bool) -> Answers:
    """It always streams."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the framework imports is not ours
        openai = pytest.importorskip("livekit.plugins.openai", reason="LiveKit's plugin for OpenAI is not installed")
        from livekit.agents import Agent, AgentSession, function_tool

    class Waiter(Agent):
        @function_tool
        async def book_table(self) -> str:
            """Book a table."""
            return await tools.book_table()

        @function_tool
        async def call_taxi(self) -> str:
            """Call a taxi."""
            return await tools.call_taxi()

    model = openai.responses.LLM(model="any", base_url=url, api_key="key", use_websocket=False)
    session: Any = AgentSession(llm=model)
    await session.start(Waiter(instructions=SYSTEM))
    answers = []
    for words in TURNS:
        await session.generate_reply(user_input=words)
        answers.append(session.history.messages()[-1].text_content)
    await session.aclose()
    await model.aclose()
    return answers


async def pipecat(url: str, tools: Tools, stream: bool) -> Answers:
    """It always streams."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the framework imports is not ours
        pytest.importorskip("pipecat", reason="Pipecat is not installed")
        from pipecat.adapters.schemas.function_schema import FunctionSchema
        from pipecat.adapters.schemas.tools_schema import ToolsSchema
        from pipecat.frames.frames import EndFrame, LLMMessagesAppendFrame
        from pipecat.pipeline.pipeline import Pipeline
        from pipecat.pipeline.worker import PipelineWorker
        from pipecat.processors.aggregators.llm_context import LLMContext
        from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
        from pipecat.services.openai.llm import OpenAILLMService
        from pipecat.workers.runner import WorkerRunner

    class Service(OpenAILLMService):
        """Its client is closed at the end."""

        def create_client(self, *given: Any, **named: Any) -> Any:
            make: Any = super().create_client
            self.opened = make(*given, **named)
            return self.opened

    llm = Service(settings=Service.Settings(model="any", system_instruction=SYSTEM), base_url=url, api_key="key")
    functions = [tools.book_table, tools.call_taxi]
    for function in functions:

        async def run(call: Any, function: Any = function) -> None:
            await call.result_callback(await function())

        llm.register_function(function.__name__, run)
    schemas = [FunctionSchema(one.__name__, one.__doc__ or "", {}, []) for one in functions]
    context = LLMContext(tools=ToolsSchema(standard_tools=[*schemas]))
    pair = LLMContextAggregatorPair(context)
    worker = PipelineWorker(Pipeline([pair.user(), llm, pair.assistant()]), enable_rtvi=False, idle_timeout_secs=None)
    answers: list[str] = []

    def newest_answer() -> str:
        last: Any = context.messages[-1]
        return str(last.get("content") or "") if last["role"] == "assistant" else ""

    async def talk() -> None:
        for words in TURNS:
            message: Any = {"role": "user", "content": words}
            count = len(context.messages) + 2
            await worker.queue_frame(LLMMessagesAppendFrame([message], run_llm=True))
            async with asyncio.timeout(20):
                while len(context.messages) < count or not newest_answer():  # noqa: ASYNC110 (it is the framework's)
                    await asyncio.sleep(0.02)
            answers.append(newest_answer())
        await worker.queue_frame(EndFrame())

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await asyncio.gather(runner.run(), talk())
    await llm.opened.close()
    return answers


async def check_through(serve: Serve, llm: BookingLlm, talk: Talk, stream: bool, answers: Answers) -> None:
    """An agent whose LLM is the gateway gives these answers, and the memory has every word once, in order."""
    tools = Tools()
    app = await serve(llm_url=llm.url)
    api = RestClient(app)
    await api.create()
    assert answers == await talk(f"http://{app.rest_address}/v1/sessions/s", tools, stream)
    assert ["book_table", "call_taxi"] == sorted(tools.called)
    said = [one for words, reply in zip(TURNS, answers, strict=True) for one in (("user", words), ("assistant", reply))]
    assert said == role_and_text(await api.contents())
    context = await api.context("?style=openai&tools=true")
    roles = [one["role"] for one in context["messages"]]
    assert ["assistant", "tool", "tool", "assistant"] == roles[3:7]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("talk", [langchain, openai_agents, pipecat])
async def test_an_agent_does_the_same_through_the_gateway(serve: Serve, talk: Talk, stream: bool) -> None:
    """The same tool calls and answers as without it."""
    async with running_llm(BookingLlm()) as llm:
        directly = Tools()
        answers = await talk(llm.url, directly, stream)
        assert ["book_table", "call_taxi"] == sorted(directly.called)
        await check_through(serve, llm, talk, stream, answers)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("talk", [langchain_responses, openai_agents_responses, livekit_responses])
async def test_an_agent_of_the_responses_api(serve: Serve, talk: Talk, stream: bool) -> None:
    """Its LLM knows chat completions alone; the answers are those of an agent that asks for these."""
    async with running_llm(BookingLlm()) as llm:
        answers = [f"You said: {words}" for words in TURNS]
        await check_through(serve, llm, talk, stream, answers)
