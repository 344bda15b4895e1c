"""Bytes to events: the wire format of `voicemem.v1`, its limits and its checks (design, sections 3, 5 and 10).

What is no frame of events raises `InvalidFrame`; an event that cannot be taken becomes a `Rejected` beside the good
ones. No error text holds what was sent.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from voicemem import config
from voicemem.errors import CODES, InvalidFrame, Refused
from voicemem.events import (
    MAX_DEPTH,
    MAX_FRAME_BYTES,
    MAX_INTEGER,
    MAX_TEXT_BYTES,
    SESSION_ID_PATTERN,
    Event,
    Incoming,
    Integer,
    Interrupt,
    Journaled,
    Name,
    SessionEnd,
    SessionUpdate,
    Tts,
    Whole,
    update_patch,
)
from voicemem.messages import RESERVED_METADATA

INCOMING = msgspec.json.Decoder(Incoming)
JOURNALED = msgspec.json.Decoder(Journaled)
PIECES = msgspec.json.Decoder(list[msgspec.Raw])
ANYTHING = msgspec.json.Decoder()
ENCODER = msgspec.json.Encoder()
SORTED = msgspec.json.Encoder(order="sorted")

MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""msgspec raises the last two as well; `ValidationError`, a `DecodeError`, must be caught before them."""
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or the rest of the text after one that does not end: so that a search never starts twice in one place."""
NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""Brackets as signed bytes: one level down, one level up."""
LONG_NUMBER = re.compile(rb"[0-9]{16}|[0-9][eE]")
"""Only text like this can hold a number that other JSON readers cannot: a long integer, a large exponent."""
ROUTING = frozenset({"session_id", "producer"})
SOURCES = {
    "user": frozenset({"asr", "message", "command"}),
    "assistant": frozenset({"llm", "greeting", "llm_failure", "silence", "command"}),
}


class Arrived(NamedTuple):
    """An event that can be taken, and the bytes that are journaled for it."""

    event: Incoming
    payload: bytes
    update: config.Settled | None = None
    """The patch of a `session.update`; its secrets are not in `payload`."""


class Rejected(NamedTuple):
    """An event that cannot be taken. `seq` is None when it cannot be read."""

    code: str
    detail: str
    session_id: str | None
    producer: str | None
    seq: int | None


class Envelope(msgspec.Struct, frozen=True):
    """The fields that say whose an event is, whatever they hold."""

    type: msgspec.Raw = msgspec.Raw(b"null")
    session_id: msgspec.Raw = msgspec.Raw(b"null")
    producer: msgspec.Raw = msgspec.Raw(b"null")
    seq: msgspec.Raw = msgspec.Raw(b"null")


ENVELOPE = msgspec.json.Decoder(Envelope)


def decode_frame(frame: bytes) -> list[Arrived | Rejected]:
    """The events of one frame: a JSON object, or an array of objects. Raises `InvalidFrame`."""
    check_frame(frame)
    text = frame.strip(b" \t\r\n")
    if not text.startswith(b"["):
        return [decode_event(checked_object(text))]
    try:
        pieces = [bytes(piece) for piece in PIECES.decode(text)]
    except MALFORMED:
        raise InvalidFrame("invalid_json") from None
    if not all(piece.startswith(b"{") for piece in pieces):
        raise InvalidFrame("not_events")
    return [decode_event(piece) for piece in pieces]


def decode_lines(body: bytes) -> list[Arrived | Rejected]:
    """The events of an HTTP body: a JSON array, or JSON lines. Raises `InvalidFrame`."""
    if not body.strip() or body.lstrip().startswith(b"["):
        return decode_frame(body)
    check_frame(body)
    lines = [line.strip(b" \t\r") for line in body.split(b"\n")]
    return [decode_event(checked_object(line)) for line in lines if line]


def checked_object(text: bytes) -> bytes:
    """JSON that begins as an object. Raises `InvalidFrame`."""
    if not text.startswith(b"{"):
        raise InvalidFrame("not_events" if is_json(text) else "invalid_json")
    return text


def decode_journaled(payload: bytes) -> Journaled:
    """The event of a journal row."""
    event: Journaled = JOURNALED.decode(payload)
    return event


def check_frame(frame: bytes) -> None:
    """Raise `InvalidFrame` for what is too big, not UTF-8, or nested too deep to be decoded safely."""
    if len(frame) > MAX_FRAME_BYTES:
        raise InvalidFrame("too_big")
    try:
        if not frame.isascii():
            frame.decode()
    except UnicodeDecodeError:
        raise InvalidFrame("invalid_json") from None
    # An array of events is one level around them.
    limit = MAX_DEPTH + 1 if frame.lstrip().startswith(b"[") else MAX_DEPTH
    if frame.count(b"{") + frame.count(b"[") > limit and deeper_than(frame, limit):
        raise InvalidFrame("too_deep")


def deeper_than(text: bytes, limit: int) -> bool:
    """Whether JSON is nested deeper than `limit`."""
    steps = STRING.sub(b"", text).translate(STEPS, NO_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > limit


def is_json(text: bytes) -> bool:
    try:
        ANYTHING.decode(text)
    except MALFORMED:
        return False
    return True


def decode_event(text: bytes) -> Arrived | Rejected:
    """One event from its JSON object. Raises `InvalidFrame` when that is no JSON."""
    try:
        event = INCOMING.decode(text)
        check_numbers(text)
        check_event(event)
        if isinstance(event, SessionUpdate):
            return settled_update(event, text)
        return Arrived(event, text)
    except msgspec.ValidationError as error:
        return reject(text, *explain(error))
    except Refused as refused:
        return reject(text, refused.code, refused.detail)
    except MALFORMED:
        raise InvalidFrame("invalid_json") from None


def reject(text: bytes, code: str, detail: str) -> Rejected:
    """What can still be read of an event that cannot be taken."""
    try:
        name = ENVELOPE.decode(text)
    except MALFORMED:
        raise InvalidFrame("invalid_json") from None
    session_id, producer, seq = readable(name.session_id), readable(name.producer), readable(name.seq)
    if readable(name.type) in ("session.open", "auth"):
        seq = None  # these take none
    return Rejected(
        code,
        detail,
        session_id if isinstance(session_id, str) and re.match(SESSION_ID_PATTERN, session_id) else None,
        producer if isinstance(producer, str) and 1 <= len(producer) <= 128 else None,
        seq if type(seq) is int and 1 <= seq <= MAX_INTEGER else None,
    )


def readable(raw: msgspec.Raw) -> Any:
    """What a field holds; None for what cannot be read, such as a number out of range."""
    try:
        return ANYTHING.decode(raw)
    except MALFORMED:
        return None


def explain(error: msgspec.ValidationError) -> tuple[str, str]:
    """Code and sentence of a validation error, without the value that was sent."""
    message = str(error)
    if message.endswith("`$.type`") and message.startswith("Invalid value"):
        return "unknown_type", CODES["unknown_type"].sentence
    if message.startswith("Object missing required field"):
        return "missing_field", config.plain(error)
    return "invalid_field", config.plain(error)


def check_numbers(text: bytes) -> None:
    """Refuse integers beyond 2^53 and numbers too large for a double, in unknown fields and metadata too."""
    if LONG_NUMBER.search(text) and has_large_integer(ANYTHING.decode(text)):
        raise Refused("invalid_field", "An integer is outside of ±2^53.")


def has_large_integer(value: Any) -> bool:
    match value:
        case dict():
            return any(has_large_integer(item) for item in value.values())
        case list():
            return any(has_large_integer(item) for item in value)
        case int():
            return abs(value) > MAX_INTEGER
    return False


def check_event(event: Event) -> None:
    """What the types cannot say: limits and fields that depend on each other."""
    check_texts(event)
    if isinstance(event, Whole):
        check_message(event)
    elif event.metadata and not RESERVED_METADATA.isdisjoint(event.metadata):
        raise Refused("reserved_metadata")
    match event:
        case Tts():
            fields = (event.heard_text, event.audio_ms, event.done, event.words, event.total_audio_ms)
            if all(value is None for value in fields):
                raise Refused("missing_field", "A tts event has at least one of its fields.")
        case Interrupt():
            given = (event.heard_text, event.heard_chars, event.audio_end_ms)
            if sum(value is not None for value in given) > 1:
                raise Refused("invalid_field", "An interrupt has at most one of heard_text, heard_chars, audio_end_ms.")
        case SessionEnd(last_seq=int() as last_seq):
            if event.seq is None or last_seq != event.seq - 1:
                raise Refused("last_seq_mismatch")


def check_texts(event: Event) -> None:
    texts = [getattr(event, "text", None), getattr(event, "heard_text", None), getattr(event, "reason", None)]
    for text in texts:
        check_text(text)


def check_text(text: str | None) -> None:
    """Raise `Refused` for a text that is too long."""
    # Only a text of so many characters can have so many bytes.
    if text is not None and len(text) * 4 > MAX_TEXT_BYTES and len(text.encode()) > MAX_TEXT_BYTES:
        raise Refused("text_too_long")


def check_message(event: Whole) -> None:
    """A `message` may carry the reserved keys whole, which is how a memory is restored."""
    if event.source not in SOURCES[event.role]:
        raise Refused("invalid_field", f"A message of this source does not have the role {event.role}.")
    try:
        carried = msgspec.convert(event.metadata or {}, Carried)
    except msgspec.ValidationError as error:
        raise Refused("invalid_field", f"In the metadata: {config.plain(error)}") from None
    given = {key for key in RESERVED_METADATA if getattr(carried, key) is not UNSET}
    allowed = {"source", "user", "partial"} if event.role == "user" else {"source", "user"}
    if carried.interrupted is True and event.role == "assistant":
        allowed |= INTERRUPTION
    if given - allowed or carried.partial is False or carried.source not in (UNSET, event.source):
        raise Refused("invalid_field", "The metadata says what a message of this kind cannot say.")


INTERRUPTION = {"interrupted", "interrupt_timestamp", "original", "heard"}


class Carried(msgspec.Struct, frozen=True):
    """The reserved keys, as a restored message may carry them."""

    interrupted: bool | UnsetType = UNSET
    interrupt_timestamp: Integer | UnsetType = UNSET
    original: str | UnsetType = UNSET
    source: str | UnsetType = UNSET
    user: Name | UnsetType = UNSET
    heard: Literal["aligned", "estimated"] | UnsetType = UNSET
    partial: bool | UnsetType = UNSET


def settled_update(event: SessionUpdate, text: bytes) -> Arrived:
    """A `session.update` whose payload does not have its secrets."""
    update = config.settle(update_patch(event))
    values = ANYTHING.decode(text)  # written anew in any case: a doubled key could hide a secret
    for section, key in config.SECRETS:
        if isinstance(values.get(section), dict):
            values[section].pop(key, None)
    return Arrived(event, ENCODER.encode(values), update)


def same_event(one: bytes, other: bytes) -> bool:
    """Whether two payloads are equal as decoded JSON, but for the fields that only say where they belong."""
    return one == other or canonical(one) == canonical(other)


def canonical(payload: bytes) -> bytes:
    values = ANYTHING.decode(payload)
    return SORTED.encode({key: value for key, value in values.items() if key not in ROUTING})
