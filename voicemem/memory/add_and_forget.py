"""Changes to a memory by an application: messages and tool traces are added, parts are forgotten.

Additions are translated to events. Forgotten parts are no longer shown by contexts, but stay in the history until the
session is erased.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from voicemem.errors import Refused
from voicemem.protocol.codec import decode_event
from voicemem.protocol.events import Event, MemoryForgotten, MessageEvent, ToolCall, ToolResult
from voicemem.protocol.types import MAX_INTEGER, Integer, JsonObject, Name, Natural
from voicemem.sessions.derived import append_derived
from voicemem.sessions.lifecycle import Sessions
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.sessions.recording.recorder import Recorder
from voicemem.store.streams import Stream
from voicemem.transcript.history import begun_positions, turn_entries
from voicemem.transcript.messages import Forgotten
from voicemem.transcript.replies.playing import standing_replies
from voicemem.transcript.state import State, Turn
from voicemem.transcript.timeline import AFTER_ALL

API_PRODUCER = "api"
"""The producer of these events. They have no seq, so no other producer may use the name (`quotas.OWN_PRODUCERS`)."""
DEFAULT_SOURCES = {"user": "message", "assistant": "llm"}
NO_SYSTEM_MESSAGES = "System messages are configuration, not memory: set the session's llm.system_messages."


class FunctionCall(Struct, frozen=True):
    """The function of a tool call, in OpenAI's form: the arguments are JSON in a string."""

    name: Name
    arguments: Any


class MessageToolCall(Struct, frozen=True):
    """One of the tool calls of an assistant message, in OpenAI's form."""

    id: Name
    function: FunctionCall
    type: Literal["function"] = "function"


class TextPart(Struct, frozen=True):
    """A part of a content, in OpenAI's form; the memory keeps only text."""

    text: str
    type: Literal["text"] = "text"


class Added(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"kind": "type"}):
    """One message or tool trace, by `type`; without a `type`, a message.

    Tool calls and their results may also have OpenAI's form: in `tool_calls`, and with the role `tool`. Without
    `turn_id` a user message begins the next turn; anything else belongs to the current turn.
    """

    kind: Literal["message", "tool.call", "tool.result"] = "message"
    role: str | None = None
    content: str | tuple[TextPart, ...] | None = None
    """Parts become one text, one line each."""
    turn_id: Natural | None = None
    timestamp: Integer | None = None
    source: str | None = None
    user: Name | None = None
    metadata: JsonObject | None = None
    id: Annotated[str, Meta(min_length=1, max_length=120)] | None = None
    """Chosen by the client; a message that is sent again with the same id changes nothing."""
    call_id: Name | None = None
    name: Name | None = None
    arguments: Any | UnsetType = UNSET
    result: Any | UnsetType = UNSET
    tool_calls: tuple[MessageToolCall, ...] = ()
    tool_call_id: Name | None = None


class AddedAt(Struct, frozen=True):
    """The answer: everything up to `position` is on disk; `turn_id` is the turn of the last entry that was added."""

    position: int
    turn_id: int


async def record_messages(
    recorder: Recorder,
    read_models: ReadModelCache,
    lease: ProducerLease,
    entries: Sequence[Added],
    new_id: Callable[[], str],
) -> AddedAt:
    """Journal messages and tool traces together, all or none. Raises `Refused`."""
    now = await read_models.store.journal.get_session(lease.project, lease.session_id)
    events = EventTranslator(await read_models.get_state(now), new_id, recorder.clock()).translate_all(entries)
    arrivals = [decode_event(msgspec.json.encode(event)) for event in events]
    recorded = await recorder.record(lease, arrivals, whole=True)
    state, last = await read_models.get_state(recorded.stream), events[-1]
    if isinstance(last, ToolCall | ToolResult):
        turn_id = state.tool_calls[last.call_id][0]
    else:
        turn_id = state.items.get(last.item or "", state.newest_turn)
    return AddedAt(recorded.stream.position, turn_id)


class EventTranslator:
    """Translates entries to events, and finds the turns of entries that do not name theirs."""

    def __init__(self, state: State, new_id: Callable[[], str], now_ms: int) -> None:
        self.state = state
        self.newest_turn = state.newest_turn
        self.reply_turn = state.utterance_turn
        """The turn of the next assistant message that does not name one."""
        self.ts = now_ms - 1
        """Unix ms of the previous entry. An entry without a time comes right after it, so a list keeps its order."""
        self.latest_ts: dict[int, int] = {}
        """The newest time in each turn that has new entries."""
        self.tool_call_turns: dict[str, int] = {}
        self.new_id = new_id

    def translate_all(self, entries: Sequence[Added]) -> list[Event]:
        """Return the events of all entries. Raises `Refused`, which names the number of the entry."""
        if not entries:
            raise Refused("missing_field", "There is nothing to add: send at least one message.")
        events: list[Event] = []
        for number, entry in enumerate(entries, 1):
            if isinstance(entry.content, tuple):  # joined as in the gateway (`completions.content_text`)
                entry = msgspec.structs.replace(entry, content="\n".join(part.text for part in entry.content))
            try:
                events += self.translate(entry)
            except Refused as refused:
                where = f"In entry {number}: " if len(entries) > 1 else ""
                raise Refused(refused.code, where + refused.detail) from None
        return events

    def translate(self, entry: Added) -> list[Event]:
        """Return the events of an entry: a message, a tool trace, or a message with tool calls. Raises `Refused`."""
        if entry.kind == "tool.call":
            fields = (require_field(entry, name) for name in ("call_id", "name", "arguments"))
            return [self.tool_call_event(entry, *fields)]
        if entry.kind == "tool.result" or entry.role == "tool":
            names = ("call_id", "result") if entry.kind == "tool.result" else ("tool_call_id", "content")
            call_id, result = (require_field(entry, name) for name in names)
            turn = self.tool_turn(entry, call_id)
            return [ToolResult(turn_id=turn, ts=self.next_ts(entry, turn), call_id=call_id, result=result)]
        if entry.role in ("system", "developer"):
            raise Refused("invalid_field", NO_SYSTEM_MESSAGES)
        if entry.role not in DEFAULT_SOURCES:
            raise Refused("invalid_field", "The role of a message must be user, assistant or tool.")
        tool_calls = entry.tool_calls if entry.role == "assistant" else ()
        events = [self.message_event(entry)] if entry.content or not tool_calls else []
        for call in tool_calls:
            events.append(self.tool_call_event(entry, call.id, call.function.name, call.function.arguments))
        return events

    def message_event(self, entry: Added) -> Event:
        role: Literal["user", "assistant"] = "user" if entry.role == "user" else "assistant"
        metadata = dict(entry.metadata or {})
        source = entry.source or metadata.pop("source", None) or DEFAULT_SOURCES[role]
        turn = entry.turn_id
        if turn is None and role == "user":
            self.newest_turn += 1
        # An event without a turn_id is given a turn when it is recorded; this is the turn that it will get.
        expected_turn = (self.newest_turn if role == "user" else self.reply_turn) if turn is None else turn
        self.newest_turn = max(self.newest_turn, expected_turn)
        if role == "user":
            self.reply_turn = max(self.reply_turn, expected_turn)
        fields = {
            "type": "message",
            "role": role,
            "text": require_field(entry, "content"),
            "source": source,
            "turn_id": turn,
            "ts": self.next_ts(entry, expected_turn),
            "user": entry.user,
            "id": entry.id,
            "item": f"api.{entry.id or self.new_id()}",
            "metadata": metadata or None,
        }
        try:
            return msgspec.convert({name: value for name, value in fields.items() if value is not None}, MessageEvent)
        except msgspec.ValidationError:
            raise Refused("invalid_field", "A message of this role cannot have this source.") from None

    def tool_call_event(self, entry: Added, call_id: str, name: str, arguments: Any) -> ToolCall:
        turn = self.tool_turn(entry, call_id)
        self.tool_call_turns[call_id] = turn
        ts = self.next_ts(entry, turn)
        return ToolCall(turn_id=turn, ts=ts, call_id=call_id, name=name, arguments=arguments)

    def next_ts(self, entry: Added, number: int) -> int:
        """Return the entry's own time, else 1 ms after everything in its turn, since a turn is ordered by time."""
        self.ts = self.ts + 1 if entry.timestamp is None else entry.timestamp
        known = self.latest_ts.get(number)
        if known is None:
            turn = self.state.turns.get(number)
            known = self.ts - 1 if turn is None else max(begins_of(self.state, turn), default=self.ts - 1)
        if entry.timestamp is None:
            self.ts = min(max(self.ts, known + 1), MAX_INTEGER)
        self.latest_ts[number] = max(known, self.ts)
        return self.ts

    def tool_turn(self, entry: Added, call_id: str) -> int:
        if entry.turn_id is not None:
            return entry.turn_id
        known = self.state.tool_calls.get(call_id, (self.newest_turn, 0))[0]
        return self.tool_call_turns.get(call_id, known)


def begins_of(state: State, turn: Turn) -> Iterator[int]:
    yield from (segment.begin for segment in turn.segments or () if segment.begin < AFTER_ALL)
    yield from (typed.begin for typed in turn.typed or ())
    yield from (reply.begin for reply in standing_replies(state, turn))
    yield from (tool_call.ts for tool_call in turn.tool_calls or ())


def require_field(entry: Added, name: str) -> Any:
    """Return the value of a field. Raises `Refused` (`missing_field`) if it is not set."""
    value = getattr(entry, name)
    if value is UNSET or (value is None and name not in ("arguments", "result")):
        raise Refused("missing_field", f"The field {name} is missing.")
    return value


class ForgetRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The messages to forget: one field, or an empty object for all. Null is refused: forgetting cannot be undone."""

    NEVER_NULL: ClassVar = ("through_turn", "keep_last", "everything")

    through_turn: Natural | UnsetType = UNSET
    keep_last: Natural | UnsetType = UNSET
    everything: bool | UnsetType = UNSET


class Forgot(Struct, frozen=True):
    """How many messages of the history are forgotten, and how many remembered."""

    position: int
    forgotten: int
    remembered: int


async def forget(sessions: Sessions, read_models: ReadModelCache, stream: Stream, request: ForgetRequest) -> Forgot:
    """Forget a part of a memory. Raises `Refused` (`invalid_field`, `unknown_turn`)."""
    options = [value for value in (request.through_turn, request.keep_last, request.everything) if value is not UNSET]
    if len(options) > 1 or request.everything is False:
        raise Refused(
            "invalid_field", "Use only one of through_turn, keep_last and everything; everything must be true."
        )
    event = partial(forgotten_event, request=request)
    stream, read_model = await append_derived(read_models, stream, event, sessions.clock)
    sessions.on_changed(stream)
    remembered = len(read_model.remembered_indexes())
    return Forgot(stream.position, len(read_model.current_messages()) - remembered, remembered)


def forgotten_event(read_model: ReadModel, request: ForgetRequest) -> MemoryForgotten | None:
    """Return the event to journal; None if it would change nothing. Raises `Refused` (`unknown_turn`)."""
    if request.through_turn is UNSET:
        return forget_all_but_newest(read_model, request.keep_last or 0, everything=request.keep_last is UNSET)
    newest = read_model.state.turn_numbers[-1] if read_model.state.turn_numbers else -1
    if request.through_turn > newest:
        raise Refused("unknown_turn")
    known = read_model.state.forgotten or Forgotten()
    return MemoryForgotten(through_turn=request.through_turn) if request.through_turn > known.through_turn else None


def forget_all_but_newest(read_model: ReadModel, count: int, everything: bool) -> MemoryForgotten | None:
    """Forget all but the newest `count` messages. Speech in progress is not a message yet, and stays."""
    # None means that nothing was carried over yet, and it must not be later either.
    carried = everything and read_model.state.carried != ()
    messages, indexes = read_model.current_messages(), read_model.remembered_indexes()
    if count >= len(indexes):
        return MemoryForgotten(carried=True) if carried else None
    kept = set(indexes[len(indexes) - count :])
    number = messages[min(kept, default=indexes[-1])].turn_id
    # The parts of the turn that stay are `kept` messages, and unfinished ones.
    state, turn = read_model.state, read_model.state.turns[number]
    entries = enumerate(turn_entries(state, turn), read_model.turn_start(number))
    forgotten = state.forgotten or Forgotten()
    left = begun_positions(state, turn) - {entry.position for index, entry in entries if index not in kept}
    positions = tuple(sorted(one for one in left if not forgotten.covers(number, one)))
    return MemoryForgotten(turn=number, kept=positions, carried=carried)
