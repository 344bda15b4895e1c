"""A Pipecat bot whose caller breaks in, and calls again: what the LLM got each time.

    voicemem serve
    python -m examples.pipecat_bot [INGEST_URL REST_URL]

It needs no keys: the caller, the LLM, the voice and the loudspeaker are scripted (bench/harness/pipecat); all that is
between them is Pipecat's. Only the lines with a star are what voicemem adds to a bot.
"""

from __future__ import annotations

import asyncio
import sys

from loguru import logger

from bench.harness.pipecat.call import MODES, Call, Scenario, speech
from bench.harness.pipecat.services import Answer
from voicemem.client import Client
from voicemem.integrations import pipecat

CAB, SURE = speech("taxi a3"), speech("library_loan a7")
KNOWN = {"memory_from": {"sessions": 3}, "memory": {"memories": {}}}  # * what a call knows of earlier ones


async def first(call: Call) -> None:
    """The caller asks, and has heard enough after eight words."""
    await call.say("Where is my cab?")
    await call.until_heard(0, 8)
    await call.say("Thank you!")
    await call.until_heard(1, 3)


async def second(call: Call) -> None:
    await call.say("The cab was late.")
    await call.until_heard(0, 3)


async def call(client: Client, scenario: Scenario) -> None:
    """One call, from a pipeline to the end of it."""
    bot = Call(scenario, MODES["plain"])  # bot.worker = PipelineWorker(Pipeline([…]))
    memory = pipecat.attach(bot.worker, client, user_id="ann", context=True, config=KNOWN)  # *
    await bot.run()  # await runner.run()
    await memory.aclose()  # *
    for request in bot.llm.requests:
        print("The LLM got:", *(f"{message['role']}: {message['content']!r}" for message in request), sep="\n  ")


async def calls(ingest_url: str, rest_url: str) -> None:
    async with Client(ingest_url, rest_url) as client:  # *
        await call(client, Scenario("cab", first, [Answer(CAB.text), Answer(SURE.text)], [CAB, SURE]))
        await call(client, Scenario("late", second, [Answer(SURE.text)], [SURE]))


if __name__ == "__main__":
    logger.remove()
    asyncio.run(calls(*(sys.argv[1:] or ("ws://127.0.0.1:8765", "http://127.0.0.1:8080"))))
