"""Bytes to events: the wire format of `voicemem.v1`, its limits and its checks (docs/ingest.md, docs/limits.md).

What is not a frame of events raises `InvalidFrame`. An event that cannot be accepted becomes a `RejectedEvent` in its
place among the others. No error quotes what was sent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from voicemem.errors import InvalidFrame, Refused
from voicemem.protocol.checks import CHECKS, check_event, explain_event
from voicemem.protocol.events import IncomingEvent, JournaledEvent, RefusalMarker, TranscriptEvent, kinds_by_type
from voicemem.protocol.strict_json import (
    JSON_DECODER,
    MALFORMED,
    NUL,
    check_frame,
    check_numbers,
    is_too_deep,
    is_valid_json,
    may_have_large_number,
    replace_nul,
)
from voicemem.protocol.types import MAX_DEPTH, MAX_INTEGER, SESSION_ID_PATTERN

INCOMING_DECODER = msgspec.json.Decoder(IncomingEvent)
TRANSCRIPT_DECODER = msgspec.json.Decoder(TranscriptEvent)
JOURNALED_DECODER = msgspec.json.Decoder(JournaledEvent)
RawJson = bytes | msgspec.Raw
"""One JSON value. A frame may hold hundreds of thousands, so each is copied out of it only when it is decoded."""
RAW_DECODER = msgspec.json.Decoder(msgspec.Raw)
RAW_ARRAY_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
JOURNALED_KINDS = kinds_by_type(JournaledEvent)
ENCODER = msgspec.json.Encoder()
OPEN_BRACE = ord("{")
NO_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")
"""Line breaks are between the tokens of JSON only, never inside strings."""
MAX_FAST_BYTES = 4096
"""Longer frames are decoded the thorough way, which also checks the lengths of their texts."""


class DecodedEvent(msgspec.Struct, frozen=True, gc=False):
    """An accepted event, and the bytes that are journaled for it."""

    event: IncomingEvent
    payload: bytes


class RejectedEvent(msgspec.Struct, frozen=True):
    """An event that cannot be accepted. `seq` is None when it is missing or unreadable."""

    code: str
    detail: str
    session_id: str | None
    producer: str | None
    seq: int | None


class RawHeader(msgspec.Struct, frozen=True):
    """The fields that say which event this is, with whatever they hold."""

    type: msgspec.Raw = msgspec.Raw(b"null")
    session_id: msgspec.Raw = msgspec.Raw(b"null")
    producer: msgspec.Raw = msgspec.Raw(b"null")
    seq: msgspec.Raw = msgspec.Raw(b"null")


class EventHeader(NamedTuple):
    """What can be read of the fields that say which event this is; None where that is nothing valid."""

    type: str | None
    session_id: str | None
    producer: str | None
    seq: int | None


HEADER_DECODER = msgspec.json.Decoder(RawHeader)


def split_frame(frame: bytes) -> Sequence[RawJson]:
    """The JSON objects of one frame, each to be decoded as an event. Raises `InvalidFrame`."""
    check_frame(frame)
    text = frame.strip(b" \t\r\n")
    if not text.startswith(b"["):
        return [require_object(text)]
    try:
        pieces = RAW_ARRAY_DECODER.decode(text)
    except MALFORMED:
        raise InvalidFrame("invalid_json") from None
    if not all(bytes(piece).startswith(b"{") for piece in pieces):
        raise InvalidFrame("not_events")
    return pieces


def split_lines(body: bytes) -> Sequence[RawJson]:
    """The JSON objects of an HTTP body, each to be decoded as an event. Raises `InvalidFrame` that names the line."""
    if not body.strip() or body.lstrip().startswith(b"["):
        return split_frame(body)
    check_frame(body)
    pieces = []
    for number, line in enumerate(body.split(b"\n"), 1):
        text = line.strip(b" \t\r")
        if text and not text.startswith(b"{"):
            code = "not_events" if is_valid_json(text) else "invalid_json"
            raise InvalidFrame(code, f"Line {number} is not a JSON object.")
        if text:
            try:
                pieces.append(text)
                RAW_DECODER.decode(text)
            except MALFORMED:
                raise InvalidFrame("invalid_json", f"Line {number} is not JSON.") from None
    return pieces


def require_object(text: bytes) -> bytes:
    """The same text, if it begins as a JSON object. Raises `InvalidFrame`."""
    if not text.startswith(b"{"):
        raise InvalidFrame("not_events" if is_valid_json(text) else "invalid_json")
    return text


def split_array(array: bytes) -> list[bytes]:
    """The elements of a JSON array, byte for byte."""
    return [bytes(piece) for piece in RAW_ARRAY_DECODER.decode(array)]


def decode_journaled(payload: bytes) -> JournaledEvent:
    """The event of a journal row; fields that this version does not know are ignored. Raises one of `MALFORMED`."""
    try:
        event: JournaledEvent = JOURNALED_DECODER.decode(payload)
    except msgspec.ValidationError:
        kind = JOURNALED_KINDS.get(decode_header(payload).type or "")
        if kind is None:
            raise
        # Unknown fields may come from an earlier version, which let them in, or a later one.
        known = {"type", *kind.__struct_encode_fields__}
        values = {name: value for name, value in JSON_DECODER.decode(payload).items() if name in known}
        event = msgspec.convert(values, JournaledEvent)
    return event


def decode_stored(payload: bytes) -> JournaledEvent:
    """The same for a row of the store, which a later version may serve too. Raises one of `MALFORMED`.

    An event of a type that only that version knows takes its position, and changes nothing.
    """
    try:
        return decode_journaled(payload)
    except msgspec.ValidationError:
        type_name = decode_header(payload).type
        if not type_name or type_name in JOURNALED_KINDS:
            raise
        return RefusalMarker(code="unknown_type")


def on_one_line(payload: bytes) -> msgspec.Raw:
    return msgspec.Raw(payload.translate(NO_LINE_BREAKS))


def decode_event(text: bytes) -> DecodedEvent | RejectedEvent:
    """One event from its JSON object. Raises `InvalidFrame` when it is not JSON."""
    # The order of the clauses matters: msgspec's `ValidationError` is one of MALFORMED, a `DecodeError`, too.
    try:
        try:
            text = replace_nul(text)
            event = INCOMING_DECODER.decode(text)
            check_numbers(text)
            check_event(event, len(text))
            return DecodedEvent(event, text)
        except msgspec.ValidationError as error:
            header = decode_header(text)
            return reject(header, *explain_event(error, header.type))
        except Refused as refused:
            return reject(decode_header(text), refused.code, refused.detail)
    except MALFORMED:
        raise InvalidFrame("invalid_json") from None


def decode_events(texts: Sequence[RawJson]) -> list[DecodedEvent | RejectedEvent]:
    """Each event as `decode_event` gives it. Raises `InvalidFrame` for the first that is not JSON."""
    return [decode_event(bytes(text)) for text in texts]


def decode_fast(frame: bytes) -> TranscriptEvent | None:
    """The event of an ordinary frame: one small object without metadata or faults. None: decode it thoroughly.

    The event is the one that `decode_event` would give, in half the time.
    """
    if not frame or frame[0] != OPEN_BRACE or len(frame) > MAX_FAST_BYTES or NUL in frame:
        return None
    if may_have_large_number(frame):
        return None
    try:
        if not frame.isascii():
            frame.decode()
        if (frame.find(b"[") > 0 or frame.find(b"{", 1) > 0) and is_too_deep(frame, MAX_DEPTH):
            return None
        event: TranscriptEvent = TRANSCRIPT_DECODER.decode(frame)
        check = CHECKS.get(type(event))
        if check is not None:
            check(event)
    except (msgspec.ValidationError, Refused, *MALFORMED):
        return None
    return event if event.metadata is None else None


def reject(header: EventHeader, code: str, detail: str) -> RejectedEvent:
    return RejectedEvent(code, detail, header.session_id, header.producer, header.seq)


def decode_header(text: bytes) -> EventHeader:
    """What can still be read of an event that is not valid. Raises one of `MALFORMED` when it is not a JSON object."""
    raw = HEADER_DECODER.decode(text)
    event_type = decode_or_none(raw.type)
    session_id, producer = decode_or_none(raw.session_id), decode_or_none(raw.producer)
    seq = decode_or_none(raw.seq)
    if event_type in ("session.open", "auth"):
        seq = None  # these events have none, whatever was sent
    return EventHeader(
        event_type if isinstance(event_type, str) else None,
        session_id if isinstance(session_id, str) and re.match(SESSION_ID_PATTERN, session_id) else None,
        producer if isinstance(producer, str) and 1 <= len(producer) <= 128 else None,
        seq if type(seq) is int and 1 <= seq <= MAX_INTEGER else None,
    )


def decode_or_none(raw: msgspec.Raw) -> Any:
    """The value of a field; None when it cannot be read, such as a number out of range."""
    try:
        return JSON_DECODER.decode(raw)
    except MALFORMED:
        return None
