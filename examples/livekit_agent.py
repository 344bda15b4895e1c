"""A LiveKit agent whose caller breaks in, and calls again: what the LLM got each time.

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
KNOWN = {"memory_from": {"sessions": 3}, "memory": {"memories": {}}}  # * what a call knows of earlier ones


def answer(context: ChatContext) -> list[Chunk]:
    """The LLM: it shows what it got."""
    print("The LLM gets:", *(f"{one.role}: {one.text_content!r}" for one in context.messages()), sep="\n  ")
    return ["So I stop here."] if "Stop" in (context.messages()[-1].text_content or "") else [JOKE]


async def call(client: Client, said: dict[str, str]) -> None:
    """One call: what the caller says, and the word of each answer that they wait for."""
    stage = Stage(PLAIN, answer, espeak=shutil.which("espeak-ng") is not None)
    session = stage.session  # AgentSession(stt=…, llm=…, tts=…, vad=…)
    memory = livekit.attach(session, client, user_id="ann", context=True, config=KNOWN)  # *
    await session.start(Agent(instructions="You are funny."))
    for words, word in said.items():
        await stage.caller.says(words)
        await stage.until_played(word)
    await stage.close()
    await memory.aclose()  # * or ctx.add_shutdown_callback(memory.aclose)


async def calls(ingest_url: str, rest_url: str) -> None:
    async with Client(ingest_url, rest_url) as client:  # *
        await call(client, {"Tell me a joke": "outstanding", "Stop that please": "stop"})
        await call(client, {"Another joke please": "scarecrow"})


if __name__ == "__main__":
    asyncio.run(calls(*(sys.argv[1:] or ("ws://127.0.0.1:8765", "http://127.0.0.1:8080"))))
