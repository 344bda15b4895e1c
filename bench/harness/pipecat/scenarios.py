"""Calls of a Pipecat bot, each with something that goes wrong with what the agent thinks that was heard."""

from __future__ import annotations

from pipecat.frames.frames import CancelFrame, EndFrame

from bench.harness.pipecat.call import Call, Scenario, speech
from bench.harness.pipecat.services import Answer

FOX, DENTIST, ONIONS = speech("bedtime_story a2"), speech("dentist a4"), speech("recipe_helper a4")
CLAIM, CAB, CAR, PIZZA = speech("insurance_claim a4"), speech("taxi a3"), speech("taxi a5"), speech("pizza_order a4")
BANK, GATE = speech("bank_card a1"), speech("airline_delay a5")
OKAY = speech("bank_card a2")


async def interrupted_early(call: Call) -> None:
    """In the first sentence."""
    await call.say("Can I come today?")
    await call.until_heard(0, 7)
    await call.say("Hold on.", interim="Hold")
    await call.until_silent()


async def interrupted_late(call: Call) -> None:
    """In a later sentence."""
    await call.say("Tell me a story.")
    await call.until_heard(0, 41)
    await call.say("Was it a red fox?")
    await call.until_heard(1, 12)
    await call.say("No, wait.")
    await call.until_silent()


async def interrupted_before_audio(call: Call) -> None:
    """When the LLM has answered and nothing was heard yet."""
    await call.say("How do I fry onions?")
    await call.wait(0.85)
    await call.say("I mean for a soup.")
    await call.until_heard(1, 10)
    await call.say("Stop.")
    await call.until_silent()


async def interrupted_twice(call: Call) -> None:
    """And again, soon after the next reply has begun."""
    await call.say("I had an accident.")
    await call.until_heard(0, 18)
    await call.say("A small one.")
    await call.until_heard(1, 3)
    await call.say("Sorry, go on.")
    await call.until_silent()


async def greeted(call: Call) -> None:
    """A greeting of the program's own, cut."""
    await call.speak(BANK.text)
    await call.until_heard(0, 15)
    await call.say("My card is gone.")
    await call.until_silent()


async def hung_up_before_the_end(call: Call) -> None:
    """The caller is gone, and the pipeline ends in an orderly way."""
    await call.say("Where is my cab?")
    await call.until_heard(0, 8)
    call.hang_up()
    await call.queue(EndFrame())
    await call.wait(20)


async def cancelled(call: Call) -> None:
    """The caller is gone, and the pipeline is cancelled."""
    await call.say("Where is my cab?")
    await call.until_heard(0, 12)
    call.hang_up()
    await call.queue(CancelFrame())
    await call.wait(3)


async def used_a_tool(call: Call) -> None:
    """Two replies around a tool; the second is cut."""
    await call.say("I need a pizza in Birch Lane.")
    await call.until_heard(1, 9)
    await call.say("Forty four, not forty two.")
    await call.until_silent()


async def heard_it_all(call: Call) -> None:
    """Nothing is cut; the caller's turns interrupt a silent agent."""
    await call.say("Will I get my next flight?")
    await call.until_silent()
    await call.say("Thank", "you.")
    await call.until_silent()


def answers(*speeches: object) -> list[Answer]:
    return [Answer(one.text) for one in speeches]  # type: ignore[attr-defined]


TOOL = [Answer(OKAY.text, tool=("call-1", "order", {"item": "pizza"})), Answer(PIZZA.text)]
SCENARIOS = [
    Scenario("early", interrupted_early, answers(DENTIST, CAB), [DENTIST, CAB]),
    Scenario("late", interrupted_late, answers(FOX, GATE, CAB), [FOX, GATE, CAB]),
    Scenario("before audio", interrupted_before_audio, answers(ONIONS, CLAIM, CAB), [ONIONS, CLAIM, CAB]),
    Scenario("twice", interrupted_twice, answers(CLAIM, FOX, CAB), [CLAIM, FOX, CAB]),
    Scenario("greeting", greeted, answers(OKAY), [BANK, OKAY]),
    Scenario("hang-up, EndFrame", hung_up_before_the_end, answers(CAB), [CAB]),
    Scenario("hang-up, CancelFrame", cancelled, answers(CAB), [CAB]),
    Scenario("tool", used_a_tool, [*TOOL, *answers(CAB)], [OKAY, PIZZA, CAB]),
    Scenario("slow TTS", interrupted_late, answers(FOX, GATE, CAB), [FOX, GATE, CAB], pauses={1: 2.8, 2: 2.5, 3: 1.5}),
    Scenario(
        "slow LLM",
        interrupted_late,
        [Answer(FOX.text, pauses={9: 1.0, 30: 2.5, 38: 7.0}), *answers(GATE, CAB)],
        [FOX, GATE, CAB],
    ),
    Scenario("all heard", heard_it_all, answers(GATE, CAR), [GATE, CAR]),
]
