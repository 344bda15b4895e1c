"""Adding to a memory: messages and tool traces as applications have them, translated to events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from voicemem.errors import Refused
from voicemem.protocol.codec import DecodedEvent, RejectedEvent, decode_event
from voicemem.protocol.events import Event, MessageEvent, ToolCall, ToolResult
from voicemem.protocol.types import MAX_INTEGER, Integer, JsonObject, Name, Natural
from voicemem.sessions.batches import ProducerLease
from voicemem.sessions.cache import Memories
from voicemem.sessions.recorder import Recorder
from voicemem.transcript.state import State, Turn

API_PRODUCER = "api"
"""Of the events that come in here; they have no seq, so nobody else gets this name (`batches.OWN_PRODUCERS`)."""
DEFAULT_SOURCES = {"user": "message", "assistant": "llm"}
"""Of messages that do not say where they come from."""
NO_SYSTEM_MESSAGES = "System messages are configuration and no memory: set system_messages of the session."


class FunctionCall(Struct, frozen=True):
    """As OpenAI has it: the arguments are a text of JSON."""

    name: Name
    arguments: Any


class MessageToolCall(Struct, frozen=True):
    """One of the tool calls of an assistant message, as OpenAI has it."""

    id: Name
    function: FunctionCall
    type: Literal["function"] = "function"


class TextPart(Struct, frozen=True):
    """A part of a content, as OpenAI has it; a memory keeps texts only."""

    text: str
    type: Literal["text"] = "text"


class Added(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"kind": "type"}):
    """One message, or one tool trace: `type` tells, a message when it is left out.

    Tool calls and their results may also be written as OpenAI has them, in `tool_calls` and with the role `tool`.
    Without `turn_id` a user message begins the next turn, anything else is of the turn before it.
    """

    kind: Literal["message", "tool.call", "tool.result"] = "message"
    role: str | None = None
    content: str | tuple[TextPart, ...] | None = None
    """Parts become one text, a line each."""
    turn_id: Natural | None = None
    timestamp: Integer | None = None
    source: str | None = None
    user: Name | None = None
    metadata: JsonObject | None = None
    id: Annotated[str, Meta(min_length=1, max_length=120)] | None = None
    """Of the message, given by the caller: sent again, it changes nothing."""
    call_id: Name | None = None
    name: Name | None = None
    arguments: Any | UnsetType = UNSET
    result: Any | UnsetType = UNSET
    tool_calls: tuple[MessageToolCall, ...] = ()
    tool_call_id: Name | None = None


class AddedAt(Struct, frozen=True):
    """Everything up to `position` is on disk; `turn_id` is the turn of the last one that was added."""

    position: int
    turn_id: int


async def record_messages(
    recorder: Recorder, memories: Memories, line: ProducerLease, given: Sequence[Added], new_id: Callable[[], str]
) -> AddedAt:
    """Journal messages and tool traces together, all of them or none. Raises `Refused`."""
    now = await memories.journal.stream(line.project, line.session_id)
    if now is None:
        raise Refused("unknown_session")
    events = EventTranslator((await memories.at(now)).state, new_id, recorder.clock()).translate_all(given)
    arrivals = []
    for event in events:
        arrival = decode_event(msgspec.json.encode(event))
        if isinstance(arrival, RejectedEvent):
            raise Refused(arrival.code, arrival.detail)
        arrivals.append(arrival)
    recorded = await recorder.record(line, arrivals)
    for problem in recorded.problems:
        raise Refused(problem.code, problem.detail)
    memory = await memories.at(recorded.stream)
    return AddedAt(recorded.stream.position, event_turn(arrivals[-1], memory.state))


def event_turn(arrival: DecodedEvent, state: State) -> int:
    event = arrival.event
    if isinstance(event, ToolCall | ToolResult):
        return state.tool_call_turns.get(event.call_id, event.turn_id)
    return state.items.get(event.item or "", state.newest_turn)


class EventTranslator:
    """What was given, as events; follows the turns that come of it, for tool traces that do not name theirs."""

    def __init__(self, state: State, new_id: Callable[[], str], now_ms: int) -> None:
        self.state = state
        self.newest_turn = state.newest_turn
        self.reply_turn = state.utterance_turn
        """The turn of an assistant message that names none."""
        self.ts = now_ms - 1
        """Of the one before: what has no time of its own comes right after it, so that a list keeps its order."""
        self.latest_ts: dict[int, int] = {}
        """The newest time of a turn, among what was given."""
        self.tool_call_turns = dict(state.tool_call_turns)
        self.new_id = new_id

    def translate_all(self, given: Sequence[Added]) -> list[Event]:
        if not given:
            raise Refused("missing_field", "There is nothing to add: give at least one message.")
        events: list[Event] = []
        for number, one in enumerate(given, 1):
            try:
                events += self.translate(join_parts(one))
            except Refused as refused:
                where = f"In number {number}: " if len(given) > 1 else ""
                raise Refused(refused.code, where + refused.detail) from None
        return events

    def translate(self, given: Added) -> list[Event]:
        if given.kind == "tool.call":
            return [
                self.tool_call_event(
                    given,
                    require_field(given, "call_id"),
                    require_field(given, "name"),
                    require_field(given, "arguments"),
                )
            ]
        if given.kind == "tool.result":
            return [self.tool_result_event(given, require_field(given, "call_id"), require_field(given, "result"))]
        if given.role == "tool":
            return [
                self.tool_result_event(given, require_field(given, "tool_call_id"), require_field(given, "content"))
            ]
        if given.role in ("system", "developer"):
            raise Refused("invalid_field", NO_SYSTEM_MESSAGES)
        if given.role not in DEFAULT_SOURCES:
            raise Refused("invalid_field", "The role of a message is user, assistant or tool.")
        calls = given.tool_calls if given.role == "assistant" else ()
        said = [self.message_event(given)] if given.content or not calls else []
        return [
            *said,
            *(self.tool_call_event(given, one.id, one.function.name, one.function.arguments) for one in calls),
        ]

    def message_event(self, given: Added) -> Event:
        role: Literal["user", "assistant"] = "user" if given.role == "user" else "assistant"
        metadata = dict(given.metadata or {})
        source = given.source or metadata.pop("source", None) or DEFAULT_SOURCES[role]
        turn = given.turn_id
        if turn is None and role == "user":
            self.newest_turn += 1
        place = (self.newest_turn if role == "user" else self.reply_turn) if turn is None else turn
        self.newest_turn = max(self.newest_turn, place)
        if role == "user":
            self.reply_turn = max(self.reply_turn, place)
        fields = {
            "type": "message",
            "role": role,
            "text": require_field(given, "content"),
            "source": source,
            "turn_id": turn,
            "ts": self.next_ts(given, place),
            "user": given.user,
            "id": given.id,
            "item": f"api.{given.id or self.new_id()}",
            "metadata": metadata or None,
        }
        try:
            return msgspec.convert({name: value for name, value in fields.items() if value is not None}, MessageEvent)
        except msgspec.ValidationError:
            raise Refused("invalid_field", "A message of this role does not have this source.") from None

    def tool_call_event(self, given: Added, call_id: str, name: str, arguments: Any) -> ToolCall:
        turn = self.tool_turn(given, call_id)
        self.tool_call_turns[call_id] = turn
        ts = self.next_ts(given, turn)
        return ToolCall(turn_id=turn, ts=ts, call_id=call_id, name=name, arguments=arguments)

    def tool_result_event(self, given: Added, call_id: str, result: Any) -> ToolResult:
        turn = self.tool_turn(given, call_id)
        return ToolResult(turn_id=turn, ts=self.next_ts(given, turn), call_id=call_id, result=result)

    def next_ts(self, given: Added, number: int) -> int:
        """Its own time, else one behind all that its turn has, since a turn is read in the order of time."""
        self.ts = self.ts + 1 if given.timestamp is None else given.timestamp
        known = self.latest_ts.get(number)
        if known is None:
            turn = self.state.turns.get(number)
            known = self.ts - 1 if turn is None else max(begins_of(turn), default=self.ts - 1)
        if given.timestamp is None:
            self.ts = min(max(self.ts, known + 1), MAX_INTEGER)
        self.latest_ts[number] = max(known, self.ts)
        return self.ts

    def tool_turn(self, given: Added, call_id: str) -> int:
        return self.tool_call_turns.get(call_id, self.newest_turn) if given.turn_id is None else given.turn_id


def join_parts(given: Added) -> Added:
    """The same with a content of parts as one text, as the gateway makes it (`completions.text_of`)."""
    if not isinstance(given.content, tuple):
        return given
    return msgspec.structs.replace(given, content="\n".join(part.text for part in given.content))


def begins_of(turn: Turn) -> Iterator[int]:
    """When what a turn shows began."""
    for utterance in turn.utterances:
        yield from (segment.begin for segment in utterance.segments)
    yield from (one.begin for one in (*(turn.typed or ()), *turn.replies))
    yield from (tool_call.ts for tool_call in turn.tool_calls or ())


def require_field(given: Added, name: str) -> Any:
    value = getattr(given, name)
    if value is UNSET or (value is None and name not in ("arguments", "result")):
        raise Refused("missing_field", f"The field {name} is missing.")
    return value
