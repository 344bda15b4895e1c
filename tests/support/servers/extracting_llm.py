"""What an LLM answers that makes memories of calls, and what it was shown."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable

from aiohttp import web

from tests.support.servers.llm_server import LlmServer, Request, Script
from voicemem.protocol.types import JsonObject

LINE = re.compile(r"^\[(\d+)\] (.*)$", re.MULTILINE)


def memory(text: str, *lines: int, kind: str = "fact", **more: object) -> JsonObject:
    """One memory of an answer."""
    fields: JsonObject = {"topics": [], "entities": [], "event_at": None, "confidence": 0.9, "supersedes": []}
    return {"text": text, "kind": kind, "from": list(lines), **fields, **more}


def remembers(*memories: JsonObject, tokens: tuple[int, int] | None = None, hold: bool = False) -> Script:
    """An answer with these memories, and what it says that it has cost; with `hold`, only when it may go on."""
    content = json.dumps({"memories": memories})
    if tokens is None:
        return Script([content], hold_after=0 if hold else None)
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
    body = {"model": "small-1", "choices": [{"message": {"role": "assistant", "content": content}}], "usage": usage}
    return Script(raw=json.dumps(body).encode(), hold_after=0 if hold else None)


def finds(*memories: JsonObject, **values: tuple[object, int, str]) -> Script:
    """An answer with an analysis: each value with a line, and words of it; and with memories, if there are any."""
    fields = {
        name: {"value": value, "shown_by": [{"line": n, "words": words}]} for name, (value, n, words) in values.items()
    }
    return Script([json.dumps({**({"memories": memories} if memories else {}), "analysis": fields})])


def shown_lines(llm: LlmServer, request: int = -1) -> dict[int, str]:
    """The lines that a request showed, by number."""
    content = llm.requests[request].body["messages"][-1]["content"]
    return {int(number): text for number, text in LINE.findall(content)}


def numbers_of(llm: LlmServer) -> list[int]:
    """The lines of all requests, which must be different ones."""
    return [number for request in range(len(llm.requests)) for number in shown_lines(llm, request)]


class RememberingLlm(LlmServer):
    """Remembers the first line of what it is shown, as the caller said it; others may be told of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.on_request: Callable[[], Awaitable[None]] | None = None
        """Awaited before an answer."""
        self.on_answer: Callable[[], Awaitable[None]] | None = None
        """Awaited when an answer is on its way."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(Request(request.path_qs, request.headers, body))
        number, line = LINE.findall(body["messages"][-1]["content"])[0]
        content = json.dumps({"memories": [memory(line.partition(": ")[2], int(number))]})
        if self.on_request is not None:
            await self.on_request()
        answer = web.json_response({"choices": [{"message": {"role": "assistant", "content": content}}]})
        await answer.prepare(request)
        await answer.write_eof()
        if self.on_answer is not None:
            await self.on_answer()
        return answer
