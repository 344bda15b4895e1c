"""A phone bridged to OpenAI Realtime, whose caller breaks in, and what the next response got.

    voicemem serve
    python -m examples.phone [INGEST_URL REST_URL]

It needs no keys: vendor and phone are scripted (bench/harness). The lines with a star are what voicemem adds to an app.
"""

from __future__ import annotations

import asyncio
import json
import sys

from openai import AsyncOpenAI
from websockets.asyncio.server import ServerConnection

import voicemem
from bench.harness.realtime_server import realtime_vendor
from bench.harness.telephone import phone_call
from voicemem.client import Client, Options

CALLER = ["What is the weather in Oslo?", "Until when?"]
WEATHER = "In Oslo it rains until the evening, and tomorrow the sun comes out."


async def call(ingest_url: str, rest_url: str) -> None:
    """One call: a forecast, a caller who has heard enough of it, and an answer to the next question."""
    async with (
        realtime_vendor(CALLER, [WEATHER, "Until six."], is_phone=True) as (vendor, url),
        Client(ingest_url, rest_url, options=Options(context_timeout_s=10)) as client,
    ):
        sdk = AsyncOpenAI(api_key="none", websocket_base_url=url)

        async def bridge(phone: ServerConnection) -> None:
            voicemem.tee.phone(phone, client, "call-1")  # *
            _connected, stream = await phone.recv(), json.loads(await phone.recv())["streamSid"]
            async with sdk.realtime.connect(model="gpt-realtime") as connection:
                voicemem.tee(connection, client, "call-1")  # *
                memory = voicemem.memory_of(connection)  # *
                async for event in connection:
                    if event.type == "response.output_audio.delta":
                        media = {"event": "media", "streamSid": stream, "media": {"payload": event.delta}}
                        await phone.send(json.dumps(media))
                    elif event.type == "input_audio_buffer.speech_started":
                        await phone.send(json.dumps({"event": "clear", "streamSid": stream}))
                    elif event.type == "conversation.item.input_audio_transcription.completed":
                        context = await memory.context()  # *
                        said = [f"{one['role']}: {one['content']}" for one in (context or {}).get("messages", [])]
                        await connection.response.create(response={"instructions": "\n".join(said)})
                await memory.aclose()  # *

        await phone_call(bridge, breaks_in_at_ms=1_050, break_in=vendor.caller_speaks, at_end=vendor.hang_up)
        await sdk.close()
    print("The next response got:", vendor.requests[1]["instructions"], sep="\n")


if __name__ == "__main__":
    asyncio.run(call(*(sys.argv[1:] or ("ws://127.0.0.1:8765", "http://127.0.0.1:8080"))))
