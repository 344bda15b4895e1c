"""An agent of LangChain on LangGraph whose caller breaks in, and what the model got then.

    voicemem serve
    python -m examples.langgraph [INGEST_URL REST_URL]

It needs no keys: the model says what a script says. Only the lines with a star are what voicemem adds.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from voicemem.client import Client
from voicemem.integrations import langgraph

WEATHER = "In Oslo it rains until the evening, and tomorrow the sun comes out."


class Weather(GenericFakeChatModel):
    """Answers from a script, and keeps what it was asked last."""

    asked: list[Any] = []  # noqa: RUF012 (a field of pydantic)

    def _generate(self, messages: Any, *given: Any, **named: Any) -> Any:
        self.asked[:] = messages
        return super()._generate(messages, *given, **named)


async def call(ingest_url: str, rest_url: str) -> None:
    """One call: a forecast, and a caller who has heard enough of it."""
    model = Weather(messages=iter([AIMessage(WEATHER), AIMessage("Until the evening.")]))
    thread: Any = {"configurable": {"thread_id": "call-1"}}
    async with Client(ingest_url, rest_url) as client:  # *
        memory = langgraph.middleware(client)  # *
        agent: Any = create_agent(model, middleware=[memory], checkpointer=InMemorySaver())  # * its middleware
        await agent.ainvoke({"messages": [("user", "What is the weather in Oslo?")]}, thread)
        playing = memory.call("call-1")  # *
        playing.interrupted(heard_text="In Oslo it rains ")  # * your player says how far it came
        await agent.ainvoke({"messages": [("user", "Until when?")]}, thread)
        playing.end()  # *
        await playing.aclose()  # *
    print("The model got:")
    for message in model.asked:
        print(f"  {message.type}: {message.content!r}")


if __name__ == "__main__":
    asyncio.run(call(*(sys.argv[1:] or ("ws://127.0.0.1:8765", "http://127.0.0.1:8080"))))
