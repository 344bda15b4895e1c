"""The types that agent-memory-server's clients send and get, and the conversion of their memories to ours and back.

Unknown fields from clients are ignored. Times are ISO 8601 text on the wire.
"""

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, convert, structs, to_builtins

from voicemem.errors import Refused
from voicemem.memory.long_term.records import GivenMemory, Memory, MemoryDraft, MemoryPatch
from voicemem.protocol.arguments import converted
from voicemem.protocol.comparison import HIDDEN
from voicemem.protocol.memories import GivenKind
from voicemem.protocol.types import MAX_INTEGER, JsonObject, Name, Natural

MESSAGE_TOPIC = "agentmemorymessage"
"""The topic of memories of the type `message`, which has no kind. One word, so that no query finds it by chance."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
FUTURE_MS = 300_000
"""How far the time of a message may be in the future: clocks differ."""
Time = str | int | float
"""ISO 8601, or seconds since 1970."""
Flag = Literal["t", "f"]
MemoryType = Literal["semantic", "episodic", "message"]
Strategy = Literal["discrete", "summary", "preferences", "custom"]
Seconds = Annotated[int, Meta(ge=1, le=MAX_INTEGER // 1000)]
KEPT = "agent_memory"
"""The key in a memory's metadata for fields that voicemem has no place for."""
KINDS: dict[str, GivenKind] = {"semantic": "fact", "episodic": "episode", "message": "fact"}


def parse_time(value: str | float, field: str) -> datetime:
    """Parse a time: ISO 8601 or Unix seconds. Raises `Refused` (`invalid_field`) that names the field."""
    try:
        if not isinstance(value, str):
            return EPOCH + timedelta(seconds=value)
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Refused(
            "invalid_field", f"`{field}` must be a date that exists, in ISO 8601, such as 2026-05-03T14:30:00Z."
        ) from None


def to_ms(moment: datetime) -> int:
    """Return Unix ms, rounded down."""
    return (moment - EPOCH) // MILLISECOND


def from_ms(ms: int) -> datetime:
    """Return the moment of Unix ms, or the nearest one that a date can represent."""
    try:
        return EPOCH + ms * MILLISECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if ms > 0 else datetime.min.replace(tzinfo=UTC)


def format_time(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def iso(time: Time | None, field: str) -> str | None:
    """Return a client's time in our form. Raises as `parse_time`."""
    return None if time is None else format_time(parse_time(time, field))


def format_ms(ms: int) -> str:
    return format_time(from_ms(ms))


def shown(time: str | None) -> str | None:
    """Return a stored time, unless digits of it are hidden (docs/redaction.md)."""
    return None if time is None or HIDDEN in time else time


class GivenMessage(Struct, frozen=True):
    """A message of a working memory. Any role is accepted and kept."""

    role: Name
    content: str
    id: str | None = None
    created_at: Time | None = None
    persisted_at: Time | None = None
    discrete_memory_extracted: Flag = "f"


class GivenRecord(Struct, frozen=True):
    """A memory that a client sends."""

    text: str
    id: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    namespace: str | None = None
    last_accessed: Time | None = None
    created_at: Time | None = None
    updated_at: Time | None = None
    pinned: bool = False
    access_count: Natural = 0
    topics: tuple[str, ...] | None = None
    entities: tuple[str, ...] | None = None
    memory_hash: str | None = None
    discrete_memory_extracted: Flag | None = None
    memory_type: MemoryType | None = None
    persisted_at: Time | None = None
    extracted_from: tuple[str, ...] | None = None
    event_date: Time | None = None
    extraction_strategy: str | None = None
    extraction_strategy_config: JsonObject | None = None
    metadata: JsonObject | None = None


class StrategyConfig(Struct, frozen=True):
    """The extraction strategy that a client chooses."""

    strategy: Strategy = "discrete"
    config: JsonObject = {}


class GivenWorkingMemory(Struct, frozen=True):
    """A whole working memory, which replaces the current one."""

    messages: tuple[GivenMessage, ...] | UnsetType = UNSET
    """Missing: the current messages stay."""
    memories: tuple[GivenRecord, ...] = ()
    data: JsonObject | None = None
    context: str | None = None
    user_id: str | None = None
    namespace: str | None = None
    tokens: Natural = 0
    long_term_memory_strategy: StrategyConfig = StrategyConfig()
    ttl_seconds: Seconds | None = None
    last_accessed: Time | None = None

    @property
    def named_messages(self) -> tuple[GivenMessage, ...]:
        return () if self.messages is UNSET else self.messages


class MessageView(Struct, frozen=True):
    """A message in answers; times are ISO 8601."""

    role: str
    content: str
    id: str
    created_at: str
    persisted_at: str | None
    discrete_memory_extracted: Flag


class RecordView(Struct, frozen=True, kw_only=True):
    """A memory in answers."""

    id: str
    text: str
    session_id: str | None = None
    user_id: str | None = None
    namespace: str | None = None
    last_accessed: str
    created_at: str
    updated_at: str
    pinned: bool = False
    access_count: int = 0
    topics: tuple[str, ...] | None = None
    entities: tuple[str, ...] | None = None
    memory_hash: str | None = None
    discrete_memory_extracted: Flag = "t"
    memory_type: MemoryType = "semantic"
    persisted_at: str | None = None
    extracted_from: tuple[str, ...] | None = None
    event_date: str | None = None
    extraction_strategy: str = "discrete"
    extraction_strategy_config: JsonObject = {}
    metadata: JsonObject | None = None
    dist: float | UnsetType = UNSET
    """The distance, in search results: 1 minus the score, at least 0."""
    score: float | UnsetType = UNSET
    score_type: str | UnsetType = UNSET


class WorkingMemoryView(Struct, frozen=True, kw_only=True):
    """A working memory in answers."""

    messages: list[MessageView]
    memories: list[RecordView]
    data: JsonObject
    context: str | None
    user_id: str | None
    tokens: int
    session_id: str
    namespace: str | None
    long_term_memory_strategy: StrategyConfig
    ttl_seconds: int | None
    last_accessed: str
    created_at: str
    updated_at: str
    context_percentage_total_used: float | None = None
    context_percentage_until_summarization: float | None = None


class SessionList(Struct, frozen=True):
    """A page of the clients' session ids, the newest first, and the total number (at most 10,000)."""

    sessions: list[str]
    total: int


class AgentMemoryAck(Struct, frozen=True):
    """The answer of routes that return nothing else."""

    status: str


class ServerTime(Struct, frozen=True):
    """The service's time, in seconds since 1970."""

    now: int


class KeptRecord(Struct, frozen=True, omit_defaults=True):
    """Fields of a client's memory that are kept in its metadata."""

    session_id: str | None = None
    """The client's id of its session, if ours has another."""
    created_at: str | None = None
    """To the microsecond."""
    last_accessed: str | None = None
    extracted_from: tuple[str, ...] | None = None
    extraction_strategy: str | None = None
    extraction_strategy_config: JsonObject | None = None
    metadata: JsonObject | None = None


class RecordPatch(Struct, frozen=True):
    """A change to a memory. As in agent-memory-server, null changes nothing."""

    text: str | UnsetType | None = UNSET
    topics: tuple[str, ...] | UnsetType | None = UNSET
    entities: tuple[str, ...] | UnsetType | None = UNSET
    memory_type: MemoryType | UnsetType | None = UNSET
    namespace: str | UnsetType | None = UNSET
    user_id: str | UnsetType | None = UNSET
    session_id: str | UnsetType | None = UNSET
    event_date: Time | UnsetType | None = UNSET
    pinned: bool | UnsetType | None = UNSET

    @property
    def fields(self) -> JsonObject:
        return {name: value for name, value in structs.asdict(self).items() if value not in (UNSET, None)}


def check_record(record: GivenRecord) -> None:
    """Raise `Refused` for a memory without id or text, and for dates that do not exist."""
    if not record.id:
        raise Refused("invalid_field", "id is required for all memory records.")
    if not record.text.strip():
        raise Refused("invalid_field", f"A memory record has empty text (ID: {record.id}).")
    if MESSAGE_TOPIC in (record.topics or ()):
        raise Refused("invalid_field", f"The topic {MESSAGE_TOPIC} is voicemem's own.")
    for name in ("created_at", "last_accessed", "updated_at", "persisted_at", "event_date"):
        iso(getattr(record, name), name)


def draft_of(record: GivenRecord, session_id: str | None, kind: MemoryType = "semantic") -> MemoryDraft:
    """Convert a client's memory; `session_id` is ours, `kind` its default type. Raises `Refused` (`invalid_field`)."""
    kind = record.memory_type or kind
    created = None if record.created_at is None else parse_time(record.created_at, "created_at")
    exact = None if created is None or format_ms(to_ms(created)) == format_time(created) else format_time(created)
    kept = KeptRecord(
        session_id=record.session_id if record.session_id != session_id else None,
        created_at=exact,
        last_accessed=iso(record.last_accessed, "last_accessed"),
        extracted_from=record.extracted_from,
        extraction_strategy=record.extraction_strategy,
        extraction_strategy_config=record.extraction_strategy_config or None,
        metadata=record.metadata,
    )
    topics = record.topics or ()
    draft = MemoryDraft(
        text=record.text,
        kind=KINDS[kind],
        id=record.id,
        user_id=record.user_id or None,
        namespace=record.namespace or None,
        session_id=session_id,
        topics=(*topics, MESSAGE_TOPIC) if kind == "message" else topics,
        entities=record.entities or (),
        event_at=iso(record.event_date, "event_date"),
        pinned=record.pinned,
        metadata=None if kept == KeptRecord() else {KEPT: to_builtins(kept)},
        created_ms=None if created is None else to_ms(created),
    )
    converted({name: getattr(draft, name) for name in GivenMemory.__struct_fields__}, GivenMemory)
    return draft


def echo_of(id: str, patch: RecordPatch, now_ms: int) -> RecordView:
    """Return a changed memory for a client that may not read it: only the fields that it has just sent."""
    fields = patch.fields
    if "event_date" in fields:
        fields["event_date"] = iso(fields["event_date"], "event_date")
    now = format_ms(now_ms)
    return RecordView(**{"text": "", **fields}, id=id, last_accessed=now, created_at=now, updated_at=now)


def says_the_same(record: GivenRecord, memory: Memory) -> bool:
    view = view_of(memory)
    kind, event_date = record.memory_type or "message", iso(record.event_date, "event_date")
    said = record.text, record.topics or None, record.entities or None, kind, event_date
    return said == (view.text, view.topics, view.entities, view.memory_type, view.event_date)


def kept_of(memory: Memory) -> KeptRecord:
    value = (memory.metadata or {}).get(KEPT)
    return convert(value, KeptRecord) if isinstance(value, dict) else KeptRecord()


def type_of(memory: Memory) -> MemoryType:
    if memory.kind == "episode":
        return "episodic"
    return "message" if MESSAGE_TOPIC in memory.topics else "semantic"


def strategy_of(memory: Memory) -> str:
    return kept_of(memory).extraction_strategy or memory.strategy or "discrete"


def view_of(memory: Memory, score: float | None = None) -> RecordView:
    kept = kept_of(memory)
    topics = tuple(topic for topic in memory.topics if topic != MESSAGE_TOPIC)
    accessed = shown(kept.last_accessed) or format_ms(memory.created_at)
    parts = (memory.text, memory.user_id, memory.session_id, memory.namespace, type_of(memory))
    heard_in = tuple(f"{one.session_id}:{turn}" for one in memory.evidence for turn in one.turn_ids)
    fit: dict[str, Any] = {} if score is None else {"dist": 1.0 - score, "score": score, "score_type": "words"}
    same = ("id", "text", "user_id", "namespace", "pinned", "access_count")
    return RecordView(
        **{name: getattr(memory, name) for name in same},
        session_id=kept.session_id or memory.session_id,
        last_accessed=accessed if memory.last_accessed is None else format_ms(memory.last_accessed),
        created_at=shown(kept.created_at) or format_ms(memory.created_at),
        updated_at=format_ms(memory.updated_at),
        topics=topics or None,
        entities=memory.entities or None,
        memory_hash=sha256("\0".join(part or "" for part in parts).encode()).hexdigest(),
        memory_type=type_of(memory),
        persisted_at=format_ms(memory.updated_at),
        extracted_from=kept.extracted_from or heard_in or None,
        event_date=iso(memory.event_at, "event_date"),
        extraction_strategy=strategy_of(memory),
        extraction_strategy_config=kept.extraction_strategy_config or {},
        metadata=kept.metadata,
        **fit,
    )


def patch_of(patch: RecordPatch, memory: Memory, session_id: str | UnsetType | None) -> MemoryPatch:
    """Convert a client's patch; `session_id` is our id. Raises `Refused` (`invalid_field`) for an empty one."""
    fields = patch.fields
    if not fields:
        raise Refused("invalid_field", "No fields provided for update.")
    changed: dict[str, Any] = {
        name: fields[name] for name in ("text", "entities", "namespace", "user_id", "pinned") if name in fields
    }
    kept = kept_of(memory)
    if "session_id" in fields:
        changed["session_id"] = session_id
        kept = structs.replace(kept, session_id=fields["session_id"] if session_id != fields["session_id"] else None)
    if "event_date" in fields:
        changed["event_at"] = iso(fields["event_date"], "event_date")
    if "memory_type" in fields:
        changed["kind"] = KINDS[fields["memory_type"]]
    if "topics" in fields or "memory_type" in fields:
        topics = fields.get("topics", tuple(topic for topic in memory.topics if topic != MESSAGE_TOPIC))
        is_message = fields.get("memory_type", type_of(memory)) == "message"
        changed["topics"] = (*topics, MESSAGE_TOPIC) if is_message else tuple(topics)
    if kept != kept_of(memory):
        others = {name: value for name, value in (memory.metadata or {}).items() if name != KEPT}
        changed["metadata"] = others | {KEPT: to_builtins(kept)}
    return converted(changed, MemoryPatch, nulls=True)
