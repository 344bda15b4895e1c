"""A loop with openai's realtime SDK whose caller breaks in, and what the next response got.

    voicemem serve
    python -m examples.openai_realtime [INGEST_URL REST_URL]

It needs no keys: the vendor and the loudspeaker are scripted (bench/harness). Only the lines with a star are what
voicemem adds to an app.
"""

from __future__ import annotations

import asyncio
import sys

from openai import AsyncOpenAI

import voicemem
from bench.harness.loudspeaker import Loudspeaker
from bench.harness.realtime_server import realtime_vendor
from voicemem.client import Client, Options

CALLER = ["What is the weather in Oslo?", "Until when?"]
WEATHER = "In Oslo it rains until the evening, and tomorrow the sun comes out."
PATIENT = Options(context_timeout_s=10.0)  # the second that is usual may be too short for a busy machine


async def call(ingest_url: str, rest_url: str) -> None:
    """One call: a forecast, a caller who has heard enough of it, and an answer to the next question."""
    async with (
        realtime_vendor(CALLER, [WEATHER, "Until six."]) as (vendor, url),
        Client(ingest_url, rest_url) as client,
    ):
        sdk = AsyncOpenAI(api_key="none", websocket_base_url=url)
        player = Loudspeaker(breaks_in_at_ms=1_250, break_in=vendor.caller_speaks, at_end=vendor.hang_up)
        async with sdk.realtime.connect(model="gpt-realtime") as connection:
            voicemem.tee(connection, client)  # *
            memory = voicemem.memory_of(connection)  # *
            async for event in connection:
                if event.type == "response.output_audio.delta":
                    player.play(event.item_id, event.delta)
                elif event.type == "response.done":
                    player.has_all()
                elif event.type == "input_audio_buffer.speech_started" and player.item:
                    item, played_ms = player.stop()
                    await connection.conversation.item.truncate(item_id=item, content_index=0, audio_end_ms=played_ms)
                elif event.type == "conversation.item.input_audio_transcription.completed":
                    known = await memory.context()  # *
                    said = "\n".join(f"{one['role']}: {one['content']}" for one in known["messages"]) if known else ""
                    await connection.response.create(response={"instructions": f"You are on the phone.\n{said}"})
            await memory.aclose()  # *
        await sdk.close()
    print("The next response got:")
    print(vendor.requests[1]["instructions"])


if __name__ == "__main__":
    asyncio.run(call(*(sys.argv[1:] or ("ws://127.0.0.1:8765", "http://127.0.0.1:8080"))))
