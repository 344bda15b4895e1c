"""An engine of Agora's kind whose caller breaks in, and what its LLM got then.

    voicemem serve
    python -m examples.agora_engine [INGEST_URL REST_URL]

It needs neither keys nor a network: recogniser, LLM and voice are scripted. Only lines with a star are what voicemem
adds: the engine copies what it tells its clients, and asks for the context of the next LLM request.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import aiohttp

AGENT = {"name": "weather", "properties": {"channel": "room", "llm": {"greeting_message": "Hello."}}}
ANSWERS = iter(["In Oslo it rains until the evening, and tomorrow the sun comes out.", "Until the evening."])
WORD_MS, BARGE_IN_MS = 300, 1_250


async def call(ingest_url: str, rest_url: str) -> None:
    """One call: a forecast, and a caller who has heard enough of it."""
    async with aiohttp.ClientSession() as http:
        joined = await http.post(f"{rest_url}/api/conversational-ai-agent/v2/projects/app/join", json=AGENT)
        agent_id = (await joined.json())["agent_id"]
        path = f"{ingest_url}/v1/ingest/agora-ten?session_id={agent_id}"  # *
        async with http.ws_connect(path, protocols=["voicemem.v1"]) as memory:  # *
            sent, clock_ms = 0, 500_000  # the media clock of the channel, which does not begin at 0

            async def tell_clients(**message: Any) -> None:  # over RTM or the data stream, and:
                nonlocal sent
                sent += 1
                await memory.send_json({"frame": message, "seq": sent})  # *

            for turn, words in enumerate(("What is the weather in Oslo?", "Until when?"), 1):
                await tell_clients(object="user.transcription", text=words, final=True, turn_id=turn)
                while (await memory.receive_json()).get("seq") != sent:  # * until all of it is on disk
                    pass
                context = await http.get(f"{rest_url}/v1/sessions/{agent_id}/context")  # *
                print(f"The LLM got, in turn {turn}:")
                for line in (await context.json())["messages"]:
                    print(f"  {line['role']}: {line['content']!r}")
                reply = dict[str, Any](object="assistant.transcription", turn_id=turn, text="", words=[], turn_status=0)
                for place, word in enumerate(next(ANSWERS).split()):
                    start_ms = clock_ms + place * WORD_MS
                    if place * WORD_MS > BARGE_IN_MS:
                        await tell_clients(object="message.interrupt", turn_id=turn, start_ms=clock_ms + BARGE_IN_MS)
                        break
                    reply["text"] += f"{word} "
                    reply["words"].append({"word": f"{word} ", "start_ms": start_ms, "duration_ms": WORD_MS})
                    await tell_clients(**reply)
                await tell_clients(**reply | {"turn_status": 1 if turn == 2 else 2})
        await http.post(f"{rest_url}/api/conversational-ai-agent/v2/projects/app/agents/{agent_id}/leave")


if __name__ == "__main__":
    asyncio.run(call(*(sys.argv[1:] or ("ws://127.0.0.1:8765", "http://127.0.0.1:8080"))))
