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
from voicemem.gateway.call import Call
from voicemem.gateway.reply_writer import record
from voicemem.llm.completions import FoundCall, text_of
from voicemem.protocol.events import ProducedEvent, ToolResult
from voicemem.protocol.types import JsonObject

MOST_ROUNDS = 8
"""Calls of the LLM for one answer; then it is as it is."""
Execute = Callable[[ChatToolCall], Awaitable[JsonObject]]
"""Does a tool call; the tool message. Raises `Refused`, `StoreUnavailable`."""


class Rounds:
    """As `Call`, for an LLM with tools of the service's own. `again` makes ready the next call of the same answer."""

    def __init__(
        self, first: Call, again: Callable[[str | None, bool, str], Awaitable[Call]], execute: Execute
    ) -> None:
        self.call = first
        self.again = again
        self.execute = execute
        self.turn_id = first.turn_id
        self.said = ""
        """The text of the calls that are over."""

    @property
    def item(self) -> str | None:
        return self.call.item

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """As `Call.chunks`."""
        for left in reversed(range(MOST_ROUNDS)):
            async with aclosing(self.call.chunks()) as chunks:
                async for data in chunks:
                    kept = without_own(data, self.call)
                    if kept is not None:
                        yield kept
            self.said += "".join(self.call.answer.text)
            if not self.call.goes_on:
                await self.answer_own()
                return
            await self.next(last=left <= 1)

    async def whole(self) -> bytes:
        """As `Call.whole`."""
        data = b""
        for left in reversed(range(MOST_ROUNDS)):
            data = await self.call.whole()
            before, self.said = self.said, self.said + "".join(self.call.answer.text)
            if not self.call.goes_on:
                await self.answer_own()
                break
            await self.next(last=left <= 1)
        data = without_own(data, self.call, whole=True) or data
        return with_words(data, before) if before else data

    async def next(self, last: bool) -> None:
        """Do what the LLM has called for, and make ready the next call; the last one gets no tools of ours."""
        call, ready = self.call, False
        try:
            await self.answer_own()
            self.call = await self.again(call.item, last, self.said)
            ready = True
        finally:
            if not ready:  # nobody goes on with the reply
                end = call.end()
                call.release()
                await record(call.tools.recorder, call.plan.line, [end])

    async def answer_own(self) -> None:
        """Journal the result of each call of a tool of ours."""
        call, results = self.call, list[ProducedEvent]()
        for one in own_calls(call) if call.result == "answered" else ():
            told = await self.execute(ChatToolCall(one.id, ChatFunction(one.name, one.arguments)))
            results.append(ToolResult(turn_id=call.turn_id, call_id=one.id, result=told["content"], ts=call.now()))
        if results:
            await record(call.tools.recorder, call.plan.line, results)


def with_words(data: bytes, before: str) -> bytes:
    """A completion whose text begins with what was said in the calls before."""
    told: Any = msgspec.json.decode(data)
    for choice in told["choices"]:
        message = choice.get("message") or {}
        message["content"] = before + text_of(message.get("content"))
    return msgspec.json.encode(told)


def own_calls(call: Call) -> Collection[FoundCall]:
    return [one for one in call.answer.calls if one.name in call.plan.own and one.id]


def without_own(data: bytes, call: Call, whole: bool = False) -> bytes | None:
    """A chunk or completion as the caller gets it; None for a chunk in which nothing is left.

    Where the LLM has called nothing but what is withheld, its answer is over.
    """
    own = [*own_calls(call), *(one for one in call.answer.calls if one.name in call.plan.withheld)]
    if not own:
        return data
    stops = len(own) == len(call.answer.calls) and not call.goes_on
    ids, indexes = {one.id for one in own if one.id}, {one.index for one in own if one.index is not None}
    told: Any = msgspec.json.decode(data)
    empty = True
    for choice in told.get("choices") or ():
        said = choice.get("delta") or choice.get("message") or {}
        calls = said.get("tool_calls")
        if calls:
            theirs = [one for one in calls if one.get("index") not in indexes and one.get("id") not in ids]
            said["tool_calls"] = theirs
            if not theirs:
                del said["tool_calls"]
        if stops and choice.get("finish_reason") == "tool_calls":
            choice["finish_reason"] = "stop"
        over = choice.get("finish_reason") is not None and not call.goes_on
        empty = empty and not (over or any(value for name, value in said.items() if name != "role"))
    return None if empty and not whole and told.get("choices") else msgspec.json.encode(told)
