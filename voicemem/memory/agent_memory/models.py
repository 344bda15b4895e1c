"""What agent-memory-server's clients send and get. Unknown fields of theirs are ignored."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from voicemem.protocol.types import MAX_INTEGER, JsonObject, Name, Natural

Time = str | int | float
"""ISO 8601, or seconds since 1970."""
Flag = Literal["t", "f"]
MemoryType = Literal["semantic", "episodic", "message"]
Strategy = Literal["discrete", "summary", "preferences", "custom"]
Seconds = Annotated[int, Meta(ge=1, le=MAX_INTEGER // 1000)]


class GivenMessage(Struct, frozen=True):
    """A message of a working memory. Any role will do, and is kept."""

    role: Name
    content: str
    id: str | None = None
    created_at: Time | None = None
    persisted_at: Time | None = None
    discrete_memory_extracted: Flag = "f"


class GivenRecord(Struct, frozen=True):
    """A memory as a client writes it."""

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
    """How memories are to be extracted, as the client says."""

    strategy: Strategy = "discrete"
    config: JsonObject = {}


class GivenWorkingMemory(Struct, frozen=True):
    """A whole working memory, which takes the place of what stood there."""

    messages: tuple[GivenMessage, ...] | UnsetType = UNSET
    """Missing: the messages that stand, stay."""
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
        """The messages that are given, if any are."""
        return () if self.messages is UNSET else self.messages


class MessageView(Struct, frozen=True):
    """A message as clients read it; times are ISO 8601."""

    role: str
    content: str
    id: str
    created_at: str
    persisted_at: str | None
    discrete_memory_extracted: Flag


class RecordView(Struct, frozen=True, kw_only=True):
    """A memory as clients read it."""

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
    """In what a search finds: 1 less the score, at least 0."""
    score: float | UnsetType = UNSET
    score_type: str | UnsetType = UNSET


class WorkingMemoryView(Struct, frozen=True, kw_only=True):
    """A working memory as clients read it."""

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
    """A page of the clients' ids of sessions, the newest first, and how many there are in all (at most 10,000)."""

    sessions: list[str]
    total: int


class AgentMemoryAck(Struct, frozen=True):
    """The answer where there is nothing else to say."""

    status: str


class ServerTime(Struct, frozen=True):
    """The service's time, in seconds since 1970."""

    now: int
