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
from voicemem.gateway.reply_writer import ReplyWriter
from voicemem.llm.completions import LlmAnswer, text_chunks, text_completion
from voicemem.llm.targets import LlmEndpoint
from voicemem.protocol.events import LlmDelta, LlmDone, LlmError, ProducedEvent, ToolCall
from voicemem.protocol.sse import DONE
from voicemem.protocol.types import JsonObject
from voicemem.sessions.batches import ProducerLease
from voicemem.sessions.read_model import Memory
from voicemem.sessions.recorder import Recorder
from voicemem.telemetry import Telemetry
from voicemem.telemetry.tracing import Span

LOG = logging.getLogger("voicemem.llm")
MAX_ID_CHARACTERS = 128
"""Characters in a name or id of an event."""
METRIC_USE = "gateway"


class CompletionClient(Protocol):
    """Calls LLMs; both methods raise `LlmFailed`."""

    async def complete(self, endpoint: LlmEndpoint, body: JsonObject) -> bytes:
        """The whole answer to a body that asks for no stream."""

    def stream(self, endpoint: LlmEndpoint, body: JsonObject) -> AsyncGenerator[bytes, None]:
        """The data of each server-sent event of the answer, the last `[DONE]` included."""


class ReplyIds:
    """Gives each reply of a session a name of its own. `clock` gives Unix ms, `new_id` a fresh random text."""

    def __init__(self, clock: Callable[[], int], new_id: Callable[[], str]) -> None:
        self.clock = clock
        self.new_id = new_id
        self.reserved: set[tuple[int, str]] = set()
        """By key of the session: of replies under way, which may not be in the journal yet."""

    def reserve(self, key: int, known: Container[str], wanted: str | None) -> str:
        """The wanted name, when it can be one and is none yet."""
        if not wanted or len(wanted) > MAX_ID_CHARACTERS or wanted in known or (key, wanted) in self.reserved:
            wanted = f"chatcmpl-{self.new_id()}"
        self.reserved.add((key, wanted))
        return wanted

    def release(self, key: int, name: str | None) -> None:
        """The reply is over."""
        if name is not None:
            self.reserved.discard((key, name))


class CallDeps(Struct, frozen=True):
    """What every call uses."""

    llm_client: CompletionClient
    reply_ids: ReplyIds
    recorder: Recorder
    telemetry: Telemetry


class CallRequest(Struct, frozen=True):
    """What is to be called, and where the reply belongs."""

    line: ProducerLease
    memory: Memory
    turn_id: int
    endpoint: LlmEndpoint
    body: JsonObject
    failure_message: str
    """What is said when the LLM fails; nothing when blank."""
    service_tool_names: frozenset[str] = frozenset()
    """Names of the tools that are done here: the reply goes on after them."""
    withheld_tool_names: frozenset[str] = frozenset()
    """Names of tools that neither the caller has nor is done here now: calls of them are nobody's."""
    item: str | None = None
    """The name of the reply that goes on."""
    earlier_text: str = ""
    """What it has said in the calls before."""


class LlmCall:
    """A call of an LLM, which is made once: in `chunks` or in `whole`."""

    def __init__(self, deps: CallDeps, request: CallRequest) -> None:
        self.deps = deps
        self.request = request
        self.turn_id = request.turn_id
        self.item = request.item
        """The name of the reply in the journal, once the LLM has begun to answer."""
        self.writer = ReplyWriter(deps.recorder, request.line)
        self.answer = LlmAnswer()
        self.started_s = time.monotonic()
        self.result = "cancelled"
        self.has_started = False
        self.is_ended = False
        """Whether the journal has, or will have, the reply's end."""

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Each chunk of the answer as it came; at the end all of it is in the journal.

        Raises `LlmFailed` where there is no failure message, `Refused`, `StoreUnavailable`.
        """
        failed: LlmFailed | None = None
        try:
            with self.span() as span:
                try:
                    async with aclosing(self.receive_chunks()) as received:
                        async for data in received:
                            yield data
                except LlmFailed as error:
                    failed = self.log_failure(span, error)
            if failed is not None:
                await self.fail(failed)
                for chunk in text_chunks(*self.failure_reply()):
                    yield chunk
            else:
                await self.finish()
        finally:
            await self.close()

    async def receive_chunks(self) -> AsyncGenerator[bytes, None]:
        """The chunks, each of them on its way into the journal. Raises `LlmFailed`, `Refused`."""
        done = False
        async with aclosing(self.deps.llm_client.stream(self.request.endpoint, self.request.body)) as events:
            async for data in events:
                if data == DONE:
                    done = True
                    continue
                text = self.answer.add_chunk(data)
                self.note_first_chunk()
                if text:
                    self.writer.add(LlmDelta(text=text, turn_id=self.turn_id, item=self.item, ts=self.now()))
                if self.writer.refused is not None:
                    raise self.writer.refused
                yield data
        if not self.has_started:
            raise LlmFailed("invalid_answer")
        if not (done or self.answer.has_finish_reason):
            raise LlmFailed("dropped")
        self.check_not_empty()

    async def complete(self) -> bytes:
        """The whole answer as it came, which then is in the journal. Raises as `chunks` does."""
        failed: LlmFailed | None = None
        try:
            with self.span() as span:
                try:
                    data = await self.deps.llm_client.complete(self.request.endpoint, self.request.body)
                    self.answer.add_chunk(data)
                    self.check_not_empty()
                    self.note_first_chunk()
                except LlmFailed as error:
                    failed = self.log_failure(span, error)
            if failed is not None:
                await self.fail(failed)
                return text_completion(*self.failure_reply())
            await self.finish()
            return data
        finally:
            await self.close()

    def check_not_empty(self) -> None:
        """An answer that says nothing is none: who is on the phone would hear nothing."""
        if not self.answer.has_choice or (self.answer.is_empty and not self.request.earlier_text):
            raise LlmFailed("invalid_answer")

    def span(self) -> AbstractContextManager[Span]:
        host = urlsplit(self.request.endpoint.url).hostname or ""
        return self.deps.telemetry.tracer.span("llm", "client", {"voicemem.use": METRIC_USE, "server.address": host})

    def log_failure(self, span: Span, error: LlmFailed) -> LlmFailed:
        span.fail(str(error.why))
        self.result = "failed"
        host = urlsplit(self.request.endpoint.url).netloc.rpartition("@")[2]
        fields = {"session_id": self.request.line.session_id, "host": host}
        LOG.warning("The LLM failed: %s", error.why, extra=fields)
        return error

    def note_first_chunk(self) -> None:
        """Name the reply, at the first sign of it."""
        self.has_started = True
        if self.item is None:
            self.item = self.reserve_item(self.answer.id)
        if self.started_s and (self.answer.size or self.answer.tool_calls):
            self.deps.telemetry.metrics.llm_first_token_seconds.labels(METRIC_USE).observe(
                time.monotonic() - self.started_s
            )
            self.started_s = 0.0

    async def finish(self) -> None:
        """Write the reply's end and its tool calls. Raises what kept them from being stored."""
        self.is_ended, self.result = True, "answered"
        if not self.must_continue:
            self.writer.add(self.end_event())
        self.writer.add(*self.tool_call_events())
        await self.wait_until_written()
        if self.writer.error is not None:
            raise self.writer.error

    @property
    def must_continue(self) -> bool:
        """Whether the LLM is to be called again: it has called tools, all of which are done here."""
        calls = self.answer.tool_calls
        return (
            self.result == "answered"
            and bool(calls)
            and all(one.name in self.request.service_tool_names and one.id for one in calls)
        )

    async def wait_until_written(self) -> None:
        """Wait until all is written; when some of the text could not be, the end says it whole."""
        await self.writer.flush()
        if self.writer.is_incomplete and self.writer.refused is None and not self.must_continue:
            self.writer.add(self.end_event())
            await self.writer.flush()

    async def fail(self, error: LlmFailed) -> None:
        """Write that the LLM failed. Raises the same error when there is nothing to be said about it."""
        self.is_ended = True
        text = self.request.failure_message if self.request.failure_message.strip() else None
        item = self.item or self.reserve_item(None)
        await self.writer.flush()
        if self.writer.is_incomplete:
            self.writer.add(self.end_event())
        self.writer.add(LlmError(turn_id=self.turn_id, item=item, text=text, code=error.why, ts=self.now()))
        await self.writer.flush()
        self.deps.reply_ids.release(self.request.line.key, item)
        if text is None:
            raise error
        if self.writer.error is not None:
            raise self.writer.error

    async def close(self) -> None:
        """Count the call, and when nobody wants more of it, let what was generated be the reply."""
        self.deps.telemetry.metrics.llm_calls.labels(METRIC_USE, self.result).inc()
        if not self.is_ended and self.answer.size:
            self.is_ended = True
            self.writer.add(self.end_event())
            await self.wait_until_written()
        if not self.must_continue:
            self.release()

    def release(self) -> None:
        """The reply is over, and its name stands in the journal."""
        self.deps.reply_ids.release(self.request.line.key, self.item)

    def end_event(self) -> LlmDone:
        """With its text where that stands nowhere else in the journal."""
        written = bool(self.request.body["stream"]) and not self.writer.is_incomplete
        text = None if written else self.request.earlier_text + "".join(self.answer.text) or None
        return LlmDone(turn_id=self.turn_id, item=self.item, text=text, ts=self.now())

    def tool_call_events(self) -> list[ProducedEvent]:
        """Calls without a name cannot be answered, nor stored."""
        now = self.now()
        return [
            ToolCall(turn_id=self.turn_id, call_id=call.id, name=call.name, arguments=call.arguments, ts=now)
            for call in self.answer.tool_calls
            if call.name not in self.request.withheld_tool_names
            and 0 < len(call.id) <= MAX_ID_CHARACTERS
            and 0 < len(call.name) <= MAX_ID_CHARACTERS
        ]

    def failure_reply(self) -> tuple[str, int, str, str]:
        """Of the failure message: id, Unix seconds, model, text."""
        model, item = self.request.body.get("model"), self.item or f"chatcmpl-{self.turn_id}"
        return item, self.now() // 1000, model if isinstance(model, str) else "", self.request.failure_message

    def reserve_item(self, wanted: str | None) -> str:
        return self.deps.reply_ids.reserve(self.request.line.key, self.request.memory.state.items, wanted)

    def now(self) -> int:
        """Unix ms."""
        return self.deps.reply_ids.clock()
