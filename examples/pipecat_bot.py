"""A Pipecat bot whose caller breaks in, and what the LLM got then.

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


async def caller(call: Call) -> None:
    """What the caller does: asks, and has heard enough after eight words."""
    await call.say("Where is my cab?")
    await call.until_heard(0, 8)
    await call.say("Thank you!")
    await call.until_heard(1, 3)


async def call(ingest_url: str, rest_url: str) -> None:
    """One call, from a pipeline to the end of it."""
    scenario = Scenario("cab", caller, [Answer(CAB.text), Answer(SURE.text)], [CAB, SURE])
    bot = Call(scenario, MODES["plain"])  # bot.worker = PipelineWorker(Pipeline([…]))
    async with Client(ingest_url, rest_url) as client:  # *
        memory = pipecat.attach(bot.worker, client, context=True)  # *
        await bot.run()  # await runner.run()
        await memory.aclose()  # *
    for request in bot.llm.requests:
        print("The LLM got:")
        for message in request:
            print(f"  {message['role']}: {message['content']!r}")


if __name__ == "__main__":
    logger.remove()
    asyncio.run(call(*(sys.argv[1:] or ("ws://127.0.0.1:8765", "http://127.0.0.1:8080"))))
