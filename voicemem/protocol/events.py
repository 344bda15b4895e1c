"""What can arrive: one frozen record per event of the protocol `voicemem.v1` (design, section 3).

Times named `ts` are Unix milliseconds; times named `*_ms` inside a reply or an utterance count from the start of its
audio. Unknown fields are not kept in these records: the journal keeps the bytes of the event as they were validated.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from voicemem.protocol.types import (
    MAX_INTEGER,
    Integer,
    JsonObject,
    Name,
    Natural,
    SequenceNumber,
    SessionId,
    TurnNumber,
)


class Word(Struct, frozen=True, gc=False):
    """One word and when it sounds, in ms from the start of its reply's or utterance's audio."""

    text: str
    start_ms: Natural
    end_ms: Natural


class Event(Struct, tag_field="type", kw_only=True, frozen=True, gc=False, omit_defaults=True):
    """The fields that every event may carry."""

    session_id: SessionId | None = None
    producer: Name | None = None
    seq: SequenceNumber | None = None
    ts: Integer | None = None
    id: Name | None = None
    item: Name | None = None
    metadata: JsonObject | None = None


class Asr(Event, tag="asr", frozen=True):
    """The recogniser's current text of one segment; text "" opens the slot for a late transcript."""

    text: str
    turn_id: Natural | None = None
    final: bool = False
    user: Name | None = None
    segment: Natural | None = None
    start_ms: Natural | None = None
    end_ms: Natural | None = None
    words: tuple[Word, ...] | None = None
    language: str | None = None
    confidence: float | None = None


class LlmDelta(Event, tag="llm.delta", frozen=True):
    """The LLM generated more; with `whole`, the text is all of the reply so far."""

    text: str
    turn_id: Natural | None = None
    whole: bool = False


class LlmDone(Event, tag="llm.done", frozen=True):
    """The LLM finished; `text`, when given, is the whole reply."""

    turn_id: Natural | None = None
    text: str | None = None


class LlmError(Event, tag="llm.error", frozen=True):
    """The LLM call failed; `text` is the failure message that was spoken."""

    turn_id: Natural | None = None
    text: str | None = None
    code: str | int | None = None


class Tts(Event, tag="tts", frozen=True):
    """Playback: progress (`heard_text`, `audio_ms`, `done`), or timing only (`words`, `total_audio_ms`)."""

    turn_id: Natural | None = None
    heard_text: str | None = None
    audio_ms: Natural | None = None
    done: bool | None = None
    words: tuple[Word, ...] | None = None
    total_audio_ms: Natural | None = None
    estimated: bool = False


class Interrupt(Event, tag="interrupt", frozen=True):
    """The user cut the agent short at `ts`; at most one of the three kinds of evidence comes with it."""

    turn_id: Natural | None = None
    heard_text: str | None = None
    heard_chars: Natural | None = None
    audio_end_ms: Natural | None = None
    estimated: bool = False
    cause: str | None = None


class Resume(Event, tag="resume", frozen=True):
    """The interruption was a false alarm; playback went on."""

    turn_id: Natural | None = None


class MessageEvent(Event, tag="message", frozen=True):
    """A whole message: a greeting, typed text, a silence reminder, a command, a restored one."""

    role: Literal["user", "assistant"]
    text: str
    source: Literal["asr", "message", "command", "llm", "greeting", "llm_failure", "silence"]
    turn_id: Natural | None = None
    user: Name | None = None


class ToolCall(Event, tag="tool.call", frozen=True):
    """The LLM calls a tool; `arguments` is any JSON (OpenAI sends it as a string of JSON)."""

    turn_id: Natural
    call_id: Name
    name: Name
    arguments: Any


class ToolResult(Event, tag="tool.result", frozen=True):
    """What a tool answered; `result` is any JSON."""

    turn_id: Natural
    call_id: Name
    result: Any
    name: Name | None = None


class Metric(Event, tag="metric", frozen=True):
    """A latency of the pipeline, in ms (asr_ttlw, llm_ttft, tts_ttfb, e2e …)."""

    turn_id: Natural
    name: Name
    latency_ms: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | Annotated[float, Meta(ge=0)]


class SessionUpdate(Event, tag="session.update", frozen=True):
    """Changes the configuration while the call runs: a merge patch, whose fields stand beside `type`."""

    name: Any = UNSET
    channel: Any = UNSET
    user_id: Any = UNSET
    labels: Any = UNSET
    llm: Any = UNSET
    system_messages: Any = UNSET
    interruptable: Any = UNSET
    webhook: Any = UNSET
    memory: Any = UNSET
    working_memory: Any = UNSET
    memory_from: Any = UNSET
    idle_timeout: Any = UNSET
    reopen_window: Any = UNSET
    max_duration: Any = UNSET
    ttl_seconds: Any = UNSET


class SessionEnd(Event, tag="session.end", frozen=True):
    """The call is over; `last_seq`, when given, is the seq before this event's own."""

    reason: str | None = None
    last_seq: Natural | None = None


class SessionClosed(Event, tag="session.closed", frozen=True):
    """The server's own: the session is closed at `ts`."""

    reason: str


class SessionReopened(Event, tag="session.reopened", frozen=True):
    """The server's own: a producer came back after an idle close, which is undone."""


class SessionGap(Event, tag="session.gap", frozen=True):
    """The server's own: `producer` can no longer send the events `from_seq` to `to_seq`, both included."""

    from_seq: SequenceNumber
    to_seq: SequenceNumber


class MemorySummary(Event, tag="memory.summary", frozen=True):
    """The server's own: a summary of all messages up to `through_turn`, and what an LLM took to write it, in tokens."""

    through_turn: TurnNumber
    text: str
    messages: Natural
    model: str | None = None
    input_tokens: Natural | None = None
    output_tokens: Natural | None = None


class MemoryDocument(Event, tag="memory.document", frozen=True):
    """The server's own: what was done to the working memory document of a session or a user.

    With `format` the document has a form of its own from here on. `content` is a text, or a JSON object.
    """

    operation: Literal["append", "replace", "clear", "form"]
    content: Any = None
    format: Literal["text", "markdown", "json"] | None = None
    template: str | None = None
    schema: JsonObject | None = None


class MemoryData(Event, tag="memory.data", frozen=True):
    """The server's own: the session's data were replaced, or changed by a merge patch (RFC 7396)."""

    operation: Literal["patch", "replace"]
    content: JsonObject


class MemoryForgotten(Event, tag="memory.forgotten", frozen=True):
    """The server's own: what stands in the history and in no context any more.

    These are all turns up to `through_turn`, also what still comes for them; or all turns before `turn`, and of that
    what began before this event at another position than one of `kept`.
    """

    through_turn: TurnNumber | None = None
    turn: TurnNumber | None = None
    kept: tuple[Natural, ...] = ()
    carried: bool = False
    """Whether what was carried over from earlier sessions is forgotten too."""


class CarriedSession(Struct, frozen=True):
    """What is carried over from an earlier session, as the LLM gets to read it."""

    session_id: SessionId
    text: str


class MemoryCarried(Event, tag="memory.carried", frozen=True):
    """The server's own: what the session knows from earlier ones of its user, the oldest first; journaled once."""

    sessions: tuple[CarriedSession, ...] = ()


class SessionForked(Event, tag="session.forked", frozen=True):
    """The server's own: everything before it was taken over from another session, up to a turn of that."""

    from_session: SessionId
    at_turn: TurnNumber
    forgotten_items: tuple[Name, ...] = ()
    """What still comes for these is nothing."""


class RefusalMarker(Event, tag="refused", frozen=True):
    """Stands in the journal for an event that could not be taken; its payload is not kept."""

    code: str


class SessionOpen(Event, tag="session.open", frozen=True):
    """Starts or resumes a session on a connection; it takes no seq and is not in the journal."""

    session: JsonObject | None = None
    from_seq: SequenceNumber | None = None


class Auth(Event, tag="auth", frozen=True):
    """A key in the first frame of a connection, for clients that cannot set headers."""

    token: str


ProducedEvent = (
    Asr
    | LlmDelta
    | LlmDone
    | LlmError
    | Tts
    | Interrupt
    | Resume
    | MessageEvent
    | ToolCall
    | ToolResult
    | Metric
    | SessionUpdate
    | SessionEnd
)
"""What a producer may send into a session."""
TranscriptEvent = (
    Asr | LlmDelta | LlmDone | LlmError | Tts | Interrupt | Resume | MessageEvent | ToolCall | ToolResult | Metric
)
"""What does nothing but stand in the journal: most of what producers send."""
ServerEvent = (
    SessionClosed
    | SessionReopened
    | SessionGap
    | MemorySummary
    | MemoryDocument
    | MemoryData
    | MemoryForgotten
    | MemoryCarried
    | SessionForked
)
"""What the server itself journals, besides configurations and what it takes over from another session."""
JournaledEvent = ProducedEvent | ServerEvent | RefusalMarker
"""What a journal may hold."""
IncomingEvent = ProducedEvent | SessionOpen | Auth
"""What may arrive on a connection."""
UPDATE_FIELDS = tuple(field for field in SessionUpdate.__struct_fields__ if field not in Event.__struct_fields__)


def update_patch(event: SessionUpdate) -> JsonObject:
    """The merge patch of the configuration that a `session.update` carries."""
    values = {field: getattr(event, field) for field in UPDATE_FIELDS}
    return {field: value for field, value in values.items() if not isinstance(value, UnsetType)}
