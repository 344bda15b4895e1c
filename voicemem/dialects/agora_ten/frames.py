"""Which messages of Agora's engine are kept, and which of their fields.

They come as objects, or as texts `MESSAGE_ID|PART|PARTS|BASE64`. What a part holds cannot be read before all
are there, so parts are kept as they are.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from voicemem.dialects.agora_ten.collector import UNIX_MS, is_collected, reduced_text
from voicemem.dialects.dialect import Frame, MalformedFrame, RawFrame, Side
from voicemem.dialects.reading import Record, kept, kind_of
from voicemem.errors import InvalidFrame
from voicemem.protocol.strict_json import JSON_DECODER, MALFORMED, check_frame
from voicemem.protocol.types import JsonObject

MAX_PARTS = 64
MAX_PART = 4096
"""Characters of one part, and of a message's id at most 64."""
MAX_MESSAGE_BYTES = 1 << 20
PART = "part"
UNKNOWN_NUMBER = "???"


class Part(Record):
    """A piece of a message that was too long for one; its content cannot be read before all are there."""

    id: str
    index: int
    data: str
    parts: int | None = None


class PartFrame(Record):
    part: Part


class UserText(Record):
    object: str
    text: str
    turn_id: int
    final: bool = False
    user_id: str | None = None
    message_id: str | None = None
    send_ts: int | None = None


class Word(Record):
    word: str
    start_ms: int
    duration_ms: int = 0


class AgentText(Record):
    object: str
    text: str
    turn_id: int
    turn_seq_id: int | None = None
    turn_status: int | None = None
    words: list[Word] | None = None
    message_id: str | None = None
    send_ts: int | None = None


class Interruption(Record):
    object: str
    turn_id: int
    start_ms: int
    message_id: str | None = None
    send_ts: int | None = None


class Latency(Record):
    object: str
    module: str
    metric_name: str
    latency_ms: float
    turn_id: int | None = None
    message_id: str | None = None
    send_ts: int | None = None


KINDS: dict[str, type[msgspec.Struct] | None] = {
    "user.transcription": UserText,
    "assistant.transcription": AgentText,
    "message.interrupt": Interruption,
    "message.metrics": Latency,
    **dict.fromkeys(
        """
        user.translation turn.finished message.error message.info message.sal_status message.state message.user
        state.listening state.thinking state.speaking image.upload user.manual_sos.result user.manual_eos.result
        assistant.manual_eos.result
        """.split()  # noqa: SIM905 (a list would be a page long)
    ),
}


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """What is kept of a frame. Raises `MalformedFrame`, `UnknownFrame`."""
    if side == "app":
        raise MalformedFrame("The app sends no frames of this dialect.")
    if isinstance(frame, dict):
        return reduced_part(frame) if PART in frame else reduced(frame)
    if not isinstance(frame, str | bytes):
        raise MalformedFrame("A frame of this dialect is an object, or a text.")
    part = part_of(frame)
    return reduced(decoded(part.data)) if part.parts == 1 else reduced_part({PART: msgspec.to_builtins(part)})


def reduced(frame: JsonObject) -> Frame | None:
    """What is kept of a message."""
    if is_collected(frame):
        return reduced_text(frame)
    field = "object" if "object" in frame else "event_type"
    _, record = kind_of(frame, KINDS, field)
    if record is None:
        return None
    content = kept(record, frame)
    sent = content.get("send_ts")
    id = content.get("message_id")
    if id is not None:
        # Nobody promises that an update has another id than the text that it updates.
        said = (
            content.get("turn_seq_id"),
            content.get("turn_status"),
            content.get("final"),
            len(content.get("text", "")),
        )
        id = "/".join([id, *(str(one) for one in said if one is not None)])
    return Frame(content, id=id, ts=sent if sent is not None and sent >= UNIX_MS else None, side="vendor")


def reduced_part(frame: JsonObject) -> Frame:
    """A part of a message, which waits for the others."""
    content = kept(PartFrame, frame)
    part = content[PART]
    bounds = (len(part["id"]) <= 64, len(part["data"]) <= MAX_PART, 1 <= part["index"] <= part.get("parts", MAX_PARTS))
    if not all(bounds) or part.get("parts", 1) > MAX_PARTS:
        raise MalformedFrame("A part of a message has another form.")
    return Frame(content, id=f"{part['id']}/{part['index']}", side="vendor")


def part_of(frame: str | bytes) -> Part:
    """The part that a message of the data stream is. Raises `MalformedFrame`."""
    try:
        fields = (frame if isinstance(frame, str) else frame.decode()).split("|")
        id, index, parts, data = fields
        return Part(id, int(index[:6]), data, None if parts == UNKNOWN_NUMBER else int(parts[:6]))
    except ValueError:
        raise MalformedFrame("A text of this dialect is ID|PART|PARTS|BASE64.") from None


def decoded(data: str) -> JsonObject:
    """The object that the parts of a message hold. Raises `MalformedFrame`."""
    try:
        text = base64.b64decode(data, validate=True)
        check_frame(text, MAX_MESSAGE_BYTES)
        value = JSON_DECODER.decode(text)
    except (binascii.Error, ValueError, InvalidFrame, msgspec.ValidationError, *MALFORMED):
        raise MalformedFrame("The parts of a message hold no JSON.") from None
    if not isinstance(value, dict):
        raise MalformedFrame("A message of this dialect is a JSON object.")
    return value
