"""Calls that go differently: each with at least one reply of the agent, most of them cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from livekit.agents import Agent, function_tool, llm

from bench.harness.livekit.plugins import Chunk
from bench.harness.livekit.stage import Mode, Stage
from voicemem.integrations.livekit.remembering import text_of

JOKE = "Why did the scarecrow win an award? Because he was outstanding in his field, you know."
STORY = "Once there was a river that had lost its way. It asked the old mill, and the mill knew nothing at all."
GREETING = "Good evening and welcome to the farm, where everything grows in its own good time."
PRICE = "The tickets are twelve crowns each, and children under seven come in for free."
OTHER = "This is Anna speaking now, and I shall gladly take over from here for you."
SHORT = "Never mind that."
LOOK = "look_up"
ANSWERS: dict[str, list[Chunk]] = {
    "story": [STORY],
    "joke": [JOKE],
    "tickets": [llm.FunctionToolCall(name=LOOK, arguments='{"what": "tickets"}', call_id="c1")],
    "colleague": [llm.FunctionToolCall(name="hand_over", arguments="{}", call_id="c2")],
    "crowns": [PRICE],
    "Anna": [OTHER],
}


def answer(context: llm.ChatContext) -> list[Chunk]:
    """What the LLM says to the newest words or tool result in its context."""
    said: Any = next((one for one in reversed(context.items) if is_asked(one)), None)
    asked = "" if said is None else getattr(said, "output", None) or text_of(said)
    return next((chunks for word, chunks in ANSWERS.items() if word in asked), [SHORT])


def is_asked(item: Any) -> bool:
    return bool(item.type == "function_call_output" or (item.type == "message" and item.role == "user"))


@function_tool
async def look_up(what: str) -> str:
    """Look up the price of something."""
    await asyncio.sleep(0.05)
    return "12 crowns"


class FirstAgent(Agent):
    """Hands the call over when it is asked to."""

    @function_tool
    async def hand_over(self) -> tuple[Agent, str]:
        """Give the call to a colleague."""
        return Colleague(), "She takes over"


class Colleague(Agent):
    """Speaks as soon as it has the call; what the caller has typed is its question."""

    def __init__(self) -> None:
        super().__init__(instructions="You are Anna.")

    async def on_enter(self) -> None:
        self.session.generate_reply(user_input="Hello, is this Anna?")


class GreetingAgent(Agent):
    """Speaks first."""

    def __init__(self) -> None:
        super().__init__(instructions="Be brief.")

    async def on_enter(self) -> None:
        self.session.say(GREETING)


class OwnNodes(Agent):
    """Has nodes of its own: a text in one piece, and a voice that is told something else."""

    def __init__(self) -> None:
        super().__init__(instructions="Be brief.")

    async def llm_node(self, *_: Any) -> str:
        return "Hello **there**."

    async def tts_node(self, text: Any, model_settings: Any) -> Any:
        async def plain() -> AsyncIterator[str]:
            async for piece in text:
                yield piece.replace("*", "")

        async for frame in Agent.default.tts_node(self, plain(), model_settings):
            yield frame


class Scenario(NamedTuple):
    """One kind of call."""

    name: str
    says: str
    act: Callable[[Stage], Awaitable[None]]
    replies: tuple[str, ...]
    """The texts of the replies that count."""
    agent: Callable[[], Agent] = lambda: Agent(instructions="Be brief.")
    settings: dict[str, Any] = {}  # noqa: RUF012 (nothing writes to it)

    def stage(self, mode: Mode, espeak: bool = False) -> Stage:
        return Stage(mode, answer, espeak=espeak, tools=[look_up], **self.settings)


async def barge_in(stage: Stage, word: str) -> None:
    """The caller breaks in when a word begins to sound, and gets an answer."""
    count = len(stage.own_memory())
    await stage.until_played(word)
    await stage.caller.says("No stop that please")
    await stage.until_remembered(count + 2)
    await stage.until_silent()


async def plain(stage: Stage) -> None:
    await stage.caller.says("Tell me a joke")
    await barge_in(stage, "outstanding")


async def early(stage: Stage) -> None:
    await stage.caller.says("Tell me a story")
    await barge_in(stage, "there")


async def false_alarm(stage: Stage) -> None:
    await stage.caller.says("Tell me a joke")
    await stage.until_played("scarecrow")
    await stage.caller.coughs()
    await stage.until_remembered(1)
    await stage.until_silent()


async def false_then_real(stage: Stage) -> None:
    await stage.caller.says("Tell me a story")
    await stage.until_played("river")
    await stage.caller.coughs()
    await barge_in(stage, "mill,")


async def tool(stage: Stage) -> None:
    await stage.caller.says("How much are the tickets")
    await barge_in(stage, "children")


async def say(stage: Stage) -> None:
    await barge_in(stage, "everything")


async def hand_over(stage: Stage) -> None:
    await stage.caller.says("Give me your colleague")
    await barge_in(stage, "gladly")


async def preemptive(stage: Stage) -> None:
    """The first final is answered ahead, and thrown away for the second."""
    await stage.caller.says("Tell me a joke no a story", finals=2)
    await barge_in(stage, "asked")


async def realtime(stage: Stage) -> None:
    await stage.caller.says("Tell me a story")
    await barge_in(stage, "asked")


async def hang_up(stage: Stage) -> None:
    await stage.caller.says("Tell me a story")
    await stage.until_played("lost")
    await stage.session.aclose()


AHEAD = {"preemptive": True, "endpointing_s": 0.5}
SCENARIOS = (
    Scenario("plain", "cut in the second sentence", plain, (JOKE,)),
    Scenario("early", "cut after a few words", early, (STORY,)),
    Scenario("slow_tts", "the second sentence is late", plain, (JOKE,), settings={"slow_s": 2.5}),
    Scenario("false_alarm", "a cough, then to the end", false_alarm, (JOKE,)),
    Scenario("false_then_real", "a cough, then cut", false_then_real, (STORY,)),
    Scenario("tool", "cut after a tool call", tool, (PRICE,)),
    Scenario("say", "a greeting that no LLM made, cut", say, (GREETING,), GreetingAgent),
    Scenario("hand_over", "the second agent is cut", hand_over, (OTHER,), lambda: FirstAgent(instructions="Be brief.")),
    Scenario(
        "preemptive",
        "answered ahead, thrown away; then cut",
        preemptive,
        (STORY,),
        settings={"preemptive": True, "endpointing_s": 0.5},
    ),
    Scenario("realtime", "a realtime model is cut", realtime, (STORY,), settings={"realtime": (STORY, SHORT)}),
    Scenario("hang_up", "the session closes in mid reply", hang_up, (STORY,)),
)
