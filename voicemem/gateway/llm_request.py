"""One LLM request of the gateway: its answer is streamed to the client, and journaled at the same time."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field, structs

from voicemem.config.session import parse_config
from voicemem.errors import LlmFailed, Refused, StoreUnavailable, VoicememError
from voicemem.gateway.chat_request import ChatTurn, has_other_parts, text_chunks, text_completion
from voicemem.gateway.request_events import disconnect_id, shared_id
from voicemem.llm.client import LlmClient
from voicemem.llm.completions import CHUNK, MAX_ID_CHARACTERS, WHOLE, LlmAnswer
from voicemem.llm.endpoints import LlmEndpoint
from voicemem.protocol.codec import decode_event
from voicemem.protocol.events import LlmCancel, LlmDelta, LlmDone, LlmError, ProducedEvent, ToolCall
from voicemem.protocol.sse import DONE
from voicemem.protocol.types import JsonObject
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.sessions.recording.phone_numbers import hide_in_event
from voicemem.sessions.recording.recorder import Recorder
from voicemem.store.nodes import Claims
from voicemem.store.streams import Stream
from voicemem.telemetry.metrics import Span
from voicemem.transcript.messages import WANTED_BACK
from voicemem.transcript.state import State

GATHER_S = 0.05
"""How long the events of a reply gather between two commits: a commit costs as much as all other work on a token."""


class ReplyWriter:
    """Writes the events of a reply in order, in the background: the stream to the client does not wait for the disk."""

    def __init__(
        self, recorder: Recorder, lease: ProducerLease, begin: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`begin` is awaited before the first event is written."""
        self.begin = begin
        self.recorder = recorder
        self.lease = lease
        self.pending: list[ProducedEvent] = []
        self.task: asyncio.Task[None] | None = None
        self.awaited = asyncio.Event()
        """Set while someone waits until everything is written."""
        self.is_incomplete = False
        """True if an event could not be stored; the end of the reply may make up for it."""
        self.refused: Refused | None = None
        self.error: VoicememError | None = None
        """The error that kept the last events from being stored."""

    def add(self, *events: ProducedEvent) -> None:
        """Write events, together with all others since the last commit."""
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
                if not self.awaited.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(GATHER_S):
                            await self.awaited.wait()
        finally:
            self.task = None

    async def flush(self) -> None:
        """Wait until everything is written, which happens even if the waiting task is cancelled."""
        self.awaited.set()
        while self.task is not None:
            await asyncio.shield(self.task)
        self.awaited.clear()


async def record(
    recorder: Recorder, lease: ProducerLease, events: Iterable[ProducedEvent], position: int | None = None
) -> Stream | None:
    """Journal events, and return the session's row after them; None if the journal does not end at `position`.

    Raises `Refused` for the first refused event, `StoreUnavailable`.
    """
    if lease.sender.caller is not None and lease.sender.caller.numbers:
        events = [hide_in_event(event, lease.sender.caller.numbers) for event in events]
    arrivals = [decode_event(msgspec.json.encode(event)) for event in events]
    recorded = await recorder.record(lease, arrivals, expected_position=position)
    for problem in recorded.problems:
        raise Refused(problem.code, problem.detail)
    return None if recorded.position_taken else recorded.stream


LOOK_BACK = 256
"""How many of the newest open replies are searched. The session's next request finds a reply that was left open, so
few can follow it, and the search stays cheap in a long session."""


def ends_of_unfinished(state: State, producer: str, running: Container[str]) -> list[LlmDone]:
    """Return an end for each open reply that this producer began, except those whose items are in `running`.

    It has the time of the reply's last text, so that a later interruption applies to the reply as it was then.
    """
    ends = []
    for number, _, id in state.unfinished[-LOOK_BACK:]:
        reply = state.replies[id]
        if reply.item is not None and reply.producer == producer and reply.item not in running:
            deltas = reply.generation.deltas
            ends.append(LlmDone(turn_id=number, item=reply.item, ts=deltas.ts(-1) if deltas.marks else reply.begin))
    return ends


LOG = logging.getLogger("voicemem.llm")
VALID_ITEM = re.compile(rf"[!-~]{{1,{MAX_ID_CHARACTERS - len(disconnect_id(''))}}}")
"""An id of an answer that may become the item of the reply, which is sent in a header."""
METRIC_USE = "gateway"
REFUSED_STATUSES = (400, 415, 422)
"""Statuses of an LLM that rejects the form of the messages."""
MAX_ALTERNATING = 1_000
NO_IMAGES = "The LLM does not take this message, which has more than text"


class GatewayDeps(Struct, frozen=True):
    """Dependencies of every LLM request."""

    llm_client: LlmClient
    claims: Claims
    recorder: Recorder
    alternating: dict[tuple[str, Any], None] = field(default_factory=dict)
    """URLs and models of LLMs that refused messages whose roles do not alternate, the newest last."""
    reserved: set[tuple[int, str]] = field(default_factory=set)
    """The session key and item of each reply in progress, which may not be in the journal yet."""


class PreparedTurn(Struct, frozen=True, kw_only=True):
    """The data that all LLM requests for one answer share."""

    stream: Stream
    read_model: ReadModel
    lease: ProducerLease
    chat_turn: ChatTurn
    endpoint: LlmEndpoint
    turn_id: int
    pending_text: str | None
    ignored: tuple[int, ...]
    """Indexes of the request's messages that were not taken."""
    tools: list[JsonObject]
    """Definitions of the tools that the service runs itself."""
    reserved_tool_names: frozenset[str]
    """Names of the service's tools, also in a request that does not offer them."""


class LlmRequest:
    """A request to an LLM, sent once, with `chunks` or with `complete`.

    `alternated` makes its body with alternating roles, for an LLM that may refuse others. `item` is the reply that it
    continues, `earlier_text` the text of that reply so far. The journal gets the end of the reply exactly once: from
    `finish`, from `fail`, or, when the client disconnects, from `close`. If text could not be journaled while it was
    streamed, the end has the whole text.
    """

    def __init__(
        self,
        deps: GatewayDeps,
        turn: PreparedTurn,
        body: JsonObject,
        tools: Sequence[JsonObject],
        item: str | None,
        earlier_text: str,
        alternated: Callable[[], JsonObject] | None = None,
    ) -> None:
        self.deps = deps
        self.turn = turn
        self.body = body
        self.alternated, self.is_alternated = alternated, False
        self.service_tool_names = frozenset(tool["function"]["name"] for tool in tools)
        """Tools that the service runs itself: the reply continues after them."""
        self.withheld_tool_names = frozenset() if tools else turn.reserved_tool_names
        """Tools that the client does not have and the service does not run this time: calls to them are dropped."""
        self.failure_message = parse_config(turn.stream.config).llm.failure_message or ""
        """Spoken when the LLM fails, unless it is blank."""
        self.earlier_text = earlier_text
        self.turn_id, self.ignored = turn.turn_id, turn.ignored
        self.continues = item is not None
        self.item = item
        """The item of the reply, once the LLM has begun to answer."""
        self.writer = ReplyWriter(deps.recorder, turn.lease, self.begin_reply)
        self.answer = LlmAnswer(
            lambda: f"call_{deps.recorder.runtime.new_id()}",
            turn.read_model.state.tool_calls,
            is_stream=bool(body["stream"]),
            has_role=bool(body["stream"] and earlier_text),
        )
        self.created_s, self.started_s = self.now() // 1000, time.monotonic()
        self.result = "cancelled"
        """For the metrics; it stays so if the client disconnects before `finish` or a failure."""
        self.has_started = False
        self.is_sent = False
        """True if the client got any of the answer's text."""
        self.is_ended = False
        """True if the end of the reply is in the journal, or about to be."""

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of the answer as they come, or the whole answer. At the end it is journaled.

        Raises `LlmFailed` if there is no failure message, `Refused`, `StoreUnavailable`.
        """
        failed: LlmFailed | None = None
        is_stream = bool(self.body["stream"])
        try:
            with self.span() as span:
                try:
                    async with aclosing(self.receive_chunks() if is_stream else self.receive_whole()) as received:
                        async for data in received:
                            yield data
                except LlmFailed as error:
                    failed = self.log_failure(span, error)
            if failed is not None:
                await self.fail(failed)
                head, text = self.head(), self.failure_message
                for chunk in text_chunks(head, text) if is_stream else (text_completion(head, text),):
                    yield chunk
            else:
                await self.finish()
        finally:
            await self.close()

    async def receive_chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the chunks, each after its text went to the writer. Raises `LlmFailed`, `Refused`."""
        done, finish = False, list[bytes]()  # a finish reason is held back, since text may still follow it
        async with aclosing(self.events()) as events:
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
                shown = self.answer.well_formed(data, self.head)
                if self.answer.only_finishes:
                    finish = [shown]
                    continue
                if not self.answer.has_newest_choice:
                    for kept in finish:
                        yield kept
                    finish = []
                yield shown
                self.is_sent = self.is_sent or bool(text)
        if done and not finish and self.answer.has_choice and self.answer.finish_reason is None:
            choice = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if self.answer.tool_calls else "stop"}
            finish = [msgspec.json.encode(self.head() | {"choices": [choice]})]
        for kept in finish:
            yield kept
        if not self.has_started:
            raise LlmFailed("invalid_answer")
        if not (done or self.answer.finish_reason is not None):
            raise LlmFailed("dropped")
        self.check_not_empty()

    async def receive_whole(self) -> AsyncGenerator[bytes, None]:
        """Yield the answer in one piece. Raises `LlmFailed`."""
        async with aclosing(self.events()) as events:
            async for data in events:
                self.answer.add_chunk(data)
                self.check_not_empty()
                self.note_first_chunk()
                yield self.answer.well_formed(data, self.head)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the events of the LLM's stream, or its whole answer. Raises `LlmFailed`."""
        while True:
            try:
                if not self.body["stream"]:
                    yield await self.deps.llm_client.complete(self.turn.endpoint, self.body)
                    return
                async with aclosing(self.deps.llm_client.stream(self.turn.endpoint, self.body)) as events:
                    async for data in events:
                        yield data
                return
            except LlmFailed as error:
                if not self.alternates_after(error):
                    raise

    def alternates_after(self, error: LlmFailed) -> bool:
        """Return whether to ask an LLM that refused the messages once more, with alternating roles."""
        if error.why not in REFUSED_STATUSES or self.alternated is None:
            return False
        refused, self.body, self.alternated = self.body, self.alternated(), None
        encode = msgspec.json.encode  # at most one of the two has messages as encoded JSON
        self.is_alternated = encode(refused["messages"]) != encode(self.body["messages"])
        return self.is_alternated

    async def complete(self) -> bytes:
        """Return the whole answer, once it is journaled. Raises as `chunks`."""
        async with aclosing(self.chunks()) as chunks:
            return b"".join([data async for data in chunks])

    def check_not_empty(self) -> None:
        """Raise `LlmFailed` for an empty answer: the person on the phone would hear nothing."""
        if not self.answer.has_choice or (self.answer.is_empty and not self.earlier_text):
            raise LlmFailed("invalid_answer")

    def span(self) -> AbstractContextManager[Span]:
        host = urlsplit(self.turn.endpoint.url).hostname or ""
        return self.deps.recorder.telemetry.tracer.span(
            "llm", "client", {"voicemem.use": METRIC_USE, "server.address": host}
        )

    def log_failure(self, span: Span, error: LlmFailed) -> LlmFailed:
        span.fail(str(error.why))
        self.result = "failed"
        host = urlsplit(self.turn.endpoint.url).netloc.rpartition("@")[2]
        fields = {"session_id": self.turn.lease.session_id, "host": host}
        LOG.warning("The LLM failed: %s", error.why, extra=fields)
        return error

    def note_first_chunk(self) -> None:
        """Give the reply its item at the first chunk; measure the time to the first token."""
        self.has_started = True
        if self.item is None:
            self.item = self.reserve_item(self.answer.id)
        if self.is_alternated:  # and so from now on
            known, self.is_alternated = self.deps.alternating, False
            known[self.turn.endpoint.request_url, self.body.get("model")] = None
            if len(known) > MAX_ALTERNATING:
                del known[next(iter(known))]
        if self.started_s and (self.answer.size or self.answer.tool_calls):
            metric = self.deps.recorder.telemetry.metrics.llm_first_token_seconds.labels(METRIC_USE)
            metric.observe(time.monotonic() - self.started_s)
            self.started_s = 0.0

    async def finish(self) -> None:
        """Write the end of the reply and its tool calls. Raises the error that prevents their storage."""
        self.is_ended, self.result = True, "answered"
        if not self.must_continue:
            self.writer.add(self.end_event())
        self.writer.add(*self.call_events())
        await self.wait_until_written()
        if self.writer.error is not None:
            raise self.writer.error

    def call_events(self) -> Iterator[ToolCall]:
        """Yield the tool calls whose name and id events can hold: only these can be stored and answered."""
        now, most = self.now(), MAX_ID_CHARACTERS
        names = self.withheld_tool_names
        calls = [
            call
            for call in self.answer.tool_calls
            if 0 < len(call.id) <= most and 0 < len(call.name) <= most and call.name not in names
        ]
        group = {"group": calls[0].id} if len(calls) > 1 else {}
        for call in calls:
            returned = self.answer.wanted_back(call) | group
            metadata = {WANTED_BACK: returned} if returned else None
            yield ToolCall(
                id=shared_id("call", call.id),
                call_id=call.id,
                name=call.name,
                arguments=call.arguments,
                turn_id=self.turn_id,
                ts=now,
                metadata=metadata,
            )

    @property
    def must_continue(self) -> bool:
        """True if another LLM request must follow: the LLM called tools, and the service runs all of them."""
        return self.result == "answered" and self.calls_only_ours

    @property
    def calls_only_ours(self) -> bool:
        calls = self.answer.tool_calls
        return bool(calls) and all(call.name in self.service_tool_names and call.id for call in calls)

    async def wait_until_written(self) -> None:
        """Wait until everything is written. If some text could not be, write another end with the whole text."""
        await self.writer.flush()
        if self.writer.is_incomplete and self.writer.refused is None and not self.must_continue:
            self.writer.add(self.end_event())
            await self.writer.flush()

    async def fail(self, error: LlmFailed) -> None:
        """Write that the LLM failed. Raises the same error if there is no failure message.

        Raises `Refused` (`invalid_field`) if the LLM refused a message with an image.
        """
        self.is_ended = True
        refuses_parts = error.why in REFUSED_STATUSES and any(
            has_other_parts(message["content"])
            for message in self.body["messages"]
            if isinstance(message, dict) and message["role"] == "user"
        )
        text = self.failure_message if self.failure_message.strip() and not refuses_parts else None
        item = self.item or self.reserve_item(None)
        await self.writer.flush()
        if self.writer.is_incomplete:
            self.writer.add(self.end_event())
        self.writer.add(LlmError(turn_id=self.turn_id, item=item, text=text, code=error.why, ts=self.now()))
        await self.writer.flush()
        self.deps.reserved.discard((self.turn.lease.key, item))
        if refuses_parts:
            raise Refused("invalid_field", f"{NO_IMAGES}: `messages`")
        if text is None:
            raise error
        if self.writer.error is not None:
            raise self.writer.error

    async def close(self) -> None:
        """Count the request. If the client disconnected before its end, end the reply."""
        self.deps.recorder.telemetry.metrics.llm_calls.labels(METRIC_USE, self.result).inc()
        if not self.is_ended and self.answer.size:
            self.is_ended = True
            end = structs.replace(self.end_event(), id=disconnect_id(self.item or ""))
            nothing_came = not self.is_sent and not self.earlier_text  # then the reply is withdrawn
            self.writer.add(LlmCancel(turn_id=self.turn_id, item=self.item, ts=self.now()) if nothing_came else end)
            await self.wait_until_written()
        # A reply that continues keeps its item reserved, or another request meanwhile would end it as unfinished.
        if not self.must_continue:
            await self.release()

    async def begin_reply(self) -> None:
        """Tell the other nodes that the reply is in progress, before the journal shows it."""
        if self.item is not None and not self.continues:
            await self.deps.claims.begin_reply(self.turn.lease.key, self.item, self.deps.recorder.node.token)

    async def release(self) -> None:
        if self.item is not None:
            self.deps.reserved.discard((self.turn.lease.key, self.item))
            with suppress(StoreUnavailable):  # the claim ends with this node, and the journal has the reply's end
                await self.deps.claims.end_reply(self.turn.lease.key, self.item)

    def end_event(self) -> LlmDone:
        """Return the end of the reply, with its text if the journal does not have all of it."""
        written = bool(self.body["stream"]) and not self.writer.is_incomplete
        text = None if written else self.earlier_text + "".join(self.answer.text) or None
        return LlmDone(turn_id=self.turn_id, item=self.item, text=text, ts=self.now())

    def head(self) -> JsonObject:
        """Return the fields of a completion or chunk besides its choices, for one that lacks them."""
        model, name = self.body.get("model"), CHUNK if self.body["stream"] else WHOLE
        return {
            "id": self.item or f"chatcmpl-{self.turn_id}",
            "object": name,
            "created": self.created_s,
            "model": model if isinstance(model, str) else "",
        }

    def reserve_item(self, item: str | None) -> str:
        """Reserve the item of the reply if it is valid and free, else a new one. Return the item."""
        key, known, reserved = self.turn.lease.key, self.turn.read_model.state.items, self.deps.reserved
        if item is None or not VALID_ITEM.fullmatch(item) or item in known or (key, item) in reserved:
            item = f"chatcmpl-{self.deps.recorder.runtime.new_id()}"
        reserved.add((key, item))
        return item

    def now(self) -> int:
        """Unix ms."""
        return self.deps.recorder.clock()
