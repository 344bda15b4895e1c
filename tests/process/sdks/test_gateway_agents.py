"""Real LiveKit agents whose LLM is the gateway, each beside the same agent without it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from tests.support.callers.gateway import role_and_text
from tests.support.callers.rest import RestClient
from tests.support.needs import needs_module
from tests.support.servers.booking_llm import BookingLlm
from tests.support.servers.llm_server import running_llm
from tests.support.services import Serve
from voicemem.protocol.types import JsonObject

needs_module("livekit.agents", "livekit")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    from livekit.agents import Agent, AgentSession, RunContext, function_tool, inference

    from bench.harness.livekit.scenarios import JOKE, STORY
    from bench.harness.livekit.scenarios import answer as unused
    from bench.harness.livekit.stage import PLAIN, Stage


class Waiter(Agent):
    """Has a tool that takes a while, during which it may say something."""

    def __init__(self, llm: Any, tool_s: float = 0.0, filler: str = "") -> None:
        super().__init__(instructions="You are a waiter.", llm=llm)
        self.tool_s, self.filler, self.booked, self.called = tool_s, filler, 0, 0

    @function_tool
    async def book_table(self, context: RunContext[None]) -> str:
        """Book a table."""
        self.booked += 1
        if not self.filler:
            await asyncio.sleep(self.tool_s)
            return "book_table: 77"
        async with context.with_filler(self.filler, delay=0.05):
            await asyncio.sleep(self.tool_s)
        return "book_table: 77"

    @function_tool
    async def call_taxi(self) -> str:
        """Call a taxi."""
        self.called += 1
        return "call_taxi: 12"


class Outcome(NamedTuple):
    """What a call came to."""

    booked: int
    called: int
    said: list[tuple[str, str]]
    """Of the framework's own memory."""


Act = Callable[[AgentSession[None]], Awaitable[None]]


async def call(url: str, act: Act, **more: Any) -> Outcome:
    """A call in text, at a base URL."""
    model = inference.LLM("any", base_url=url, api_key="key", api_secret="secret" * 8)
    waiter = Waiter(model, **more)
    session: AgentSession[None] = AgentSession()
    await session.start(waiter)
    await act(session)
    await session.aclose()
    await model.aclose()
    said = [(str(one.role), one.text_content or "") for one in session.history.messages() if one.role != "system"]
    return Outcome(waiter.booked, waiter.called, said)


async def both(serve: Serve, act: Act, **more: Any) -> tuple[Outcome, Outcome, list[JsonObject]]:
    """The same call without the gateway and through it, and the memory of the latter."""
    async with running_llm(BookingLlm(JOKE, STORY)) as llm:
        direct = await call(llm.url, act, **more)
        app = await serve(llm_url=llm.url)
        api = RestClient(app)
        await api.create()
        through = await call(f"http://{app.rest_address}/v1/sessions/s", act, **more)
        return direct, through, await api.contents()


async def plain(session: AgentSession[None]) -> None:
    await session.generate_reply(user_input="Hi, I am Ann.")
    await session.generate_reply(user_input="Book a table.")
    await session.generate_reply(user_input="Thanks.", instructions="Answer in one sentence.")
    await session.generate_reply(instructions="Say goodbye.")


async def both_tools(session: AgentSession[None]) -> None:
    await session.generate_reply(user_input="Book a table and a taxi.")
    await session.generate_reply(user_input="Thanks.")


async def spoken_meanwhile(session: AgentSession[None]) -> None:
    """The caller speaks while a tool runs."""
    session.generate_reply(user_input="Book a table.")
    await asyncio.sleep(0.4)
    await session.interrupt()
    await session.generate_reply(user_input="Are you still there?")
    await asyncio.sleep(1.0)
    await session.generate_reply(user_input="So?")


@pytest.mark.parametrize(
    ("act", "settings"),
    [
        (plain, {}),
        (plain, {"filler": "One moment.", "tool_s": 0.4}),
        (both_tools, {"tool_s": 0.1}),
        (both_tools, {"filler": "One moment.", "tool_s": 0.4}),
        (spoken_meanwhile, {"tool_s": 0.8}),
    ],
    ids=["plain", "filler", "two tools", "two tools and a filler", "spoken meanwhile"],
)
async def test_an_agent_does_the_same_through_the_gateway(serve: Serve, act: Act, settings: dict[str, Any]) -> None:
    """The same tool calls and the same answers, and the memory has each word once."""
    direct, through, contents = await both(serve, act, **settings)
    assert direct == through
    assert 1 <= through.booked
    assert sorted(through.said) == sorted(role_and_text(contents))


async def test_a_reply_made_ahead_and_thrown_away_is_withdrawn(serve: Serve) -> None:
    """The caller continues after a first final: LiveKit asks again where it has asked, and no one heard that reply."""
    async with running_llm(BookingLlm(JOKE, STORY)) as llm:
        app = await serve(llm_url=llm.url)
        api = RestClient(app)
        await api.create()
        stage = Stage(PLAIN, unused, preemptive=True, endpointing_s=0.5)
        url = f"http://{app.rest_address}/v1/sessions/s"
        model = inference.LLM("any", base_url=url, api_key="key", api_secret="secret" * 8)
        await stage.start(Waiter(model))
        await stage.caller.says("Tell me a joke no a story", finals=2)
        await stage.until_remembered(1)
        await stage.until_silent()
        await stage.close()
        await model.aclose()
        said = role_and_text(await api.contents())
        assert "Tell me a joke no a story" == " ".join(text for role, text in said if role == "user")
        assert [STORY] == [text for role, text in said if role == "assistant"]
