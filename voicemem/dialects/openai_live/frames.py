"""Which events of OpenAI's Live API are kept, and which of their fields.

Audio is not counted: fragments of text have times. Of a session only its id is kept. Source: `openai.types.live` of
OpenAI's Python SDK.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from voicemem.dialects.dialect import Frame, MalformedFrame, RawFrame, Side
from voicemem.dialects.reading import Record, kept, kind_of, require_object
from voicemem.protocol.types import MAX_INTEGER, JsonObject

CALL, OUTPUT, MESSAGE = "function_call", "function_call_output", "message"


class Typed(Record, kw_only=True):
    """An event with its own id: all of the server's, and those of the client's that want one."""

    type: str
    event_id: str | None = None


class Session(Record):
    id: str | None = None


class SessionFrame(Typed):
    session: Session


class Fragment(Typed):
    """What was said in a range of the session's timeline."""

    delta: str
    start_ms: int
    end_ms: int


class Closed(Typed):
    reason: str = "closed"


class Delegation(Record):
    id: str
    target: str | None = None


class DelegationFrame(Typed):
    delegation: Delegation


class Commentary(Typed):
    content: str
    delegation_id: str | None = None


class Content(Record):
    type: str | None = None
    text: str | None = None


class Item(Record):
    """An item of the Responses API: a call of a function, its output, or what a user wrote."""

    type: str = MESSAGE
    id: str | None = None
    role: str | None = None
    status: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Any = None
    content: list[Content] | None = None


class ItemFrame(Typed):
    item: Item


class Nested(Record):
    """An event of the Responses API."""

    type: str
    item: Item | None = None


class ResponseFrame(Typed):
    event: Nested


class Key(Typed):
    """A key of a telephone."""

    event: str


class Kind(NamedTuple):
    """Who sends the events of a type, None where both do, and what is kept of them; None for what says nothing."""

    side: Side | None
    record: type[msgspec.Struct] | None


VENDOR_KINDS: dict[str, type[msgspec.Struct] | None] = {
    "session.started": SessionFrame,
    "session.input_transcript.delta": Fragment,
    "session.output_transcript.delta": Fragment,
    "session.delegation.created": DelegationFrame,
    "response.event": ResponseFrame,
    "transport.dtmf.received": Key,
    "session.closed": Closed,
}
APP_KINDS: dict[str, type[msgspec.Struct] | None] = {
    "session.commentary.append": Commentary,
    "response.item.create": ItemFrame,
}
SILENT_VENDOR = """
    session.updated session.input_audio.muted session.input_audio.unmuted session.output_audio.delta
    session.output_audio.fixture.playing session.output_audio.fixture.played session.instructions.appended
    session.thinking.appended session.commentary.appended decision.event decision.item.created decision.item.deleted
    session.usage.updated error info transport.dtmf.sent transport.ringing transport.answered transport.failed
""".split()  # noqa: SIM905 (a list would be a page long)
"""What the server sends that says nothing about the transcript, or says it again."""
SILENT_APP = """
    session.start session.update session.input_audio.mute session.input_audio.unmute session.output_audio.fixture.play
    session.instructions.append session.thinking.append decision.create decision.item.create decision.item.delete
    response.create session.close
""".split()  # noqa: SIM905 (a list would be a page long)
"""What the app sends that nobody said."""
SILENT_BOTH = ("session.input_audio.append", "transport.dtmf.send")
"""A sideband gets the audio that the app sends, and older servers confirm keys under the command's name."""
KINDS: dict[str, Kind] = {
    **{name: Kind("vendor", record) for name, record in VENDOR_KINDS.items()},
    **{name: Kind("app", record) for name, record in APP_KINDS.items()},
    **{name: Kind("vendor", None) for name in SILENT_VENDOR},
    **{name: Kind("app", None) for name in SILENT_APP},
    **{name: Kind(None, None) for name in SILENT_BOTH},
}


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """What is kept of an event. Raises `MalformedFrame`, `UnknownFrame`."""
    given = require_object(frame)
    name, kind = kind_of(given, KINDS)
    if side is not None and kind.side not in (None, side):
        raise MalformedFrame("The other side sends events of this type.")
    if kind.record is None:
        return None
    content = kept(kind.record, given)
    if kind.record is Fragment:
        check_times(content)
    says = {Commentary: "delegation_id", Fragment: "delta"}.get(kind.record)
    if says is not None and not content.get(says):
        return None
    if kind.record in (ResponseFrame, ItemFrame) and not keep_item(content, kind.record is ItemFrame):
        return None
    id = content.get("event_id")
    return Frame(
        content,
        id=id if id is None or kind.side == "vendor" else f"app/{id}",
        side=kind.side,
        session_id=content["session"].get("id") if name == "session.started" else None,
        end=content.get("reason", "closed") if name == "session.closed" else None,
        typed=kind.record is ItemFrame and content["item"].get("type", MESSAGE) == MESSAGE,
    )


def check_times(content: JsonObject) -> None:
    """Raises `MalformedFrame` for a range that cannot be."""
    if not 0 <= content["start_ms"] <= content["end_ms"] <= MAX_INTEGER:
        raise MalformedFrame("A fragment has start_ms and end_ms, in this order.")


def keep_item(content: JsonObject, by_app: bool) -> bool:
    """Leave of an item what a user wrote, or what a function of the app's was asked or answered, if it is one."""
    holder = content if by_app else content["event"]
    item = holder.get("item")
    if item is None:
        return False
    kind = item.get("type", MESSAGE)
    if by_app and kind == MESSAGE and item.get("role") == "user":
        content["item"] = {key: one for key, one in item.items() if key in ("id", "type", "role", "content")}
        return bool(written(item))
    if by_app and kind == OUTPUT and item.get("call_id"):
        content["item"] = {key: one for key, one in item.items() if key in ("type", "call_id", "output")}
        return True
    is_called = holder.get("type") == "response.output_item.done" and kind == CALL
    if not by_app and is_called and item.get("call_id") and item.get("name"):
        holder["item"] = {key: one for key, one in item.items() if key in ("type", "call_id", "name", "arguments")}
        return True
    return False


def written(item: JsonObject) -> str:
    """What a user wrote in an item."""
    parts = item.get("content") or ()
    return "\n".join(part["text"] for part in parts if part.get("type") == "input_text" and part.get("text"))
