"""An LLM that books what it is asked to, for agents of frameworks that have its tools."""

from __future__ import annotations

from aiohttp import web

from tests.support.servers.llm_server import LlmServer, Script

WORDS = {"book_table": "table", "call_taxi": "taxi"}
"""The tools of its agents, and what the caller says for each."""


class BookingLlm(LlmServer):
    """Calls tools until it sees their results, tells jokes and stories, and repeats what it was told."""

    def __init__(self, joke: str = "Why?", story: str = "Once.") -> None:
        super().__init__()
        self.joke, self.story = joke, story

    async def handle(self, request: web.Request) -> web.StreamResponse:
        messages = (await request.json())["messages"]
        said = [str(one.get("content")) for one in messages if one["role"] == "user"]
        results = " ".join(str(one.get("content")) for one in messages if one["role"] == "tool")
        asked = [name for name, word in WORDS.items() if any("Book" in one and word in one for one in said)]
        calls = [
            {"id": f"call_{len(self.requests)}_{name}", "name": name, "arguments": "{}"}
            for name in asked
            if name not in results
        ]
        last = said[-1]
        answer = self.story if "story" in last else self.joke if "joke" in last else f"You said: {last}"
        self.scripts = [Script(tools=calls) if calls else Script([answer])]
        return await super().handle(request)
