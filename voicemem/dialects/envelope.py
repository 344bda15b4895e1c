"""From a message to the frame in it: bare, or in an envelope with its time, sender and number (docs/dialects.md)."""

from __future__ import annotations

from typing import Any

import msgspec

from voicemem.dialects.dialect import MalformedFrame
from voicemem.dialects.registry import DIALECTS
from voicemem.errors import InvalidFrame, Refused
from voicemem.protocol.codec import RejectedEvent, decode_header
from voicemem.protocol.events import FrameEvent
from voicemem.protocol.strict_json import JSON_DECODER, MALFORMED, check_frame, replace_nul

MAX_DIALECT_FRAME_BYTES = 16 * 1024 * 1024
"""Larger than other frames may be: images and long audio are dropped before anything is kept."""
BAD_ENVELOPE = "An envelope has a frame, and may have ts, from, seq, id, session_id and producer."


def decode_message(message: bytes, binary: bool, dialect: str) -> FrameEvent | RejectedEvent:
    """The frame of one message, which is bare or an envelope. Raises `MalformedFrame` for JSON beyond the limits."""
    return decode_value(message if binary else read_value(message), message, dialect)


def read_value(message: bytes) -> Any:
    """What a text message says: its JSON, or the text where it is none. Raises `MalformedFrame` beyond the limits."""
    try:
        check_frame(message, MAX_DIALECT_FRAME_BYTES)
    except InvalidFrame as error:
        raise MalformedFrame(error.detail) from None
    try:
        return JSON_DECODER.decode(replace_nul(message))
    except Refused as error:
        raise MalformedFrame(error.detail) from None
    except msgspec.ValidationError:
        raise MalformedFrame("A number of the frame is out of range.") from None
    except MALFORMED:
        return message.decode()


def decode_value(value: Any, text: bytes, dialect: str) -> FrameEvent | RejectedEvent:
    """The frame of a JSON value, whose text is `text`, or of another message."""
    if not is_envelope(value):
        return FrameEvent(dialect=dialect, frame=value)
    try:
        return msgspec.convert({**value, "type": "frame", "dialect": dialect}, FrameEvent)
    except msgspec.ValidationError:
        header = decode_header(text)
        return RejectedEvent("malformed_frame", BAD_ENVELOPE, header.session_id, header.producer, header.seq)


def is_envelope(value: Any) -> bool:
    return isinstance(value, dict) and "frame" in value and "type" not in value


def split_frame(event: FrameEvent) -> list[FrameEvent]:
    """The frames of a message, each of which becomes a row. One with a number or an id stays whole."""
    dialect = DIALECTS.get(event.dialect)
    split = None if dialect is None else dialect.split
    if split is None or event.seq is not None or event.id is not None or not isinstance(event.frame, dict):
        return [event]
    try:
        frames = [*split(event.frame)]
    except Exception:  # what is malformed is refused when it is reduced
        return [event]
    return [msgspec.structs.replace(event, frame=frame) for frame in frames]
