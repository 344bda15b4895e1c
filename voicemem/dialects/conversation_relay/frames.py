"""Which frames of ConversationRelay are kept, and which of their fields."""

from __future__ import annotations

from typing import NamedTuple

from voicemem.dialects.dialect import Frame, MalformedFrame, RawFrame, Side
from voicemem.dialects.reading import Record, kept, kind_of, require_object
from voicemem.protocol.types import MAX_INTEGER, JsonObject

ENDED_BY_APP = "end"
"""The reason of a session that the app has ended."""


class Typed(Record, kw_only=True):
    type: str


class Setup(Typed, rename="camel"):
    call_sid: str | None = None
    session_id: str | None = None


class Prompt(Typed, rename="camel"):
    voice_prompt: str
    last: bool | None = None


class Token(Typed):
    token: str
    last: bool | None = None


class Interruption(Typed, rename="camel"):
    utterance_until_interrupt: str | None = None
    duration_until_interrupt_ms: int | float | str | None = None


class Key(Typed):
    digit: str


class Info(Typed):
    name: str
    value: str | None = None


class Kind(NamedTuple):
    """Who sends the frames of a type, and what is kept of them; None for what says nothing."""

    side: Side
    record: type[Typed] | None


KINDS: dict[str, Kind] = {
    "setup": Kind("vendor", Setup),
    "prompt": Kind("vendor", Prompt),
    "interrupt": Kind("vendor", Interruption),
    "dtmf": Kind("vendor", Key),
    "info": Kind("vendor", Info),
    "error": Kind("vendor", None),
    "text": Kind("app", Token),
    "end": Kind("app", Typed),
    "play": Kind("app", None),
    "sendDigits": Kind("app", None),
    "language": Kind("app", None),
}


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """What is kept of a frame. Raises `MalformedFrame`, `UnknownFrame`."""
    given = require_object(frame)
    name, kind = kind_of(given, KINDS)
    if side not in (None, kind.side):
        raise MalformedFrame("The other side sends frames of this type.")
    if kind.record is None or (name == "info" and given.get("name") != "agentSpeaking"):
        return None
    content = kept(kind.record, given)
    session_id = None
    if name == "setup":
        session_id = content.get("callSid") or content.get("sessionId")
        content = {"type": name} | ({} if session_id is None else {"callSid": session_id})
    elif name == "interrupt":
        content = with_whole_duration(content)
    return Frame(content, side=kind.side, session_id=session_id, end=ENDED_BY_APP if name == "end" else None)


def with_whole_duration(content: JsonObject) -> JsonObject:
    """An interruption whose duration is an integer; older ones of Twilio's have a text."""
    duration = content.pop("durationUntilInterruptMs", None)
    try:
        duration_ms = None if duration is None else int(float(duration))
    except (ValueError, OverflowError):
        duration_ms = None
    if duration_ms is None or not 0 <= duration_ms <= MAX_INTEGER:
        return content
    return content | {"durationUntilInterruptMs": duration_ms}
