"""Calls of an LLM one after the other, while it uses tools that the service has itself: its working memory's.

The caller sees one answer. Tool calls of the service's own are taken out of it, done, journaled with their results, and
the LLM is called again with them in its context. Where it calls the caller's tools too, the caller goes on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing
from typing import Any

import msgspec

from voicemem.documents.tools import ChatFunction, ChatToolCall
from voicemem.gateway.call import LlmCall
from voicemem.gateway.reply_writer import record
from voicemem.llm.completions import PartialToolCall, content_text
from voicemem.protocol.events import ProducedEvent, ToolResult
from voicemem.protocol.types import JsonObject

MAX_ROUNDS = 8
"""Calls of the LLM for one answer; then it is as it is."""
Execute = Callable[[ChatToolCall], Awaitable[JsonObject]]
"""Does a tool call; the tool message. Raises `Refused`, `StoreUnavailable`."""


class ToolLoop:
    """As `Call`, for an LLM with tools of the service's own. `again` makes ready the next call of the same answer."""

    def __init__(
        self, first: LlmCall, make_call: Callable[[str | None, bool, str], Awaitable[LlmCall]], execute: Execute
    ) -> None:
        self.call = first
        self.make_call = make_call
        self.execute = execute
        self.turn_id = first.turn_id
        self.earlier_text = ""
        """The text of the calls that are over."""

    @property
    def item(self) -> str | None:
        return self.call.item

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """As `Call.chunks`."""
        for left in reversed(range(MAX_ROUNDS)):
            async with aclosing(self.call.chunks()) as chunks:
                async for data in chunks:
                    kept = without_service_calls(data, self.call)
                    if kept is not None:
                        yield kept
            self.earlier_text += "".join(self.call.answer.text)
            if not self.call.must_continue:
                await self.run_service_tools()
                return
            await self.prepare_next(is_last=left <= 1)

    async def complete(self) -> bytes:
        """As `Call.whole`."""
        data = b""
        for left in reversed(range(MAX_ROUNDS)):
            data = await self.call.complete()
            before, self.earlier_text = self.earlier_text, self.earlier_text + "".join(self.call.answer.text)
            if not self.call.must_continue:
                await self.run_service_tools()
                break
            await self.prepare_next(is_last=left <= 1)
        data = without_service_calls(data, self.call, complete=True) or data
        return prepend_text(data, before) if before else data

    async def prepare_next(self, is_last: bool) -> None:
        """Do what the LLM has called for, and make ready the next call; the last one gets no tools of ours."""
        call, ready = self.call, False
        try:
            await self.run_service_tools()
            self.call = await self.make_call(call.item, is_last, self.earlier_text)
            ready = True
        finally:
            if not ready:  # nobody goes on with the reply
                end = call.end_event()
                call.release()
                await record(call.deps.recorder, call.request.line, [end])

    async def run_service_tools(self) -> None:
        """Journal the result of each call of a tool of ours."""
        call, results = self.call, list[ProducedEvent]()
        for one in service_tool_calls(call) if call.result == "answered" else ():
            payload = await self.execute(ChatToolCall(one.id, ChatFunction(one.name, one.arguments)))
            results.append(ToolResult(turn_id=call.turn_id, call_id=one.id, result=payload["content"], ts=call.now()))
        if results:
            await record(call.deps.recorder, call.request.line, results)


def prepend_text(data: bytes, before: str) -> bytes:
    """A completion whose text begins with what was said in the calls before."""
    payload: Any = msgspec.json.decode(data)
    for choice in payload["choices"]:
        message = choice.get("message") or {}
        message["content"] = before + content_text(message.get("content"))
    return msgspec.json.encode(payload)


def service_tool_calls(call: LlmCall) -> Collection[PartialToolCall]:
    return [one for one in call.answer.tool_calls if one.name in call.request.service_tool_names and one.id]


def without_service_calls(data: bytes, call: LlmCall, complete: bool = False) -> bytes | None:
    """A chunk or completion as the caller gets it; None for a chunk in which nothing is left.

    Where the LLM has called nothing but what is withheld, its answer is over.
    """
    removed = [
        *service_tool_calls(call),
        *(one for one in call.answer.tool_calls if one.name in call.request.withheld_tool_names),
    ]
    if not removed:
        return data
    stops = len(removed) == len(call.answer.tool_calls) and not call.must_continue
    ids, indexes = {one.id for one in removed if one.id}, {one.index for one in removed if one.index is not None}
    payload: Any = msgspec.json.decode(data)
    empty = True
    for choice in payload.get("choices") or ():
        delta = choice.get("delta") or choice.get("message") or {}
        calls = delta.get("tool_calls")
        if calls:
            theirs = [one for one in calls if one.get("index") not in indexes and one.get("id") not in ids]
            delta["tool_calls"] = theirs
            if not theirs:
                del delta["tool_calls"]
        if stops and choice.get("finish_reason") == "tool_calls":
            choice["finish_reason"] = "stop"
        over = choice.get("finish_reason") is not None and not call.must_continue
        empty = empty and not (over or any(value for name, value in delta.items() if name != "role"))
    return None if empty and not complete and payload.get("choices") else msgspec.json.encode(payload)
