"""A live call of Google's ADK whose caller breaks in, and what the memory has of it.

    voicemem serve
    python -m examples.google_adk [INGEST_URL REST_URL]

It needs no keys: the model says what a script says. Only the lines with a star are what voicemem adds.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.live_request_queue import LiveRequestQueue
from google.adk.apps.app import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai.types import Blob, Content, Part, Transcription

from voicemem.client import Client
from voicemem.integrations import google_adk

WEATHER = "In Oslo it rains until the evening, and tomorrow the sun comes out."
AUDIO = Blob(data=bytes(48 * 4000), mime_type="audio/pcm;rate=24000")  # four seconds
CALL = (
    LlmResponse(input_transcription=Transcription(text="What is the weather in Oslo?", finished=True)),
    LlmResponse(output_transcription=Transcription(text=WEATHER), partial=True),
    LlmResponse(content=Content(role="model", parts=[Part(inline_data=AUDIO)])),
    LlmResponse(interrupted=True),
    LlmResponse(input_transcription=Transcription(text="Until when?", finished=True)),
)


HAS_HEARD_ENOUGH = asyncio.Event()


class Gemini(BaseLlm):
    """Lets a call of the script happen."""

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        yield LlmResponse()

    @asynccontextmanager
    async def connect(self, llm_request: Any) -> Any:
        yield self

    async def send_history(self, history: Any) -> None: ...

    async def receive(self) -> Any:
        for said in CALL:
            if said.interrupted:
                await HAS_HEARD_ENOUGH.wait()
            yield said
        await asyncio.Event().wait()


async def call(ingest_url: str, rest_url: str) -> None:
    """One call: a forecast, and a caller who has heard enough of it."""
    async with Client(ingest_url, rest_url) as client:  # *
        memory = google_adk.plugin(client)  # *
        agent = LlmAgent(name="weather", model=Gemini(model="scripted"))
        app = App(name="app", root_agent=agent, plugins=[memory])  # * its plugin
        runner = Runner(app=app, session_service=InMemorySessionService())
        session = await runner.session_service.create_session(app_name="app", user_id="ann")
        playing = memory.call(session.id)  # *
        run = runner.run_live(user_id="ann", session_id=session.id, live_request_queue=LiveRequestQueue())
        async for event in run:
            if event.content:
                playing.played(audio_ms=1100)  # * your player says how far it came
                HAS_HEARD_ENOUGH.set()
            if event.input_transcription and event.input_transcription.text == "Until when?":
                break
        await run.aclose()
        playing.end()  # *
        await playing.aclose()  # *
        history = await (await client.open(session.id, producer="reader", allow_ended=True)).history()
    for message in history["contents"]:
        print(f"{message['role']}: {message['content']!r}")


if __name__ == "__main__":
    asyncio.run(call(*(sys.argv[1:] or ("ws://127.0.0.1:8765", "http://127.0.0.1:8080"))))
