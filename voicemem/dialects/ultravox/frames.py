"""Which data messages of Ultravox are kept, and which of their fields.

A data connection may carry audio too, of the caller and the agent together: it says nothing. The end of a call, as a
webhook says it, is a frame of the same stream (`webhook` makes it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from voicemem.dialects.dialect import Frame, MalformedFrame, RawFrame, Side
from voicemem.dialects.reading import Record, bytes_of, kept, kind_of, require_object
from voicemem.protocol.types import MAX_INTEGER, JsonObject

ENDED = "call.ended"
"""The end of the call, as a webhook says it."""
USUAL_REASON = "ended"


class Typed(Record, kw_only=True):
    type: str


class CallStarted(Typed, rename="camel"):
    call_id: str


class State(Typed):
    state: str


class Transcript(Typed):
    role: str
    ordinal: int
    final: bool = False
    medium: str | None = None
    text: str | None = None
    delta: str | None = None


class Invocation(Typed, rename="camel"):
    tool_name: str
    invocation_id: str
    parameters: Any = None


class Result(Typed, rename="camel"):
    invocation_id: str
    result: Any = None
    error_type: str | None = None
    error_message: str | None = None


class TypedText(Typed):
    text: str


class Ended(Typed, rename="camel"):
    call_id: str
    end_reason: str | None = None
    ts: int | None = None
    """When the call ended, Unix ms."""


class Kind(NamedTuple):
    """Who sends the messages of a type, what is kept of them (None: nothing), and which id of its own one has."""

    side: Side
    record: type[Typed] | None
    id: Callable[[JsonObject], str | None] = lambda frame: None


def invocation(frame: JsonObject) -> str:
    return str(frame["invocationId"])


SILENT_VENDOR = ("call_event", "debug", "pong", "room_info")
"""What Ultravox sends that nobody says; `room_info` has a token."""
SILENT_APP = ("forced_agent_message", "hang_up", "ping", "set_output_medium")
"""What the app sends that nobody says, or that comes back in a transcript."""
KINDS: dict[str, Kind] = {
    "call_started": Kind("vendor", CallStarted, lambda frame: str(frame["callId"])),
    "transcript": Kind("vendor", Transcript),
    "state": Kind("vendor", State),
    "playback_clear_buffer": Kind("vendor", Typed),
    "client_tool_invocation": Kind("vendor", Invocation, invocation),
    "data_connection_tool_invocation": Kind("vendor", Invocation, invocation),
    ENDED: Kind("vendor", Ended, lambda frame: str(frame["callId"])),
    "client_tool_result": Kind("app", Result, invocation),
    "data_connection_tool_result": Kind("app", Result, invocation),
    "user_text_message": Kind("app", TypedText),
    "input_text_message": Kind("app", TypedText),
    **{name: Kind("vendor", None) for name in SILENT_VENDOR},
    **{name: Kind("app", None) for name in SILENT_APP},
}


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """What is kept of a message. Raises `MalformedFrame`, `UnknownFrame`."""
    if bytes_of(frame) is not None:
        return None
    given = require_object(frame)
    name, kind = kind_of(given, KINDS)
    if side not in (None, kind.side):
        raise MalformedFrame("The other side sends messages of this type.")
    if kind.record is None:
        return None
    content = kept(kind.record, given)
    if kind.record is Transcript and not is_worth_a_row(content):
        return None
    if kind.record is TypedText and not content["text"].strip():
        return None
    if not 0 <= content.get("ts", 0) <= MAX_INTEGER:
        raise MalformedFrame("There is no such time.")
    id = kind.id(content)
    return Frame(
        content,
        id=None if id is None else f"{name}/{id}",
        ts=content.get("ts"),
        side=kind.side,
        session_id=content.get("callId"),
        end=content.get("endReason", USUAL_REASON) if kind.record is Ended else None,
        typed=kind.record is TypedText or is_typed(content),
    )


def is_worth_a_row(content: JsonObject) -> bool:
    """Whether a transcript says anything. Raises `MalformedFrame`."""
    if content["role"] not in ("user", "agent"):
        raise MalformedFrame("A transcript is the user's or the agent's.")
    if not 0 <= content["ordinal"] <= MAX_INTEGER:
        raise MalformedFrame("There is no such ordinal.")
    return bool(content.get("text") or content.get("delta") or content.get("final"))


def is_typed(content: JsonObject) -> bool:
    """Whether a transcript is of a text that the user has typed."""
    return content.get("role") == "user" and content.get("medium") == "text"
