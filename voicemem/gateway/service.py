"""The gateway: a chat completion whose conversation is the memory, and whose answer goes into it (design, section 12).

It takes the user's words, builds the context, calls the LLM, and hands its answer on as it comes (`answering`). That
a reply was cut short is the engine's to say: a caller that hangs up stops the LLM, and what it generated until then is
the reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from msgspec import Struct

from voicemem.config.session import parse_config
from voicemem.context.builder import ContextOptions, build_context
from voicemem.context.policies import Policies
from voicemem.documents.tools import TOOL_NAMES
from voicemem.errors import Refused
from voicemem.gateway.call import CallDeps, CallRequest, CompletionClient, LlmCall, ReplyIds
from voicemem.gateway.reply_writer import ends_of_unfinished, record
from voicemem.gateway.tool_loop import ToolLoop
from voicemem.llm.completions import ChatTurn, GivenToolResult, build_llm_request
from voicemem.llm.targets import LlmEndpoint, LlmEndpoints
from voicemem.memory.working_memory import WorkingMemory
from voicemem.protocol.events import MessageEvent, ProducedEvent, ToolResult
from voicemem.protocol.types import JsonObject
from voicemem.sessions.batches import ProducerLease
from voicemem.sessions.read_model import Memory
from voicemem.sessions.recorder import Recorder
from voicemem.store.streams import Stream, may_reopen
from voicemem.transcript.speech import utterance_text
from voicemem.transcript.state import Turn

T = TypeVar("T")
GATEWAY_PRODUCER = "gateway"
"""Of the events that come in here; they have no seq, so nobody else gets this name (`batches.OWN_PRODUCERS`)."""
UNKNOWN_TOOL_CALL = "The session has no tool call of this id"


class NewInput(Struct, frozen=True):
    """What a request adds to the memory, and the turn that it is about (None: the one that its message takes)."""

    turn_id: int | None
    events: list[ProducedEvent] = []
    pending_text: str | None = None
    """What the user said, where the memory does not show it yet: its transcript is under way."""


class RequestInputs(NamedTuple):
    """What a call of the LLM is about, beside the memory."""

    endpoint: LlmEndpoint
    turn_id: int
    pending_text: str | None
    tools: list[JsonObject]
    """Definitions of those that are done here."""


class Gateway:
    """Answers chat completions of sessions."""

    def __init__(
        self,
        recorder: Recorder,
        policies: Policies,
        working_memory: WorkingMemory,
        endpoints: LlmEndpoints,
        llm_client: CompletionClient,
    ) -> None:
        self.memories = recorder.memories
        self.policies = policies
        self.working_memory = working_memory
        self.endpoints = endpoints
        self.clock = recorder.runtime.clock
        self.new_id = recorder.runtime.new_id
        self.call_deps = CallDeps(llm_client, ReplyIds(self.clock, self.new_id), recorder, recorder.telemetry)
        self.locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        """Held, by key of the session, from the look at its memory until what a request adds to it is there."""
        self.running: set[asyncio.Task[Any]] = set()
        self.draining = False

    async def prepare(self, stream: Stream, chat_turn: ChatTurn, key_id: str | None) -> LlmCall | ToolLoop:
        """Take what the request says into the memory, and make ready to call the LLM with it.

        Raises `Refused` (`session_ended`, `llm_not_configured`), and whatever keeps an event from being stored.
        """
        if self.draining:
            raise Refused("draining")
        if stream.state != "running" and not may_reopen(stream, self.clock()):
            raise Refused("session_ended")
        endpoint = await self.endpoints.for_session(stream)
        line = ProducerLease(stream, GATEWAY_PRODUCER, None, may_call_out=False, may_set=False, key_id=key_id)
        lock = self.locks.setdefault(stream.key, asyncio.Lock())
        async with lock:
            stream = await self.close_unfinished_replies(stream, line)
            new_input = self.extract_input(await self.memories.at(stream), chat_turn)
            if new_input.events:
                stream = await record(self.call_deps.recorder, line, new_input.events)
        memory = await self.memories.at(stream)
        turn_id = new_input.turn_id
        if turn_id is None:
            turn_id = memory.state.items[new_input.events[0].item or ""]
        service_tools = await self.working_memory_tools(stream)
        section = parse_config(stream.config).working_memory
        service_tool_names = (
            TOOL_NAMES - caller_tool_names(chat_turn.fields.get("tools"))
            if section is not None and section.tools
            else frozenset()
        )

        async def make_call(item: str | None = None, is_last: bool = False, earlier_text: str = "") -> LlmCall:
            tools = [] if is_last else service_tools
            body = await self.build_body(
                stream, chat_turn, RequestInputs(endpoint, turn_id, new_input.pending_text, tools)
            )
            failure_message = parse_config(stream.config).llm.failure_message or ""
            withheld_tool_names = frozenset() if tools else service_tool_names
            request = CallRequest(
                line,
                memory,
                turn_id,
                endpoint,
                body,
                failure_message,
                tool_names(tools),
                withheld_tool_names,
                item,
                earlier_text,
            )
            return LlmCall(self.call_deps, request)

        first = await make_call()
        return (
            ToolLoop(first, make_call, partial(self.working_memory.execute_tool, stream))
            if service_tool_names
            else first
        )

    async def close_unfinished_replies(self, stream: Stream, line: ProducerLease) -> Stream:
        """The session as it is now, with no reply open that a killed process was about to give."""
        stream = await self.memories.journal.stream(stream.project, stream.id) or stream
        state, running = (await self.memories.at(stream)).state, self.call_deps.reply_ids.reserved
        ends = await ends_of_unfinished(self.memories.journal, stream.key, state, GATEWAY_PRODUCER, running)
        return await record(self.call_deps.recorder, line, ends) if ends else stream

    async def working_memory_tools(self, stream: Stream) -> list[JsonObject]:
        """The tools of the session's working memory, where the LLM is to have them."""
        section = parse_config(stream.config).working_memory
        if section is None or not section.tools:
            return []
        with suppress(Refused):  # a user's, and nobody says whose: the call goes on without
            return await self.working_memory.tool_definitions(stream)
        return []

    async def build_body(self, stream: Stream, chat_turn: ChatTurn, inputs: RequestInputs) -> JsonObject:
        """The body of the LLM's call, with the memory as it is now."""
        now = await self.memories.journal.stream(stream.project, stream.id)
        if now is None:
            raise Refused("unknown_session")
        stream = now
        custom = parse_config(stream.config).llm.vendor == "custom"
        body = await build_context(self.memories, self.policies, stream, ContextOptions(style="openai", tools=True))
        if inputs.pending_text is not None:
            body = self.append_user_text(body, inputs.pending_text, inputs.turn_id, custom)
        body = build_llm_request(body, chat_turn, inputs.endpoint.model, custom)
        return body | {"tools": [*body.get("tools", ()), *inputs.tools]} if inputs.tools else body

    def extract_input(self, memory: Memory, chat_turn: ChatTurn) -> NewInput:
        """What of a request is new."""
        state = memory.state
        if chat_turn.tool_results:
            return self.extract_tool_results(memory, chat_turn.tool_results)
        if chat_turn.user_text is None:
            return NewInput(state.utterance_turn)
        turn = state.turns.get(state.newest_turn)
        if turn is not None and is_recorded(turn, chat_turn.user_text):
            shown = turn.typed or any(utterance_text(one, with_partials=False)[0] for one in turn.utterances)
            return NewInput(turn.number, pending_text=None if shown else chat_turn.user_text)
        message = MessageEvent(
            role="user", text=chat_turn.user_text, source="message", item=self.new_id(), ts=self.clock()
        )
        return NewInput(None, [message])

    def extract_tool_results(self, memory: Memory, tool_results: list[GivenToolResult]) -> NewInput:
        """Tool results, of calls that wait for one; the reply belongs to the turn of the calls."""
        uses = {use.call_id: use for use in memory.tool_uses()}
        for given in tool_results:
            if given.call_id not in memory.state.tool_call_turns:
                raise Refused("invalid_field", f"{UNKNOWN_TOOL_CALL}: `messages[{given.message_index}].tool_call_id`")
        known_results = {
            given.call_id: given.text for given in tool_results if given.call_id in uses
        }  # others are forgotten
        turn_id = max((uses[call_id].turn_id for call_id in known_results), default=memory.state.utterance_turn)
        events: list[ProducedEvent] = [
            ToolResult(turn_id=uses[call_id].turn_id, call_id=call_id, result=text, ts=self.clock())
            for call_id, text in known_results.items()
            if not uses[call_id].answered
        ]
        return NewInput(turn_id, events)

    def append_user_text(self, body: JsonObject, text: str, turn_id: int, custom: bool) -> JsonObject:
        """The context with what the user is saying behind it."""
        message: JsonObject = {"role": "user", "content": text}
        position_fields: JsonObject = {"turn_id": turn_id, "timestamp": self.clock()} if custom else {}
        more = {**position_fields, "metadata": {"source": "asr"}} if custom else {}
        return {**body, "messages": [*body["messages"], message | more], **position_fields}

    # Running calls

    def spawn(self, answering: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Answer a caller; the task is cancelled when the service shuts down."""
        task = asyncio.create_task(answering)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return task

    async def drain(self) -> None:
        """Stop the LLMs; what they generated until now is in the journal when this returns."""
        self.draining = True
        running = list(self.running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def tool_names(tools: list[JsonObject]) -> frozenset[str]:
    return frozenset(tool["function"]["name"] for tool in tools)


def caller_tool_names(tools: Any) -> frozenset[str]:
    """The names of a caller's tools, whatever it sent."""
    functions = (one.get("function") for one in tools if isinstance(one, dict)) if isinstance(tools, list) else ()
    names = (function.get("name") for function in functions if isinstance(function, dict))
    return frozenset(name for name in names if isinstance(name, str))


def is_recorded(turn: Turn, text: str) -> bool:
    """Whether the user's words are in a turn that waits for its reply: by the recogniser, or typed as they are."""
    replied = any(reply.restored or reply.generation.text() for reply in turn.replies)
    if replied or turn.failures:
        return False
    return bool(turn.utterances) or any(same_words(typed.text, text) for typed in turn.typed or ())


def same_words(one: str, other: str) -> bool:
    """Whether two texts are equal, white space apart."""
    return one.split() == other.split()
