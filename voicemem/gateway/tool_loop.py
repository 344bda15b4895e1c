"""The tool loop: one LLM request after another, while the LLM calls tools that the service runs (working memory).

The client sees one answer. Calls to the service's own tools are removed from it, run, and journaled with their
results, and the LLM is asked again with them in its context. When the LLM also calls tools of the client, the loop
ends and the client continues.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from voicemem.documents.document import ChatFunction, ChatToolCall
from voicemem.gateway.llm_request import LlmRequest, record
from voicemem.llm.completions import PartialToolCall, content_text
from voicemem.protocol.events import ProducedEvent, ToolResult
from voicemem.protocol.types import JsonObject

MAX_ROUNDS = 8
"""The most LLM requests for one answer; the last one offers no tools of the service."""
MakeRequest = Callable[[str | None, bool, str], Awaitable[LlmRequest]]
"""Prepares the next LLM request of an answer, from the reply's item, whether it is the last, and the text so far."""
Execute = Callable[[ChatToolCall], Awaitable[JsonObject]]
"""Runs a tool call, and returns the tool message. Raises `Refused`, `StoreUnavailable`."""


class ToolLoop:
    """Answers like an `LlmRequest`, for an LLM that is offered the service's own tools."""

    def __init__(self, first: LlmRequest, make_request: MakeRequest, execute: Execute) -> None:
        self.request = first
        """The newest request."""
        self.make_request = make_request
        self.execute = execute
        self.turn_id, self.ignored = first.turn_id, first.ignored
        self.earlier_text, self.earlier_usage = "", dict[str, Any]()
        """The text of the finished requests, and their usage."""

    @property
    def item(self) -> str | None:
        return self.request.item

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """As `LlmRequest.chunks`."""
        for rounds_left in reversed(range(MAX_ROUNDS)):
            async with aclosing(self.request.chunks()) as chunks:
                async for data in chunks:
                    shown = without_service_calls(data, self.request)
                    if shown is not None:
                        yield self.with_usage(shown)
            self.earlier_text += "".join(self.request.answer.text)
            if not self.request.must_continue:
                await self.run_service_tools()
                return
            await self.prepare_next(is_last=rounds_left <= 1)

    async def complete(self) -> bytes:
        """As `LlmRequest.complete`."""
        data = b""
        for rounds_left in reversed(range(MAX_ROUNDS)):
            data = await self.request.complete()
            before, self.earlier_text = self.earlier_text, self.earlier_text + "".join(self.request.answer.text)
            if not self.request.must_continue:
                await self.run_service_tools()
                break
            await self.prepare_next(is_last=rounds_left <= 1)
        data = self.with_usage(without_service_calls(data, self.request, complete=True) or data)
        if before:  # the text of the requests before
            payload: Any = msgspec.json.decode(data)
            for choice in payload["choices"]:
                message = choice.get("message") or {}
                message["content"] = before + content_text(message.get("content"))
            data = msgspec.json.encode(payload)
        return data

    def with_usage(self, data: bytes) -> bytes:
        """Return a chunk or completion with the usage of all requests for the answer."""
        if not self.earlier_usage or b'"usage"' not in data:
            return data
        payload: Any = json.loads(data)
        if isinstance(payload.get("usage"), dict):
            payload["usage"] = add_usage(self.earlier_usage, payload["usage"])
        return json.dumps(payload).encode()

    async def prepare_next(self, is_last: bool) -> None:
        """Run the tools that the LLM called, and prepare the next request; the last one offers none of these tools."""
        request, ready = self.request, False
        self.earlier_usage = add_usage(self.earlier_usage, request.answer.usage)
        try:
            await self.run_service_tools()
            self.request = await self.make_request(request.item, is_last, self.earlier_text)
            ready = True
        finally:
            # The reply was left open for the next request (`must_continue`). If that cannot be made, the reply ends
            # here, or it would stay open until the session's next request (`ends_of_unfinished`).
            if not ready:
                end = request.end_event()
                await request.release()
                await record(request.deps.recorder, request.turn.lease, [end])

    async def run_service_tools(self) -> None:
        """Run the calls to the service's tools, and journal their results."""
        request, results = self.request, list[ProducedEvent]()
        for tool_call in service_tool_calls(request) if request.result == "answered" else ():
            function = ChatFunction(tool_call.name, tool_call.arguments)
            message = await self.execute(ChatToolCall(tool_call.id, function))
            results.append(
                ToolResult(turn_id=request.turn_id, call_id=tool_call.id, result=message["content"], ts=request.now())
            )
        if results:
            await record(request.deps.recorder, request.turn.lease, results)


def add_usage(one: Any, other: Any) -> Any:
    """Return the sum of two counts of tokens, name by name; of values that are no numbers, the later one."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one | {name: add_usage(one[name], value) if name in one else value for name, value in other.items()}
    are_numbers = all(isinstance(value, int | float) for value in (one, other))
    return one + other if are_numbers else one if other is None else other


def service_tool_calls(request: LlmRequest) -> list[PartialToolCall]:
    """Return the calls to tools that the service runs; a call without an id cannot be answered."""
    names = request.service_tool_names
    return [call for call in request.answer.tool_calls if call.name in names and call.id]


def without_service_calls(data: bytes, request: LlmRequest, complete: bool = False) -> bytes | None:
    """Return a chunk or completion without calls to the service's tools; None for a chunk with nothing left."""
    tool_calls = request.answer.tool_calls
    withheld = [call for call in tool_calls if call.name in request.withheld_tool_names]
    removed = [*service_tool_calls(request), *withheld]
    if not removed:
        return data
    # If no call is left that the client could run, the finish reason "tool_calls" would make it wait for calls that
    # never come.
    continues = request.calls_only_ours
    stops = len(removed) == len(tool_calls) and not continues
    ids = {call.id for call in removed if call.id}
    places = {call.place for call in removed}
    payload: Any = msgspec.json.decode(data)
    empty = True
    for choice in payload.get("choices") or ():
        delta = choice.get("delta") or choice.get("message") or {}
        # Calls are matched by index or by id: only the first fragment has the id, and some servers send no index.
        if fragments := delta.get("tool_calls"):
            left = [one for one in fragments if one.get("index") not in places and one.get("id") not in ids]
            delta["tool_calls"] = left
            if not left:
                del delta["tool_calls"]
        if stops and choice.get("finish_reason") == "tool_calls":
            choice["finish_reason"] = "stop"
        over = choice.get("finish_reason") is not None and not continues
        empty = empty and not (over or any(value for name, value in delta.items() if name != "role"))
    # Of several requests for one answer, only the last one gives the finish reason and the usage.
    dropped = empty and not complete and (continues or payload.get("choices"))
    return None if dropped else msgspec.json.encode(payload)
