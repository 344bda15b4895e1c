"""Help for `reduce`: typed records are the allow-list of a dialect, since fields that they do not name are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from voicemem.dialects.dialect import AUDIO_BYTES, MalformedFrame, RawFrame, UnknownFrame
from voicemem.protocol.types import MAX_INTEGER, JsonObject

T = TypeVar("T")


class Record(msgspec.Struct, omit_defaults=True):
    """A frame or a part of one: the fields that are kept. Fields need defaults unless every such frame has them."""


def read(kind: type[T], value: Any) -> T:
    """A value as a record. Raises `MalformedFrame` where a field is missing or has another type."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise MalformedFrame("A field of the frame is missing, or has another type than this dialect's.") from None


def kept(kind: type, frame: JsonObject) -> JsonObject:
    """Only the fields that a record names, at all levels. Raises `MalformedFrame`."""
    content: JsonObject = msgspec.to_builtins(read(kind, frame))
    return content


def require_object(frame: RawFrame) -> JsonObject:
    """A frame of a dialect that only has JSON objects. Raises `MalformedFrame`."""
    if not isinstance(frame, dict):
        raise MalformedFrame("A frame of this dialect is a JSON object.")
    return frame


def kind_of(frame: JsonObject, kinds: Mapping[str, T], field: str = "type") -> tuple[str, T]:
    """The type that a frame names, and what a table has for it. Raises `MalformedFrame`, `UnknownFrame`."""
    name = frame.get(field)
    if not isinstance(name, str):
        raise MalformedFrame(f"A frame of this dialect has a {field}.")
    if name not in kinds:
        raise UnknownFrame(name)
    return name, kinds[name]


def audio_bytes(frame: JsonObject, field: str) -> int:
    """How many bytes of audio a frame has in a base64 field, or says that it had. Raises `MalformedFrame`."""
    counted = frame.get(AUDIO_BYTES)
    if type(counted) is int and 0 <= counted <= MAX_INTEGER:
        return counted
    audio = frame.get(field)
    if not isinstance(audio, str):
        raise MalformedFrame("An audio frame has no audio.")
    return len(audio.rstrip("=")) * 3 // 4


def bytes_of(frame: RawFrame) -> int | None:
    """How many bytes a binary frame had, also if it comes reduced; None for any other frame."""
    if isinstance(frame, bytes):
        return len(frame)
    if isinstance(frame, dict) and AUDIO_BYTES in frame and "type" not in frame:
        return audio_bytes(frame, AUDIO_BYTES)
    return None
