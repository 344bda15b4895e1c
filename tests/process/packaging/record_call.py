"""What `matrix.py` runs next to a framework: records a call over the websocket, and reads its history.

python record_call.py INGEST_URL REST_URL SESSION [MODULE OF THE FRAMEWORK]
"""

from __future__ import annotations

import asyncio
import importlib
import sys

from voicemem.client import Client

EVENTS = (
    {"type": "asr", "turn_id": 1, "text": "Tell me a joke.", "final": True},
    {"type": "llm.delta", "turn_id": 1, "text": "Why did the scarecrow win an award?"},
    {"type": "interrupt", "turn_id": 1, "heard_text": "Why did the "},
)


async def record(ingest_url: str, rest_url: str, session_id: str) -> None:
    async with Client(ingest_url, rest_url) as client:
        session = await client.open(session_id)
        for event in EVENTS:
            session.send(event)
        await session.flush()
        if client.transport != "websocket":
            raise SystemExit(f"went over {client.transport}")
        await session.end(reason="hangup")
        said = [message["content"] for message in (await session.history())["contents"]]
        if said != ["Tell me a joke.", "Why did the "]:
            raise SystemExit(f"the history is {said}")


if __name__ == "__main__":
    for framework in sys.argv[4:]:
        importlib.import_module(framework)
    asyncio.run(record(*sys.argv[1:4]))
