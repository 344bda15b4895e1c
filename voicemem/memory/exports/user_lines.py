"""The lines of an export of a user, by their `type` (docs/privacy.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct, field

from voicemem.documents.document import Operation
from voicemem.memory.long_term.memory import Memory
from voicemem.protocol.types import JsonObject, SessionId
from voicemem.sessions.session_info import StateName
from voicemem.transcript.messages import Role

AnyJson = Annotated[Raw, Meta(extra_json_schema={})]


class ExportBegin(Struct, frozen=True, tag="export"):
    """The first line: whose export this is, when it was made (Unix ms), and of how many sessions."""

    version: Literal[1]
    user_id: str
    project: str
    made_at: int
    sessions: int


class ExportedDocument(Struct, frozen=True, tag="document"):
    """A version of a working memory document, and what made it; without a session it is the user's own."""

    session_id: SessionId | None
    version: int
    operation: Operation
    updated_at: int
    format: str | None
    content: str | JsonObject | None


class ExportedSession(Struct, frozen=True, tag="session"):
    """A session; what follows up to the next line of this type belongs to it."""

    session_id: SessionId
    state: StateName
    reason: str | None
    started_at: int
    ended_at: int | None
    position: int
    config: Annotated[JsonObject, Meta(extra_json_schema={"type": "object"})]


class ExportedMessage(Struct, frozen=True, tag="message"):
    """A message of its history. `content` is what was heard; `metadata.original` has what was not heard as well."""

    session_id: SessionId
    role: Role
    content: str
    turn_id: int
    timestamp: int
    metadata: JsonObject


class ExportedToolCall(Struct, frozen=True, tag="tool_call"):
    """A tool call; `result` is null until one has arrived."""

    session_id: SessionId
    turn_id: int
    timestamp: int
    call_id: str
    name: str
    arguments: AnyJson
    result: AnyJson


class ExportedSummary(Struct, frozen=True, tag="summary"):
    """What an LLM wrote in place of the turns up to this one; also one that another has replaced."""

    session_id: SessionId
    through_turn: int
    text: str
    model: str | None


class ExportedCarriedSession(Struct, frozen=True, tag="carried"):
    """What a session knows from an earlier one (`from`), which may have been erased since."""

    session_id: SessionId
    earlier: SessionId = field(name="from")
    text: str


class ExportedMemory(Memory, frozen=True, kw_only=True, rename={"evidence": "from"}, tag="memory"):
    """A memory that lasts beyond its call, also one that is out of date or over; in the form of its own route."""


class ExportedData(Struct, frozen=True, tag="data"):
    """The data of a session."""

    session_id: SessionId
    content: JsonObject


class ExportedDelivery(Struct, frozen=True, tag="delivery"):
    """A webhook event about a session: whom it went to, and what became of it."""

    session_id: SessionId
    receiver: str
    event_type: int
    state: Literal["pending", "delivered", "failed"]
    attempts: int


class ExportedEvent(Struct, frozen=True, tag="event"):
    """An entry of the journal, as it was taken."""

    session_id: SessionId
    position: int
    producer: str | None
    received_ms: int
    event: AnyJson


class Unreadable(Struct, frozen=True, tag="unreadable"):
    """A part of the user's data is stored, but cannot be read; an operator has to look at it."""

    session_id: SessionId | None
    part: Literal["memory", "events"]


class ExportEnd(Struct, frozen=True, tag="end"):
    """The last line, without which an export is cut short. `lines` counts those before it."""

    lines: int
    sessions: int
    messages: int
    memories: int
    unreadable: int


ExportLine = (
    ExportBegin
    | ExportedDocument
    | ExportedSession
    | ExportedMessage
    | ExportedToolCall
    | ExportedSummary
    | ExportedCarriedSession
    | ExportedMemory
    | ExportedData
    | ExportedDelivery
    | ExportedEvent
    | Unreadable
    | ExportEnd
)
