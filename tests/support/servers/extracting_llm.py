"""What an LLM answers that makes memories of calls, and what it was shown."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from tests.support.servers.llm_server import LlmServer, Script
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


def shown_lines(llm: LlmServer, request: int = -1) -> dict[int, str]:
    """The lines that a request showed, by number."""
    content = llm.requests[request].body["messages"][-1]["content"]
    return {int(number): text for number, text in LINE.findall(content)}


def numbers_of(llm: LlmServer) -> list[int]:
    """The lines of all requests, which must be different ones."""
    return [number for request in range(len(llm.requests)) for number in shown_lines(llm, request)]


def asked_about(llm: LlmServer) -> Sequence[str]:
    """What each request showed, as a whole."""
    return [request.body["messages"][-1]["content"] for request in llm.requests]
