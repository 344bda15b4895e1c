"""A LiveKit agent whose caller breaks in, and what the LLM got then.

    voicemem serve
    python -m examples.livekit_agent [INGEST_URL REST_URL]

It needs no room and no keys: recogniser, LLM, voice and loudspeaker are scripted (bench/harness/livekit); all that is
between them is LiveKit's. Only the lines with a star are what voicemem adds to an agent.
"""

from __future__ import annotations

import asyncio
import shutil
import sys

from livekit.agents import Agent, ChatContext

from bench.harness.livekit.plugins import Chunk
from bench.harness.livekit.stage import PLAIN, Stage
from voicemem.client import Client
from voicemem.integrations import livekit

JOKE = "Why did the scarecrow win an award? Because he was outstanding in his field!"


def answer(context: ChatContext) -> list[Chunk]:
    """The LLM: it shows what it got."""
    print("The LLM gets:")
    for message in context.messages():
        print(f"  {message.role}: {message.text_content!r}")
    return ["So I stop here."] if "Stop" in (context.messages()[-1].text_content or "") else [JOKE]


async def call(ingest_url: str, rest_url: str) -> None:
    """One call: a joke, and a caller who has heard enough of it."""
    stage = Stage(PLAIN, answer, espeak=shutil.which("espeak-ng") is not None)
    session = stage.session  # AgentSession(stt=…, llm=…, tts=…, vad=…)
    async with Client(ingest_url, rest_url) as client:  # *
        memory = livekit.attach(session, client, context=True)  # *
        await session.start(Agent(instructions="You are funny."))

        await stage.caller.says("Tell me a joke")
        await stage.until_played("outstanding")
        await stage.caller.says("Stop that please")
        await stage.until_remembered(2)

        await stage.close()
        await memory.aclose()  # * or ctx.add_shutdown_callback(memory.aclose)


if __name__ == "__main__":
    asyncio.run(call(*(sys.argv[1:] or ("ws://127.0.0.1:8765", "http://127.0.0.1:8080"))))
