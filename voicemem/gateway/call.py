"""One call of an LLM for the gateway: its answer is handed on as it comes, and written into the journal beside that."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Container
from contextlib import AbstractContextManager, aclosing
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from voicemem.errors import LlmFailed
from voicemem.gateway.reply_writer import Writer
from voicemem.llm.completions import Answer, spoken_chunks, spoken_completion
from voicemem.llm.targets import Target
from voicemem.protocol.events import LlmDelta, LlmDone, LlmError, ProducedEvent, ToolCall
from voicemem.protocol.types import JsonObject
from voicemem.sessions.batches import Line
from voicemem.sessions.read_model import Memory
from voicemem.sessions.recorder import Recorder
from voicemem.telemetry import Telemetry
from voicemem.telemetry.tracing import Span

LOG = logging.getLogger("voicemem.llm")
DONE = b"[DONE]"
MOST_ID = 128
"""Characters in a name or id of an event."""
USE = "gateway"


class Models(Protocol):
    """Calls LLMs; both methods raise `LlmFailed`."""

    async def complete(self, target: Target, body: JsonObject) -> bytes:
        """The whole answer to a body that asks for no stream."""

    def stream(self, target: Target, body: JsonObject) -> AsyncGenerator[bytes, None]:
        """The data of each server-sent event of the answer, the last `[DONE]` included."""


class Names:
    """Gives each reply of a session a name of its own. `clock` gives Unix ms, `new_id` a fresh random text."""

    def __init__(self, clock: Callable[[], int], new_id: Callable[[], str]) -> None:
        self.clock = clock
        self.new_id = new_id
        self.taken: set[tuple[int, str]] = set()
        """By key of the session: of replies under way, which may not be in the journal yet."""

    def take(self, key: int, known: Container[str], wanted: str | None) -> str:
        """The wanted name, when it can be one and is none yet."""
        if not wanted or len(wanted) > MOST_ID or wanted in known or (key, wanted) in self.taken:
            wanted = f"chatcmpl-{self.new_id()}"
        self.taken.add((key, wanted))
        return wanted

    def release(self, key: int, name: str | None) -> None:
        """The reply is over."""
        if name is not None:
            self.taken.discard((key, name))


class Tools(Struct, frozen=True):
    """What every call uses."""

    models: Models
    names: Names
    recorder: Recorder
    telemetry: Telemetry


class Plan(Struct, frozen=True):
    """What is to be called, and where the reply belongs."""

    line: Line
    memory: Memory
    turn_id: int
    target: Target
    body: JsonObject
    failure_message: str
    """What is said when the LLM fails; nothing when blank."""
    own: frozenset[str] = frozenset()
    """Names of the tools that are done here: the reply goes on after them."""
    withheld: frozenset[str] = frozenset()
    """Names of tools that neither the caller has nor is done here now: calls of them are nobody's."""
    item: str | None = None
    """The name of the reply that goes on."""
    said: str = ""
    """What it has said in the calls before."""


class Call:
    """A call of an LLM, which is made once: in `chunks` or in `whole`."""

    def __init__(self, tools: Tools, plan: Plan) -> None:
        self.tools = tools
        self.plan = plan
        self.turn_id = plan.turn_id
        self.item = plan.item
        """The name of the reply in the journal, once the LLM has begun to answer."""
        self.writer = Writer(tools.recorder, plan.line)
        self.answer = Answer()
        self.began = time.monotonic()
        self.result = "cancelled"
        self.heard = False
        self.over = False
        """Whether the journal has, or will have, the reply's end."""

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Each chunk of the answer as it came; at the end all of it is in the journal.

        Raises `LlmFailed` where there is no failure message, `Refused`, `StoreUnavailable`.
        """
        failed: LlmFailed | None = None
        try:
            with self.span() as span:
                try:
                    async with aclosing(self.received()) as received:
                        async for data in received:
                            yield data
                except LlmFailed as error:
                    failed = self.note(span, error)
            if failed is not None:
                await self.fail(failed)
                for chunk in spoken_chunks(*self.spoken()):
                    yield chunk
            else:
                await self.finish()
        finally:
            await self.close()

    async def received(self) -> AsyncGenerator[bytes, None]:
        """The chunks, each of them on its way into the journal. Raises `LlmFailed`, `Refused`."""
        done = False
        async with aclosing(self.tools.models.stream(self.plan.target, self.plan.body)) as events:
            async for data in events:
                if data == DONE:
                    done = True
                    continue
                text = self.answer.take(data)
                self.begin()
                if text:
                    self.writer.add(LlmDelta(text=text, turn_id=self.turn_id, item=self.item, ts=self.now()))
                if self.writer.refused is not None:
                    raise self.writer.refused
                yield data
        if not self.heard:
            raise LlmFailed("invalid_answer")
        if not (done or self.answer.finished):
            raise LlmFailed("dropped")
        self.check_said()

    async def whole(self) -> bytes:
        """The whole answer as it came, which then is in the journal. Raises as `chunks` does."""
        failed: LlmFailed | None = None
        try:
            with self.span() as span:
                try:
                    data = await self.tools.models.complete(self.plan.target, self.plan.body)
                    self.answer.take(data)
                    self.check_said()
                    self.begin()
                except LlmFailed as error:
                    failed = self.note(span, error)
            if failed is not None:
                await self.fail(failed)
                return spoken_completion(*self.spoken())
            await self.finish()
            return data
        finally:
            await self.close()

    def check_said(self) -> None:
        """An answer that says nothing is none: who is on the phone would hear nothing."""
        if not self.answer.begun or (self.answer.empty and not self.plan.said):
            raise LlmFailed("invalid_answer")

    def span(self) -> AbstractContextManager[Span]:
        host = urlsplit(self.plan.target.url).hostname or ""
        return self.tools.telemetry.tracer.span("llm", "client", {"voicemem.use": USE, "server.address": host})

    def note(self, span: Span, error: LlmFailed) -> LlmFailed:
        span.fail(str(error.why))
        self.result = "failed"
        host = urlsplit(self.plan.target.url).netloc.rpartition("@")[2]
        fields = {"session_id": self.plan.line.session_id, "host": host}
        LOG.warning("The LLM failed: %s", error.why, extra=fields)
        return error

    def begin(self) -> None:
        """Name the reply, at the first sign of it."""
        self.heard = True
        if self.item is None:
            self.item = self.name(self.answer.id)
        if self.began and (self.answer.size or self.answer.calls):
            self.tools.telemetry.metrics.llm_first_token_seconds.labels(USE).observe(time.monotonic() - self.began)
            self.began = 0.0

    async def finish(self) -> None:
        """Write the reply's end and its tool calls. Raises what kept them from being stored."""
        self.over, self.result = True, "answered"
        if not self.goes_on:
            self.writer.add(self.end())
        self.writer.add(*self.tool_calls())
        await self.settle()
        if self.writer.error is not None:
            raise self.writer.error

    @property
    def goes_on(self) -> bool:
        """Whether the LLM is to be called again: it has called tools, all of which are done here."""
        calls = self.answer.calls
        return self.result == "answered" and bool(calls) and all(one.name in self.plan.own and one.id for one in calls)

    async def settle(self) -> None:
        """Wait until all is written; when some of the text could not be, the end says it whole."""
        await self.writer.flush()
        if self.writer.lost and self.writer.refused is None and not self.goes_on:
            self.writer.add(self.end())
            await self.writer.flush()

    async def fail(self, error: LlmFailed) -> None:
        """Write that the LLM failed. Raises the same error when there is nothing to be said about it."""
        self.over = True
        text = self.plan.failure_message if self.plan.failure_message.strip() else None
        item = self.item or self.name(None)
        await self.writer.flush()
        if self.writer.lost:
            self.writer.add(self.end())
        self.writer.add(LlmError(turn_id=self.turn_id, item=item, text=text, code=error.why, ts=self.now()))
        await self.writer.flush()
        self.tools.names.release(self.plan.line.key, item)
        if text is None:
            raise error
        if self.writer.error is not None:
            raise self.writer.error

    async def close(self) -> None:
        """Count the call, and when nobody wants more of it, let what was generated be the reply."""
        self.tools.telemetry.metrics.llm_calls.labels(USE, self.result).inc()
        if not self.over and self.answer.size:
            self.over = True
            self.writer.add(self.end())
            await self.settle()
        if not self.goes_on:
            self.release()

    def release(self) -> None:
        """The reply is over, and its name stands in the journal."""
        self.tools.names.release(self.plan.line.key, self.item)

    def end(self) -> LlmDone:
        """With its text where that stands nowhere else in the journal."""
        written = bool(self.plan.body["stream"]) and not self.writer.lost
        text = None if written else self.plan.said + "".join(self.answer.text) or None
        return LlmDone(turn_id=self.turn_id, item=self.item, text=text, ts=self.now())

    def tool_calls(self) -> list[ProducedEvent]:
        """Calls without a name cannot be answered, nor stored."""
        now = self.now()
        return [
            ToolCall(turn_id=self.turn_id, call_id=call.id, name=call.name, arguments=call.arguments, ts=now)
            for call in self.answer.calls
            if call.name not in self.plan.withheld and 0 < len(call.id) <= MOST_ID and 0 < len(call.name) <= MOST_ID
        ]

    def spoken(self) -> tuple[str, int, str, str]:
        """Of the failure message: id, Unix seconds, model, text."""
        model, item = self.plan.body.get("model"), self.item or f"chatcmpl-{self.turn_id}"
        return item, self.now() // 1000, model if isinstance(model, str) else "", self.plan.failure_message

    def name(self, wanted: str | None) -> str:
        return self.tools.names.take(self.plan.line.key, self.plan.memory.state.items, wanted)

    def now(self) -> int:
        """Unix ms."""
        return self.tools.names.clock()
