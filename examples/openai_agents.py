"""An agent of the OpenAI Agents SDK whose caller breaks in, and what the model got then.

    voicemem serve
    python -m examples.openai_agents [INGEST_URL REST_URL]

It needs no keys: the model is the SDK's own scripted one. Only the lines with a star are what voicemem adds.
"""

from __future__ import annotations

import asyncio
import sys

from agents import Agent, RunConfig, Runner
from agents.testing import ScriptedModel, assistant_message

from voicemem.client import Client
from voicemem.integrations import openai_agents

WEATHER = "In Oslo it rains until the evening, and tomorrow the sun comes out."


async def call(ingest_url: str, rest_url: str) -> None:
    """One call: a forecast, and a caller who has heard enough of it."""
    model = ScriptedModel([[assistant_message(WEATHER)], [assistant_message("Until the evening.")]])
    agent = Agent(name="weather", instructions="Be brief.", model=model)
    quiet = RunConfig(tracing_disabled=True)
    async with Client(ingest_url, rest_url) as client:  # *
        memory = openai_agents.session(client)  # *
        await memory.session.opening
        await Runner.run(agent, "What is the weather in Oslo?", session=memory, run_config=quiet)
        memory.interrupted(heard_text="In Oslo it rains ")  # * your player says how far it came
        await Runner.run(agent, "Until when?", session=memory, run_config=quiet)
        memory.end()  # *
        await memory.aclose()  # *
    print("The model got:")
    for item in model.calls[1].input:
        print(f"  {item['role']}: {item['content']!r}" if isinstance(item, dict) else item)


if __name__ == "__main__":
    asyncio.run(call(*(sys.argv[1:] or ("ws://127.0.0.1:8765", "http://127.0.0.1:8080"))))
