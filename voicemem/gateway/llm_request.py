"""One LLM request of the gateway: its answer goes to the caller as it comes, and into the journal at the same time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Iterable
from contextlib import AbstractContextManager, aclosing, suppress
from typing import Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from voicemem.errors import LlmFailed, Refused, StoreUnavailable, VoicememError
from voicemem.gateway.chat_request import text_chunks, text_completion
from voicemem.llm.completions import LlmAnswer
from voicemem.llm.endpoints import LlmEndpoint
from voicemem.protocol.codec import decode_event
from voicemem.protocol.events import LlmDelta, LlmDone, LlmError, ProducedEvent, ToolCall
from voicemem.protocol.sse import DONE
from voicemem.protocol.types import JsonObject
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.sessions.recording.recorder import Recorder
from voicemem.store.claims import Claims
from voicemem.store.streams import Stream
from voicemem.telemetry import Telemetry
from voicemem.telemetry.tracing import Span
from voicemem.transcript.state import Reply, State


class ReplyWriter:
    """Writes the events of a reply in order, in the background: the stream to the caller does not wait for the disk."""

    def __init__(
        self, recorder: Recorder, lease: ProducerLease, begin: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`begin` is awaited before the first event is written."""
        self.begin = begin
        self.recorder = recorder
        self.lease = lease
        self.pending: list[ProducedEvent] = []
        self.task: asyncio.Task[None] | None = None
        self.is_incomplete = False
        """Whether an event could not be stored; a later event may make up for it."""
        self.refused: Refused | None = None
        self.error: VoicememError | None = None
        """What kept the last events from being stored."""

    def add(self, *events: ProducedEvent) -> None:
        """Write events, together with all others that are waiting when the current commit is done."""
        self.pending += events
        if self.task is None:
            self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        try:
            while self.pending:
                events, self.pending = self.pending, []
                self.error = None
                try:
                    begin, self.begin = self.begin, None
                    if begin is not None:
                        await begin()
                    await record(self.recorder, self.lease, events)
                except VoicememError as error:
                    self.error, self.is_incomplete = error, True
                    if isinstance(error, Refused):
                        self.refused = error
        finally:
            self.task = None

    async def flush(self) -> None:
        """Wait until everything is written; that happens even if the caller is cancelled."""
        while self.task is not None:
            await asyncio.shield(self.task)


async def record(recorder: Recorder, lease: ProducerLease, events: Iterable[ProducedEvent]) -> Stream:
    """Journal events; the session's row after them. Raises `Refused` for the first refused one, `StoreUnavailable`."""
    recorded = await record_after(recorder, lease, events, None)
    assert recorded is not None
    return recorded


async def record_after(
    recorder: Recorder, lease: ProducerLease, events: Iterable[ProducedEvent], position: int | None
) -> Stream | None:
    """The same for events that may only stand right after a position; None when the journal does not end there."""
    arrivals = [decode_event(msgspec.json.encode(event)) for event in events]
    recorded = await recorder.record(lease, arrivals, expected_position=position)
    for problem in recorded.problems:
        raise Refused(problem.code, problem.detail)
    return None if recorded.position_taken else recorded.stream


LOOK_BACK = 256
"""How many of the newest open replies are looked at. The session's next request finds a reply that was left open, so
there cannot be many after it; the bound keeps the search cheap in a long session."""


def ends_of_unfinished(state: State, producer: str, running: Container[str]) -> list[LlmDone]:
    """An end for each open reply that this producer began, except those whose items are in `running`.

    The end has the time at which the reply last grew, so that a later interruption sees it as it was then.
    """
    ends = []
    for number, _, id in state.unfinished[-LOOK_BACK:]:
        reply = state.replies[id]
        if reply.item is not None and reply.producer == producer and reply.item not in running:
            ends.append(LlmDone(turn_id=number, item=reply.item, ts=last_ts(reply)))
    return ends


def last_ts(reply: Reply) -> int:
    times = reply.generation.deltas.times
    return times[-1] if times else reply.begin


LOG = logging.getLogger("voicemem.llm")
MAX_ID_CHARACTERS = 128
"""Of a name or an id in an event."""
METRIC_USE = "gateway"


class CompletionClient(Protocol):
    """Sends requests to LLMs; both methods raise `LlmFailed`."""

    async def complete(self, endpoint: LlmEndpoint, body: JsonObject) -> bytes:
        """The whole answer to a body that asks for no stream."""

    def stream(self, endpoint: LlmEndpoint, body: JsonObject) -> AsyncGenerator[bytes, None]:
        """The data of each server-sent event of the answer, the last `[DONE]` included."""


class ReplyIds:
    """Gives each reply of a session a unique `item`. `clock` gives Unix ms, `new_id` a fresh random text."""

    def __init__(self, clock: Callable[[], int], new_id: Callable[[], str]) -> None:
        self.clock = clock
        self.new_id = new_id
        self.reserved: set[tuple[int, str]] = set()
        """Session key and item of each reply in progress, which may not be in the journal yet."""

    def reserve(self, key: int, known: Container[str], item: str | None) -> str:
        """Reserve the given item if it is valid and free, else a new one."""
        if not item or len(item) > MAX_ID_CHARACTERS or item in known or (key, item) in self.reserved:
            item = f"chatcmpl-{self.new_id()}"
        self.reserved.add((key, item))
        return item

    def release(self, key: int, item: str | None) -> None:
        """Release the item of a reply that is over."""
        if item is not None:
            self.reserved.discard((key, item))

    def of_session(self, key: int) -> set[str]:
        """The items that are reserved in a session."""
        return {item for session, item in self.reserved if session == key}


class GatewayDeps(Struct, frozen=True):
    """What every LLM request uses."""

    llm_client: CompletionClient
    claims: Claims
    reply_ids: ReplyIds
    recorder: Recorder
    telemetry: Telemetry


class LlmRequestSpec(Struct, frozen=True, kw_only=True):
    """What to send to which LLM, and where the reply belongs."""

    lease: ProducerLease
    read_model: ReadModel
    turn_id: int
    endpoint: LlmEndpoint
    body: JsonObject
    failure_message: str
    """Spoken when the LLM fails; nothing is when it is blank."""
    service_tool_names: frozenset[str] = frozenset()
    """Tools that the service runs itself: the reply goes on after them."""
    withheld_tool_names: frozenset[str] = frozenset()
    """Tools that the caller does not have and the service does not run this time: calls of them are dropped."""
    item: str | None = None
    """The item of the reply that this request continues."""
    earlier_text: str = ""
    """The text that the reply got from earlier requests."""


class LlmRequest:
    """A request to an LLM, sent once: with `chunks` or with `complete`.

    The journal gets the end of the reply exactly once: from `finish`, from `fail`, or, when the caller hangs up, from
    `close`. Text that could not be journaled while it was streamed is repeated in full in that end.
    """

    def __init__(self, deps: GatewayDeps, spec: LlmRequestSpec) -> None:
        self.deps = deps
        self.spec = spec
        self.turn_id = spec.turn_id
        self.item = spec.item
        """The item of the reply, once the LLM has begun to answer."""
        self.writer = ReplyWriter(deps.recorder, spec.lease, self.begin_reply)
        self.answer = LlmAnswer()
        self.started_s = time.monotonic()
        self.result = "cancelled"
        """For the metrics; stays when neither `finish` nor a failure is reached: the caller has hung up."""
        self.has_started = False
        self.is_ended = False
        """Whether the end of the reply is in the journal, or about to be."""

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Each chunk of the answer as it came; after the last one, all of it is in the journal.

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
        """The chunks, each handed to the writer first. Raises `LlmFailed`, `Refused`."""
        done = False
        async with aclosing(self.deps.llm_client.stream(self.spec.endpoint, self.spec.body)) as events:
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
        """The whole answer as it came; it is in the journal by then. Raises what `chunks` does."""
        failed: LlmFailed | None = None
        try:
            with self.span() as span:
                try:
                    data = await self.deps.llm_client.complete(self.spec.endpoint, self.spec.body)
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
        """An empty answer is a failure: the person on the phone would hear nothing."""
        if not self.answer.has_choice or (self.answer.is_empty and not self.spec.earlier_text):
            raise LlmFailed("invalid_answer")

    def span(self) -> AbstractContextManager[Span]:
        host = urlsplit(self.spec.endpoint.url).hostname or ""
        return self.deps.telemetry.tracer.span("llm", "client", {"voicemem.use": METRIC_USE, "server.address": host})

    def log_failure(self, span: Span, error: LlmFailed) -> LlmFailed:
        span.fail(str(error.why))
        self.result = "failed"
        host = urlsplit(self.spec.endpoint.url).netloc.rpartition("@")[2]
        fields = {"session_id": self.spec.lease.session_id, "host": host}
        LOG.warning("The LLM failed: %s", error.why, extra=fields)
        return error

    def note_first_chunk(self) -> None:
        """Give the reply its item at the first chunk; measure the time to the first token."""
        self.has_started = True
        if self.item is None:
            self.item = self.reserve_item(self.answer.id)
        if self.started_s and (self.answer.size or self.answer.tool_calls):
            self.deps.telemetry.metrics.llm_first_token_seconds.labels(METRIC_USE).observe(
                time.monotonic() - self.started_s
            )
            self.started_s = 0.0

    async def finish(self) -> None:
        """Write the end of the reply and its tool calls. Raises what kept them from being stored."""
        self.is_ended, self.result = True, "answered"
        if not self.must_continue:
            self.writer.add(self.end_event())
        self.writer.add(*self.tool_call_events())
        await self.wait_until_written()
        if self.writer.error is not None:
            raise self.writer.error

    @property
    def must_continue(self) -> bool:
        """Whether another LLM request must follow: the LLM called tools, and the service runs all of them."""
        tool_calls = self.answer.tool_calls
        return (
            self.result == "answered"
            and bool(tool_calls)
            and all(tool_call.name in self.spec.service_tool_names and tool_call.id for tool_call in tool_calls)
        )

    async def wait_until_written(self) -> None:
        """Wait until everything is written; if some of the text was not, write another end with all of it."""
        await self.writer.flush()
        if self.writer.is_incomplete and self.writer.refused is None and not self.must_continue:
            self.writer.add(self.end_event())
            await self.writer.flush()

    async def fail(self, error: LlmFailed) -> None:
        """Write that the LLM failed. Raises the same error where there is no failure message."""
        self.is_ended = True
        text = self.spec.failure_message if self.spec.failure_message.strip() else None
        item = self.item or self.reserve_item(None)
        await self.writer.flush()
        if self.writer.is_incomplete:
            self.writer.add(self.end_event())
        self.writer.add(LlmError(turn_id=self.turn_id, item=item, text=text, code=error.why, ts=self.now()))
        await self.writer.flush()
        self.deps.reply_ids.release(self.spec.lease.key, item)
        if text is None:
            raise error
        if self.writer.error is not None:
            raise self.writer.error

    async def close(self) -> None:
        """Count the request; if the caller hung up in the middle, end the reply with what was generated."""
        self.deps.telemetry.metrics.llm_calls.labels(METRIC_USE, self.result).inc()
        if not self.is_ended and self.answer.size:
            self.is_ended = True
            self.writer.add(self.end_event())
            await self.wait_until_written()
        # A reply that goes on keeps its item reserved, or a request that comes in between would end it as unfinished.
        if not self.must_continue:
            await self.release()

    async def begin_reply(self) -> None:
        """Tell the other nodes, before the journal shows it, that the reply is under way."""
        if self.item is not None and self.spec.item is None:
            await self.deps.claims.begin_reply(self.spec.lease.key, self.item, self.deps.recorder.node_token())

    async def release(self) -> None:
        """Release the item: the reply is over, and the journal has it."""
        self.deps.reply_ids.release(self.spec.lease.key, self.item)
        if self.item is not None:
            with suppress(StoreUnavailable):  # it is gone with this node, and the journal has the end of the reply
                await self.deps.claims.end_reply(self.spec.lease.key, self.item)

    def end_event(self) -> LlmDone:
        """The end of the reply; with its text if the journal does not have all of it."""
        written = bool(self.spec.body["stream"]) and not self.writer.is_incomplete
        text = None if written else self.spec.earlier_text + "".join(self.answer.text) or None
        return LlmDone(turn_id=self.turn_id, item=self.item, text=text, ts=self.now())

    def tool_call_events(self) -> list[ProducedEvent]:
        """The tool calls that can be stored and answered: those with a name and an id that events can hold."""
        now = self.now()
        return [
            ToolCall(
                turn_id=self.turn_id,
                call_id=tool_call.id,
                name=tool_call.name,
                arguments=tool_call.arguments,
                ts=now,
            )
            for tool_call in self.answer.tool_calls
            if tool_call.name not in self.spec.withheld_tool_names
            and 0 < len(tool_call.id) <= MAX_ID_CHARACTERS
            and 0 < len(tool_call.name) <= MAX_ID_CHARACTERS
        ]

    def failure_reply(self) -> tuple[str, int, str, str]:
        """The failure message as a completion: id, Unix seconds, model, text."""
        model, item = self.spec.body.get("model"), self.item or f"chatcmpl-{self.turn_id}"
        return item, self.now() // 1000, model if isinstance(model, str) else "", self.spec.failure_message

    def reserve_item(self, item: str | None) -> str:
        return self.deps.reply_ids.reserve(self.spec.lease.key, self.spec.read_model.state.items, item)

    def now(self) -> int:
        """Unix ms."""
        return self.deps.reply_ids.clock()
