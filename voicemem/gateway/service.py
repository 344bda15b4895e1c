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
from voicemem.context.builder import Wishes, context
from voicemem.context.policies import Policies
from voicemem.documents.tools import TOOL_NAMES
from voicemem.errors import Refused
from voicemem.gateway.call import Call, Models, Names, Plan, Tools
from voicemem.gateway.reply_writer import ends_of_left, record
from voicemem.gateway.tool_loop import Rounds
from voicemem.llm.completions import Asked, ToolAnswer, request_for
from voicemem.llm.targets import Target, Targets
from voicemem.memory.working_memory import WorkingMemory
from voicemem.protocol.events import MessageEvent, ProducedEvent, ToolResult
from voicemem.protocol.types import JsonObject
from voicemem.sessions.batches import Line
from voicemem.sessions.read_model import Memory
from voicemem.sessions.recorder import Recorder
from voicemem.store.streams import Stream, may_reopen
from voicemem.transcript.speech import utterance_text
from voicemem.transcript.state import Turn

T = TypeVar("T")
PRODUCER = "gateway"
"""Of the events that come in here; they have no seq, so nobody else gets this name (`batches.OWN_PRODUCERS`)."""
NO_SUCH_CALL = "The session has no tool call of this id"


class Taken(Struct, frozen=True):
    """What a request adds to the memory, and the turn that it is about (None: the one that its message takes)."""

    turn_id: int | None
    events: list[ProducedEvent] = []
    unfinished: str | None = None
    """What the user said, where the memory does not show it yet: its transcript is under way."""


class Question(NamedTuple):
    """What a call of the LLM is about, beside the memory."""

    target: Target
    turn_id: int
    unfinished: str | None
    tools: list[JsonObject]
    """Definitions of those that are done here."""


class Gateway:
    """Answers chat completions of sessions."""

    def __init__(
        self,
        recorder: Recorder,
        policies: Policies,
        working_memory: WorkingMemory,
        targets: Targets,
        models: Models,
    ) -> None:
        self.memories = recorder.memories
        self.policies = policies
        self.working_memory = working_memory
        self.targets = targets
        self.clock = recorder.runtime.clock
        self.new_id = recorder.runtime.new_id
        self.tools = Tools(models, Names(self.clock, self.new_id), recorder, recorder.telemetry)
        self.taking: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        """Held, by key of the session, from the look at its memory until what a request adds to it is there."""
        self.running: set[asyncio.Task[Any]] = set()
        self.draining = False

    async def begin(self, stream: Stream, asked: Asked, key_id: str | None) -> Call | Rounds:
        """Take what the request says into the memory, and make ready to call the LLM with it.

        Raises `Refused` (`session_ended`, `llm_not_configured`), and whatever keeps an event from being stored.
        """
        if self.draining:
            raise Refused("draining")
        if stream.state != "running" and not may_reopen(stream, self.clock()):
            raise Refused("session_ended")
        target = await self.targets.of(stream)
        line = Line(stream, PRODUCER, None, may_call_out=False, may_set=False, key_id=key_id)
        lock = self.taking.setdefault(stream.key, asyncio.Lock())
        async with lock:
            stream = await self.close_left(stream, line)
            taken = self.take(await self.memories.at(stream), asked)
            if taken.events:
                stream = await record(self.tools.recorder, line, taken.events)
        memory = await self.memories.at(stream)
        turn_id = taken.turn_id
        if turn_id is None:
            turn_id = memory.state.items[taken.events[0].item or ""]
        own = await self.own_tools(stream)
        wanted = parse_config(stream.config).working_memory
        ours = TOOL_NAMES - names_in(asked.fields.get("tools")) if wanted is not None and wanted.tools else frozenset()

        async def call(item: str | None = None, last: bool = False, said: str = "") -> Call:
            tools = [] if last else own
            body = await self.body(stream, asked, Question(target, turn_id, taken.unfinished, tools))
            failure_message = parse_config(stream.config).llm.failure_message or ""
            withheld = frozenset() if tools else ours
            plan = Plan(line, memory, turn_id, target, body, failure_message, names_of(tools), withheld, item, said)
            return Call(self.tools, plan)

        first = await call()
        return Rounds(first, call, partial(self.working_memory.execute, stream)) if ours else first

    async def close_left(self, stream: Stream, line: Line) -> Stream:
        """The session as it is now, with no reply open that a killed process was about to give."""
        stream = await self.memories.journal.stream(stream.project, stream.id) or stream
        state, running = (await self.memories.at(stream)).state, self.tools.names.taken
        ends = await ends_of_left(self.memories.journal, stream.key, state, PRODUCER, running)
        return await record(self.tools.recorder, line, ends) if ends else stream

    async def own_tools(self, stream: Stream) -> list[JsonObject]:
        """The tools of the session's working memory, where the LLM is to have them."""
        wanted = parse_config(stream.config).working_memory
        if wanted is None or not wanted.tools:
            return []
        with suppress(Refused):  # a user's, and nobody says whose: the call goes on without
            return await self.working_memory.tools(stream)
        return []

    async def body(self, stream: Stream, asked: Asked, question: Question) -> JsonObject:
        """The body of the LLM's call, with the memory as it is now."""
        now = await self.memories.journal.stream(stream.project, stream.id)
        if now is None:
            raise Refused("unknown_session")
        stream = now
        custom = parse_config(stream.config).llm.vendor == "custom"
        body = await context(self.memories, self.policies, stream, Wishes(style="openai", tools=True))
        if question.unfinished is not None:
            body = self.with_words(body, question.unfinished, question.turn_id, custom)
        body = request_for(body, asked, question.target.model, custom)
        return body | {"tools": [*body.get("tools", ()), *question.tools]} if question.tools else body

    def take(self, memory: Memory, asked: Asked) -> Taken:
        """What of a request is new."""
        state = memory.state
        if asked.answers:
            return self.take_answers(memory, asked.answers)
        if asked.user is None:
            return Taken(state.utterance_turn)
        turn = state.turns.get(state.newest_turn)
        if turn is not None and is_known(turn, asked.user):
            shown = turn.typed or any(utterance_text(one, with_partials=False)[0] for one in turn.utterances)
            return Taken(turn.number, unfinished=None if shown else asked.user)
        message = MessageEvent(role="user", text=asked.user, source="message", item=self.new_id(), ts=self.clock())
        return Taken(None, [message])

    def take_answers(self, memory: Memory, answers: list[ToolAnswer]) -> Taken:
        """Tool results, of calls that wait for one; the reply belongs to the turn of the calls."""
        uses = {use.call_id: use for use in memory.tool_uses()}
        for answer in answers:
            if answer.call_id not in memory.state.tool_call_turns:
                raise Refused("invalid_field", f"{NO_SUCH_CALL}: `messages[{answer.place}].tool_call_id`")
        told = {answer.call_id: answer.text for answer in answers if answer.call_id in uses}  # others are forgotten
        turn_id = max((uses[call_id].turn_id for call_id in told), default=memory.state.utterance_turn)
        events: list[ProducedEvent] = [
            ToolResult(turn_id=uses[call_id].turn_id, call_id=call_id, result=text, ts=self.clock())
            for call_id, text in told.items()
            if not uses[call_id].answered
        ]
        return Taken(turn_id, events)

    def with_words(self, body: JsonObject, text: str, turn_id: int, custom: bool) -> JsonObject:
        """The context with what the user is saying behind it."""
        message: JsonObject = {"role": "user", "content": text}
        place: JsonObject = {"turn_id": turn_id, "timestamp": self.clock()} if custom else {}
        more = {**place, "metadata": {"source": "asr"}} if custom else {}
        return {**body, "messages": [*body["messages"], message | more], **place}

    # Running calls

    def start(self, answering: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
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


def names_of(tools: list[JsonObject]) -> frozenset[str]:
    return frozenset(tool["function"]["name"] for tool in tools)


def names_in(tools: Any) -> frozenset[str]:
    """The names of a caller's tools, whatever it sent."""
    functions = (one.get("function") for one in tools if isinstance(one, dict)) if isinstance(tools, list) else ()
    names = (function.get("name") for function in functions if isinstance(function, dict))
    return frozenset(name for name in names if isinstance(name, str))


def is_known(turn: Turn, text: str) -> bool:
    """Whether the user's words are in a turn that waits for its reply: by the recogniser, or typed as they are."""
    replied = any(reply.restored or reply.generation.text() for reply in turn.replies)
    if replied or turn.failures:
        return False
    return bool(turn.utterances) or any(same_words(typed.text, text) for typed in turn.typed or ())


def same_words(one: str, other: str) -> bool:
    """Whether two texts are equal, white space apart."""
    return one.split() == other.split()
