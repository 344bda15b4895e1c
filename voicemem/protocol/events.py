"""The events of the protocol `voicemem.v1`, one frozen record each (docs/ingest.md).

Times named `ts` are Unix ms; times named `*_ms` in a reply or an utterance count from the start of its audio. An event
with an unknown field is refused on arrival; `codec.decode_journaled` reads one that an earlier version accepted.
"""

from typing import Annotated, Any, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType

from voicemem.protocol import memories
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
    """One word and when it is spoken, in ms from the start of its reply's or utterance's audio.

    Unknown fields are ignored here, because engines add fields of their own to words.
    """

    text: str
    """The word as in the text."""
    start_ms: Natural
    """When it begins, in ms from the beginning of that audio."""
    end_ms: Natural
    """When it ends, likewise."""


class Event(
    Struct, tag_field="type", kw_only=True, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True
):
    """The fields that every event may carry."""

    session_id: SessionId | None = None
    """The session, on a connection that opened several."""
    producer: Name | None = None
    """The name of its producer, where the session has several."""
    seq: SequenceNumber | None = None
    """Its number: a producer counts what it sends in a session, 1, 2, 3 and so on, over all connections."""
    ts: Integer | None = None
    """When it happened, in Unix ms; the time of receipt when missing."""
    id: Name | None = None
    """The event's id at its source; a repeat changes nothing."""
    item: Name | None = None
    """The sender's id of the utterance or reply."""
    metadata: JsonObject | None = None
    """The sender's own data, which is copied to the message."""


class TurnEvent(Event, kw_only=True, frozen=True):
    """The field of events that are about one turn."""

    turn_id: Natural | None = None
    """The number of the turn; without it, the turn follows from the item or from earlier events."""


class AgentEvent(TurnEvent, kw_only=True, frozen=True):
    """The field of events about an agent's generated text."""

    agent: Name | None = None
    """The agent, if there are several; it is copied to the metadata of the message."""


class Asr(TurnEvent, tag="asr", frozen=True):
    """The recogniser's current text of one segment; the text "" reserves the place of a late transcript."""

    text: str
    """All of the segment so far."""
    final: bool = False
    """True if the recogniser will not change it any more."""
    user: Name | None = None
    """Who spoke."""
    segment: Natural | None = None
    """The number of the segment within its item; without both, a final closes it and the next text opens one."""
    start_ms: Natural | None = None
    """When the segment began, in ms from the beginning of the utterance's audio."""
    end_ms: Natural | None = None
    """When it ended, likewise."""
    words: tuple[Word, ...] | None = None
    """Its words and their times."""
    language: str | None = None
    """Kept in the journal only, like `confidence`."""
    confidence: float | None = None
    """The recogniser's confidence, from 0 to 1."""


class LlmDelta(AgentEvent, tag="llm.delta", frozen=True):
    """The LLM generated more text; with `whole`, the text is all of the reply so far."""

    text: str
    """The added text, or with `whole` all so far."""
    whole: bool = False
    """True if `text` replaces what came before."""


class LlmDone(AgentEvent, tag="llm.done", frozen=True):
    """The LLM finished; `text`, when given, is the whole reply."""

    text: str | None = None
    """All of the reply; without it, the deltas are the reply."""


class LlmCancel(TurnEvent, tag="llm.cancel", frozen=True):
    """The reply never existed: it was generated ahead, and discarded before any of it was played."""


class LlmError(AgentEvent, tag="llm.error", frozen=True):
    """The LLM request failed; `text` is the failure message that was spoken."""

    text: str | None = None
    """The failure message that was spoken, if any."""
    code: str | int | None = None
    """The error's code from the LLM's server or your program."""


class Tts(TurnEvent, tag="tts", frozen=True):
    """Playback: progress (`heard_text`, `audio_ms`, `done`), or timing only (`words`, `total_audio_ms`)."""

    heard_text: str | None = None
    """The text that was played so far, from the beginning of the reply."""
    audio_ms: Natural | None = None
    """The playback position, in ms from the beginning of the reply's audio."""
    done: bool | None = None
    """True if the audio of the reply was played to its end; with a position, that is its length."""
    words: tuple[Word, ...] | None = None
    """More words of the reply, and when they sound."""
    total_audio_ms: Natural | None = None
    """The length of the audio synthesised so far, in ms from the beginning of the reply's audio."""
    synthesised_text: str | None = None
    """The text, from the beginning of the reply, whose audio `total_audio_ms` measures."""
    estimated: bool = False
    """True if these are the sender's guess."""


class Interrupt(TurnEvent, tag="interrupt", frozen=True):
    """The user cut the agent short at `ts`; each of the three kinds of evidence counts by itself."""

    heard_text: str | None = None
    """The text that was heard, from the beginning of the reply."""
    heard_chars: Natural | None = None
    """How many characters (code points) of the reply were heard."""
    audio_end_ms: Natural | None = None
    """Where playback stopped, in ms from the beginning of the reply's audio."""
    estimated: bool = False
    """True if these are the sender's guess."""
    cause: str | None = None
    """The cause, in the sender's words; kept for `/turns`."""
    more: bool = False
    """True if the reply had more text than was ever reported: it counts as cut even if playback reached the end."""


class Resume(TurnEvent, tag="resume", frozen=True):
    """The interruption was a false alarm; playback continued."""


class MessageEvent(AgentEvent, tag="message", frozen=True):
    """A whole message: a greeting, typed text, a silence reminder, a command, a restored one."""

    role: Literal["user", "assistant"]
    """Who said it."""
    text: str
    """All of it."""
    source: Literal["asr", "message", "command", "llm", "greeting", "llm_failure", "silence"]
    """The source of the words: for a user `asr`, `message` or `command`, for the agent any but `asr` and `message`."""
    user: Name | None = None
    """Who said it, if there are several users."""


class ToolCall(TurnEvent, tag="tool.call", frozen=True):
    """The LLM calls a tool; `arguments` is any JSON (OpenAI sends a string of JSON)."""

    call_id: Name
    """The call's id, which its result names."""
    name: Name
    """The tool."""
    arguments: Any
    """Any JSON."""


class ToolResult(TurnEvent, tag="tool.result", frozen=True):
    """The result of a tool call; `result` is any JSON."""

    call_id: Name
    """The id of the call that it answers."""
    result: Any
    """Any JSON."""
    name: Name | None = None
    """The tool."""


class Metric(TurnEvent, tag="metric", frozen=True):
    """A latency of the pipeline, in ms (asr_ttlw, llm_ttft, tts_ttfb, e2e …)."""

    name: Name
    """Which latency, such as `llm_ttft`, `tts_ttfb`; `e2e` is that of the whole turn."""
    latency_ms: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | Annotated[float, Meta(ge=0)]
    """How long it took, in ms."""


class SessionUpdate(Event, tag="session.update", frozen=True):
    """Changes the configuration during the call: a merge patch, whose fields are next to `type`."""

    name: Any = UNSET
    channel: Any = UNSET
    user_id: Any = UNSET
    labels: Any = UNSET
    recording: Any = UNSET
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
    memories_ttl_seconds: Any = UNSET


class SessionEnd(Event, tag="session.end", frozen=True):
    """The end of the call; `last_seq`, when given, is the seq directly before this event's own."""

    reason: str | None = None
    """Why; `ended` when missing."""
    last_seq: Natural | None = None
    """The seq directly before its own; another one is refused."""


class FrameEvent(Event, tag="frame", frozen=True, rename={"sender": "from"}):
    """A frame of another stack; the journal has the parts that its dialect keeps (docs/dialects.md).

    Without `frame` it has no content, and only its seq counts.
    """

    dialect: Name
    """The stack."""
    frame: Any = None
    """The vendor's frame."""
    sender: Literal["vendor", "app"] | None = None
    """Its sender, if the stack's frames do not name it."""


class SessionClosed(Event, tag="session.closed", frozen=True):
    """The server closed the session at `ts`."""

    reason: str


class SessionReopened(Event, tag="session.reopened", frozen=True):
    """The server undid an idle close, because a producer came back."""


class SessionGap(Event, tag="session.gap", frozen=True):
    """The server notes that `producer` can no longer send the events `from_seq` to `to_seq`, both included."""

    from_seq: SequenceNumber
    to_seq: SequenceNumber


class MemorySummary(Event, tag="memory.summary", frozen=True):
    """A summary, made by the server, of all messages up to `through_turn`, and the tokens that an LLM used for it."""

    through_turn: TurnNumber
    text: str
    messages: Natural
    model: str | None = None
    input_tokens: Natural | None = None
    output_tokens: Natural | None = None


class MemoryDocument(Event, tag="memory.document", frozen=True):
    """An operation on the working-memory document of a session or a user.

    With `format`, the document has its own form from then on. `content` is a text or a JSON object.
    """

    operation: Literal["append", "replace", "clear", "form"]
    content: Any = None
    format: Literal["text", "markdown", "json"] | None = None
    template: str | None = None
    schema: JsonObject | None = None


class MemoryData(Event, tag="memory.data", frozen=True):
    """A change of the session's data: a replacement, or a merge patch (RFC 7396)."""

    operation: Literal["patch", "replace"]
    content: JsonObject


class MemoryForgotten(Event, tag="memory.forgotten", frozen=True):
    """Messages that stay in the history, but are left out of every context from now on.

    Either all turns up to `through_turn`, with later events for them too; or all turns before `turn`, and the messages
    of `turn` that began before this event, except at the journal positions `kept`.
    """

    through_turn: TurnNumber | None = None
    turn: TurnNumber | None = None
    kept: tuple[Natural, ...] = ()
    carried: bool = False
    """True if the messages carried over from earlier sessions are forgotten too."""


class CarriedSession(Struct, frozen=True):
    """The part of an earlier session that is carried over, in the LLM's form."""

    session_id: SessionId
    text: str


class MemoryCarried(Event, tag="memory.carried", frozen=True):
    """Messages carried over from the user's earlier sessions, the oldest first; journaled once."""

    sessions: tuple[CarriedSession, ...] = ()


class MemoryAdded(Event, tag="memory.added", frozen=True, rename={"evidence": "from"}):
    """A new memory that lasts beyond the call. `metadata` is its author's own.

    The journal has only the hash of its text, which is stored apart so that it can be erased before its session.
    """

    memory_id: Name
    kind: memories.GivenKind
    text_sha256: memories.Digest
    text: str | None = None
    """Only in checkpoints."""
    namespace: str | None = None
    user_id: Name | None = None
    about_session: SessionId | None = None
    """The session that its author named, if it is not the session of this journal."""
    topics: memories.Topics = ()
    entities: memories.Topics = ()
    event_at: memories.EventTime | None = None
    """When the remembered event happened; `said_at` is when it was said, in Unix ms."""
    said_at: Integer | None = None
    expires_at: Natural | None = None
    confidence: memories.Confidence = 1.0
    evidence: memories.Evidences = ()
    source: memories.MemorySource = "api"
    strategy: Name | None = None
    """How it was extracted: by which strategy, which LLM, which version of the instructions."""
    model: Name | None = None
    version: Name | None = None
    supersedes: memories.MemoryIds = ()
    """Memories that this one makes obsolete."""
    same_as: Name | None = None
    pinned: bool = False


class MemoryEdited(Event, tag="memory.edited", frozen=True, rename={"evidence": "from"}):
    """A change of a memory; `metadata`, when given, replaces all of the old."""

    memory_id: Name
    kind: memories.GivenKind | UnsetType = UNSET
    text_sha256: memories.Digest | UnsetType = UNSET
    text: str | UnsetType = UNSET
    namespace: str | UnsetType | None = UNSET
    user_id: Name | UnsetType | None = UNSET
    about_session: SessionId | UnsetType | None = UNSET
    topics: memories.Topics | UnsetType = UNSET
    entities: memories.Topics | UnsetType = UNSET
    event_at: memories.EventTime | UnsetType | None = UNSET
    said_at: Integer | UnsetType | None = UNSET
    expires_at: Natural | UnsetType | None = UNSET
    confidence: memories.Confidence | UnsetType = UNSET
    evidence: memories.Evidences | UnsetType = UNSET
    supersedes: memories.MemoryIds | UnsetType = UNSET
    same_as: Name | UnsetType | None = UNSET
    pinned: bool | UnsetType = UNSET


class MemoryRemoved(Event, tag="memory.removed", frozen=True):
    """The server removed a memory, and its text with it."""

    memory_id: Name
    reason: memories.RemovalReason


class MemoriesExtracted(Event, tag="memory.extracted", frozen=True):
    """The server has extracted the memories of all messages up to a position, if there were any."""

    through: Natural
    strategy: Name
    version: Name
    model: Name | None = None
    input_tokens: Natural | None = None
    output_tokens: Natural | None = None
    added: tuple[Name, ...] = ()
    analysis: memories.Analysis = {}
    """Extracted values, which replace earlier ones of the same names."""


class SessionForked(Event, tag="session.forked", frozen=True):
    """The server copied everything before this event from another session, up to one of its turns."""

    from_session: SessionId
    at_turn: TurnNumber
    forgotten_items: tuple[Name, ...] = ()
    """Events that still arrive for these items are ignored."""


class UserLinked(Event, tag="user.linked", frozen=True):
    """The server linked the user's id and another one as the same person's.

    Both users' journals have it. Neither names the other id, which must vanish when that user is erased.
    """

    link_id: Name


class UserUnlinked(Event, tag="user.unlinked", frozen=True):
    """The server removed such a link, on request or because the other id was erased."""

    link_id: Name
    reason: Literal["removed", "erased"]


class RefusalMarker(Event, tag="refused", frozen=True):
    """The placeholder in the journal of a refused event, whose payload is not kept."""

    code: str


class SessionOpen(Event, tag="session.open", frozen=True):
    """Starts or resumes a session on a connection. It has no seq and is not journaled."""

    session: JsonObject | None = None
    """The configuration of a new session; for an existing one it is ignored."""
    from_seq: SequenceNumber | None = None
    """The lowest seq that the producer can still send, if it has lost events."""
    dialect: Name | None = None
    """The stack whose frames the producer sends, in envelopes, next to events."""


class Auth(Event, tag="auth", frozen=True):
    """A key in the first frame of a connection, for clients that cannot set headers."""

    token: str
    """An API key, or a session token."""


TranscriptEvent = (
    Asr
    | LlmDelta
    | LlmDone
    | LlmError
    | LlmCancel
    | Tts
    | Interrupt
    | Resume
    | MessageEvent
    | ToolCall
    | ToolResult
    | Metric
)
"""Events that change nothing but the journal: most events of producers."""
ProducedEvent = TranscriptEvent | SessionUpdate | SessionEnd | FrameEvent
"""Events that a producer may send into a session."""
ServerEvent = (
    SessionClosed
    | SessionReopened
    | SessionGap
    | MemorySummary
    | MemoryDocument
    | MemoryData
    | MemoryForgotten
    | MemoryCarried
    | MemoryAdded
    | MemoryEdited
    | MemoryRemoved
    | MemoriesExtracted
    | SessionForked
    | UserLinked
    | UserUnlinked
)
"""Events that only the server journals; it also journals `session.update`, and copies of other sessions' events."""
JournaledEvent = ProducedEvent | ServerEvent | RefusalMarker
"""Everything that a journal may hold."""
IncomingEvent = ProducedEvent | SessionOpen | Auth
"""Everything that may arrive on a connection."""


def kinds_by_type(kinds: Any) -> dict[str, type[Event]]:
    return {str(kind.__struct_config__.tag): kind for kind in get_args(kinds)}


UPDATE_FIELDS = tuple(field for field in SessionUpdate.__struct_fields__ if field not in Event.__struct_fields__)


def update_patch(event: SessionUpdate) -> JsonObject:
    """The merge patch of the configuration that a `session.update` carries."""
    values = {field: getattr(event, field) for field in UPDATE_FIELDS}
    return {field: value for field, value in values.items() if not isinstance(value, UnsetType)}
