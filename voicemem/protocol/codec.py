"""Bytes to events: the wire format of `voicemem.v1`, its limits and its checks (docs/ingest.md, docs/limits.md).

Anything but a frame of events raises `InvalidFrame`. An event that cannot be accepted becomes a `RejectedEvent` in its
place among the others. No error quotes the input.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from itertools import accumulate
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from voicemem.errors import InvalidFrame, Refused
from voicemem.protocol import events
from voicemem.protocol.explanations import describe_error, explain_event
from voicemem.protocol.memories import MAX_MEMORY_BYTES, time_ms
from voicemem.protocol.types import (
    MAX_DEPTH,
    MAX_FRAME_BYTES,
    MAX_INTEGER,
    MAX_TEXT_BYTES,
    MAX_VALUES,
    SESSION_ID_PATTERN,
    Integer,
    JsonObject,
    Name,
)

JSON_DECODER = msgspec.json.Decoder()
DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
# With every digit written as 0, a number beyond 2^53 (16 digits or more) or beyond a double (an exponent of 3 digits
# or more) contains one of these. Searching for them costs far less than decoding.
LONG, EXPONENT = b"0" * 16, b"e000"


def check_numbers(text: bytes) -> None:
    """Raise `Refused` for integers beyond 2^53 and numbers beyond a double, even in unknown fields and metadata."""
    if may_have_large_number(text):
        check_integers(JSON_DECODER.decode(text))


def may_have_large_number(text: bytes) -> bool:
    """A cheap test: False means that every number in the JSON is an integer within ±2^53 or a double."""
    digits = text.translate(DIGITS, b"+")
    return digits.find(LONG) >= 0 or digits.find(EXPONENT) >= 0


def check_integers(value: Any) -> None:
    if has_large_integer(value):
        raise Refused("invalid_field", "An integer must be within ±2^53.")


def has_large_integer(value: Any) -> bool:
    match value:
        case dict():
            return any(has_large_integer(item) for item in value.values())
        case list():
            return any(has_large_integer(item) for item in value)
        case int():
            return abs(value) > MAX_INTEGER
    return False


def decode_body(body: bytes) -> Any:
    """Decode a request's body, any JSON within the limits. Raises `InvalidFrame`, `Refused`."""
    check_frame(body)
    try:
        body = replace_nul(body)
        value = JSON_DECODER.decode(body)
    except msgspec.ValidationError:
        raise Refused("invalid_field", "A number is out of range.") from None
    except MALFORMED:
        raise InvalidFrame("invalid_json", "The body is not UTF-8 encoded JSON.") from None
    if may_have_large_number(body):
        check_integers(value)
    return value


MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""msgspec's errors for malformed JSON. A `ValidationError` is a `DecodeError`, so catch it before these."""
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, even one that does not end. Possessive (`*+`), so that the search stays linear."""
NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
DEPTH_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""Brackets as signed bytes: one level down, one level up."""
NUL = b"\\u0000"
ESCAPED_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")
"""U+0000 in JSON, where an escaped backslash before `u0000` is not one."""
NAMES = frozenset(
    {"call_id", "channel", "id", "item", "kind", "name", "namespace", "producer", "session_id", "user", "user_id"}
)
"""Fields that hold an id or a name."""
QUOTES_A_VALUE = 3
"""How many times the limit of values a scan reaches in 50 ms, even if the values are adjacent."""


def check_frame(frame: bytes, limit: int = MAX_FRAME_BYTES, most_values: int = MAX_VALUES) -> None:
    """Raise `InvalidFrame` for a frame that is too big, not UTF-8, nested too deeply, or has too many values."""
    if len(frame) > limit:
        raise InvalidFrame("too_big")
    if len(frame) > most_values and has_too_many_values(frame, most_values):  # each value has a byte of its own
        raise InvalidFrame("too_big", f"A frame or body may have at most {most_values:,} values.")
    try:
        if not frame.isascii():
            frame.decode()
    except UnicodeDecodeError:
        raise InvalidFrame("invalid_json") from None
    # The array around the events is one more level.
    depth = MAX_DEPTH + 1 if frame.lstrip().startswith(b"[") else MAX_DEPTH
    if is_too_deep(frame, depth):
        raise InvalidFrame("too_deep")


def replace_nul(text: bytes) -> bytes:
    """Replace each U+0000, which not every database can store, by U+FFFD in the texts of JSON.

    Raises `Refused` for one in a key, an id or a name, which a replacement would change, and one of `MALFORMED`.
    """
    if NUL not in text:
        return text
    refuse_nul_in_names(JSON_DECODER.decode(text))
    return ESCAPED_NUL.sub(rb"\1\\ufffd", text)


def whole_characters(text: str) -> str:
    """Replace each lone surrogate, which UTF-8 cannot encode, by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def refuse_nul_in_names(value: Any) -> None:
    """Raise `Refused` for U+0000 in a key, an id or a name."""
    match value:
        case dict():
            for key, item in value.items():
                if "\0" in key or (key in NAMES and isinstance(item, str) and "\0" in item):
                    raise Refused("invalid_field", "An id, a name or a key must not contain U+0000.")
                refuse_nul_in_names(item)
        case list():
            for item in value:
                refuse_nul_in_names(item)


def has_too_many_values(text: bytes, most: int = MAX_VALUES) -> bool:
    """Return whether JSON has more than `most` values, without decoding any.

    A decoded value takes up to a hundred times its size, so `[{},{},…]` of 1 MiB would take 30 MB.
    """
    if text.count(b'"') > QUOTES_A_VALUE * most:
        return True
    return count_values(text) > most and count_values(STRING.sub(b"", text)) > most


def count_values(text: bytes) -> int:
    """Return an upper bound of the number of values: all but the first follow a comma, a bracket, or a line break."""
    return 1 + sum(map(text.count, (b",", b"[", b"{", b"\n")))


def is_too_deep(text: bytes, limit: int) -> bool:
    """Return whether JSON is nested deeper than `limit`."""
    # Between two objects of a list one ends before the next begins, so that both are as deep.
    if text.count(b"{") + text.count(b"[") - text.count(b"},{") <= limit:
        return False
    # Outside strings, brackets become +1 and -1, so that the running sum is the depth; all of it in C.
    steps = STRING.sub(b"", text).translate(DEPTH_STEPS, NO_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > limit


def is_valid_json(text: bytes) -> bool:
    try:
        JSON_DECODER.decode(text)
    except MALFORMED:
        return False
    return True


def merge_patch(target: JsonObject, patch: JsonObject) -> JsonObject:
    """Apply a JSON merge patch (RFC 7396). Return a new object."""
    result = dict(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            inner = result.get(key)
            result[key] = merge_patch(inner if isinstance(inner, dict) else {}, value)
        else:
            result[key] = value
    return result


def drop_nulls(value: Any) -> Any:
    """Return a merge patch without the fields that it removes: the rest must be a valid configuration."""
    if isinstance(value, dict):
        return {key: drop_nulls(item) for key, item in value.items() if item is not None}
    return value


INCOMING_DECODER = msgspec.json.Decoder(events.IncomingEvent)
ONE_DECODER = msgspec.json.Decoder(events.TranscriptEvent)
ARRAY_DECODER = msgspec.json.Decoder(list[events.TranscriptEvent])
JOURNALED_DECODER = msgspec.json.Decoder(events.JournaledEvent)
RawJson = bytes | msgspec.Raw
"""One JSON value. A frame may have hundreds of thousands, so each is copied only when it is decoded."""
RAW_DECODER = msgspec.json.Decoder(msgspec.Raw)
RAW_ARRAY_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
JOURNALED_KINDS = events.kinds_by_type(events.JournaledEvent)
ENCODER = msgspec.json.Encoder()
SESSION, PRODUCER, METADATA = map(attrgetter, ("session_id", "producer", "metadata"))
BACKSLASH, WHITESPACE = b"\\", b" \t\r\n"
ANY_NUMBER = {
    events.Asr: "confidence",
    events.LlmError: "code",
    events.Metric: "latency_ms",
    events.ToolCall: "arguments",
    events.ToolResult: "result",
}
"""By kind of transcript event, its only field with unbounded numbers."""
WHOLE_TIMES = ("audio_end_ms", "audio_ms", "end_ms", "start_ms", "total_audio_ms")
"""Fields of whole milliseconds, which engines send with fractions too."""
NO_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")
"""Line breaks can only be between the tokens of JSON, never inside strings."""
MAX_FAST_BYTES = 64 * 1024
"""Longer frames are decoded by `decode_thoroughly`, which also checks the lengths of texts."""


class DecodedEvent(msgspec.Struct, frozen=True, gc=False):
    """An accepted event, and the bytes that are journaled for it."""

    event: events.IncomingEvent
    payload: bytes


class RejectedEvent(msgspec.Struct, frozen=True):
    """An event that cannot be accepted. `seq` is None when it is missing or unreadable."""

    code: str
    detail: str
    session_id: str | None
    producer: str | None
    seq: int | None


class RawHeader(msgspec.Struct, frozen=True):
    """The identifying fields of an event, with any values."""

    type: msgspec.Raw = msgspec.Raw(b"null")
    session_id: msgspec.Raw = msgspec.Raw(b"null")
    producer: msgspec.Raw = msgspec.Raw(b"null")
    seq: msgspec.Raw = msgspec.Raw(b"null")


class EventHeader(NamedTuple):
    """The valid identifying fields of an event; None for invalid ones."""

    type: str | None
    session_id: str | None
    producer: str | None
    seq: int | None


HEADER_DECODER = msgspec.json.Decoder(RawHeader)


def split_frame(frame: bytes) -> Sequence[RawJson]:
    """Split a frame into the JSON objects of its events. Raises `InvalidFrame`."""
    check_frame(frame)
    text = frame.strip(WHITESPACE)
    if text.startswith(b"{"):
        return [text]
    if not text.startswith(b"["):
        raise InvalidFrame("not_events" if is_valid_json(text) else "invalid_json")
    try:
        pieces = RAW_ARRAY_DECODER.decode(text)
    except MALFORMED:
        raise InvalidFrame("invalid_json") from None
    if not all(bytes(piece).startswith(b"{") for piece in pieces):
        raise InvalidFrame("not_events")
    return pieces


def split_lines(body: bytes) -> Sequence[RawJson]:
    """Split an HTTP body into the JSON objects of its events. Raises an `InvalidFrame` that names the line."""
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


def decode_journaled(payload: bytes) -> events.JournaledEvent:
    """Decode the event of a journal row, without unknown fields. Raises one of `MALFORMED`."""
    try:
        event: events.JournaledEvent = JOURNALED_DECODER.decode(payload)
    except msgspec.ValidationError:
        kind = JOURNALED_KINDS.get(decode_header(payload).type or "")
        if kind is None:
            raise
        # Unknown fields may come from an earlier version, which accepted them, or from a later one.
        known = {"type", *kind.__struct_encode_fields__}
        values = {name: value for name, value in JSON_DECODER.decode(payload).items() if name in known}
        event = msgspec.convert(values, events.JournaledEvent)
    return event


def decode_stored(payload: bytes) -> events.JournaledEvent:
    """Decode a journal row in a store that a later version may also serve. Raises one of `MALFORMED`.

    An event of a type that only the later version knows takes its position, and changes nothing.
    """
    try:
        return decode_journaled(payload)
    except msgspec.ValidationError:
        type_name = decode_header(payload).type
        if not type_name or type_name in JOURNALED_KINDS:
            raise
        return events.RefusalMarker(code="unknown_type")


def on_one_line(payload: bytes) -> msgspec.Raw:
    return msgspec.Raw(payload.translate(NO_LINE_BREAKS))


def decode_event(text: bytes) -> DecodedEvent | RejectedEvent:
    """Decode one event. Raises `InvalidFrame` when it is not JSON."""
    decoded = decode_fast(text) if text.startswith(b"{") else None
    return decode_thoroughly(text) if decoded is None else DecodedEvent(decoded[0][0], text)


def decode_thoroughly(text: bytes) -> DecodedEvent | RejectedEvent:
    """Decode one event of any size, and explain the faults of anything else."""
    # The order of the clauses matters: msgspec's `ValidationError` is one of MALFORMED, a `DecodeError`, too.
    try:
        try:
            text = replace_nul(text)
            event = INCOMING_DECODER.decode(text)
            check_numbers(text)
            check_event(event, len(text))
            return DecodedEvent(event, text)
        except msgspec.ValidationError as error:
            rounded = with_whole_times(text)
            if rounded != text:
                return decode_thoroughly(rounded)
            header = decode_header(text)
            return reject(header, *explain_event(error, header.type))
        except Refused as refused:
            return reject(decode_header(text), refused.code, refused.detail)
    except MALFORMED:
        raise InvalidFrame("invalid_json") from None


def with_whole_times(text: bytes) -> bytes:
    """Return an event's JSON with its times rounded to whole ms; the same bytes if they all are."""
    values = JSON_DECODER.decode(text) if b'_ms"' in text else None
    if not isinstance(values, dict):
        return text
    words = values.get("words")
    is_changed = False
    for holder in (values, *(words if isinstance(words, list) else ())):
        for name in WHOLE_TIMES if isinstance(holder, dict) else ():
            if isinstance(holder.get(name), float):
                holder[name], is_changed = round(holder[name]), True
    return ENCODER.encode(values) if is_changed else text


def decode_events(texts: Sequence[RawJson]) -> list[DecodedEvent | RejectedEvent]:
    """Decode each event as `decode_event` does. Raises `InvalidFrame` for the first that is not JSON."""
    return [decode_event(bytes(text)) for text in texts]


def decode_fast(frame: bytes) -> tuple[list[events.TranscriptEvent], bytes] | None:
    """Return the events of an ordinary frame, and their JSON separated by commas; None: decode it thoroughly.

    An ordinary frame is a small object, or an array of those of one producer, without metadata or faults. The events
    are the same as those of `decode_thoroughly`, in half the time.
    """
    is_one, has_escapes = frame[:1] == b"{", BACKSLASH in frame
    if len(frame) > MAX_FAST_BYTES or b'"metadata"' in frame or (has_escapes and NUL in frame):
        return None
    try:
        if not frame.isascii():
            frame.decode()
        decoded: list[events.TranscriptEvent] = [ONE_DECODER.decode(frame)] if is_one else ARRAY_DECODER.decode(frame)
        is_flat = frame.count(b"{") == len(decoded) and frame.find(b"[", not is_one) < 0
        for event in decoded:
            if (check := FAST_CHECKS.get(type(event))) is not None:
                check(event)
    except (msgspec.ValidationError, Refused, *MALFORMED):
        return None
    if not is_flat and (is_too_deep(frame, MAX_DEPTH + (not is_one)) or may_have_large_number(frame)):
        return None
    if has_escapes and any(map(METADATA, decoded)):
        return None
    if is_one:
        return decoded, frame
    is_of_one = len(set(map(SESSION, decoded))) == len(set(map(PRODUCER, decoded))) == 1
    return (decoded, frame.strip(WHITESPACE)[1:-1].strip(WHITESPACE)) if is_of_one else None


def split_payloads(payloads: Iterable[bytes]) -> list[bytes]:
    """Return the JSON of each event, from texts that may hold several, separated by commas."""
    return [*map(bytes, RAW_ARRAY_DECODER.decode(b"[%b]" % b",".join(payloads)))]


def reject(event: EventHeader | events.IncomingEvent, code: str, detail: str) -> RejectedEvent:
    return RejectedEvent(code, detail, event.session_id, event.producer, event.seq)


def decode_header(text: bytes) -> EventHeader:
    """Return the valid header fields of an invalid event. Raises one of `MALFORMED` if it is not a JSON object."""
    raw = HEADER_DECODER.decode(text)
    event_type = decode_or_none(raw.type)
    session_id, producer = decode_or_none(raw.session_id), decode_or_none(raw.producer)
    seq = decode_or_none(raw.seq)
    if event_type in ("session.open", "auth"):
        seq = None  # these events have none, even if one was sent
    return EventHeader(
        event_type if isinstance(event_type, str) else None,
        session_id if isinstance(session_id, str) and re.match(SESSION_ID_PATTERN, session_id) else None,
        producer if isinstance(producer, str) and 1 <= len(producer) <= 128 else None,
        seq if type(seq) is int and 1 <= seq <= MAX_INTEGER else None,
    )


def decode_or_none(raw: RawJson) -> Any:
    """Decode a JSON value; None if that fails, for example for a number out of range."""
    try:
        return JSON_DECODER.decode(raw)
    except MALFORMED:
        return None


# Checks that types cannot express: limits, and fields that depend on each other

SOURCES = {
    "user": frozenset({"asr", "message", "command"}),
    "assistant": frozenset({"llm", "greeting", "llm_failure", "silence", "command"}),
}
METADATA_ORDER = ("interrupted", "interrupt_timestamp", "original", "source", "user", "heard", "partial")
"""Keys of `metadata` that voicemem itself writes, in their documented order; others follow in their own order."""
RESERVED_METADATA = frozenset(METADATA_ORDER)
RESERVED_RULE = (
    f"The event's metadata uses a key that is reserved for voicemem; reserved are {', '.join(METADATA_ORDER)}."
)
TEXT_FIELDS = {
    kind: tuple(name for name in ("text", "heard_text", "synthesised_text", "reason") if name in kind.__struct_fields__)
    for kind in (
        *events.Event.__subclasses__(),
        *events.TurnEvent.__subclasses__(),
        *events.AgentEvent.__subclasses__(),
    )
}
"""The fields of each kind of event that hold a text."""
MAY_RESERVE = events.MessageEvent, events.MemoryAdded, events.MemoryEdited
"""Events whose metadata may have any keys: a memory's metadata is only passed on."""
INTERRUPTION_KEYS = {"interrupted", "interrupt_timestamp", "original", "heard"}


class RestoredMetadata(msgspec.Struct, frozen=True):
    """The reserved keys, as a restored message may carry them."""

    interrupted: bool | UnsetType = UNSET
    """True if the caller cut the reply short."""
    interrupt_timestamp: Integer | UnsetType = UNSET
    """When, in Unix ms."""
    original: str | UnsetType = UNSET
    """The whole generated text."""
    source: str | UnsetType = UNSET
    """Its source: `asr`, `message`, `command`, `llm`, `greeting`, `llm_failure`, `silence`."""
    user: Name | UnsetType = UNSET
    """Who spoke."""
    heard: Literal["aligned", "estimated", "unmatched"] | UnsetType = UNSET
    """How the heard text was found; exact when missing."""
    partial: bool | UnsetType = UNSET
    """True if the call ended before it was final."""


def check_event(event: events.Event, size: int) -> None:
    """Check what the types cannot express; `size` is the length of the event's JSON in bytes."""
    if size > MAX_TEXT_BYTES:  # no text in it is longer than the JSON itself
        for name in TEXT_FIELDS[type(event)]:
            check_text(getattr(event, name))
    if event.metadata and not isinstance(event, MAY_RESERVE) and not RESERVED_METADATA.isdisjoint(event.metadata):
        raise Refused("reserved_metadata", RESERVED_RULE)
    check = CHECKS.get(type(event))
    if check is not None:
        check(event)


def check_tts(event: events.Tts) -> None:
    fields = (event.audio_ms, event.heard_text, event.done, event.words, event.total_audio_ms)
    if fields == (None, None, None, None, None):
        raise Refused(
            "missing_field", "A tts event must have at least one of audio_ms, heard_text, done, words, total_audio_ms."
        )


def check_number(field: str) -> Callable[[events.Event], None]:
    """Return a check that raises `Refused` for a number that may be an integer beyond 2^53: its JSON must decide."""
    value_of = attrgetter(field)

    def check(event: events.Event) -> None:
        value = value_of(event)
        if isinstance(value, int | float) and abs(value) >= MAX_INTEGER:
            raise Refused("invalid_field")

    return check


def check_cancel(event: events.LlmCancel) -> None:
    if event.item is None and event.turn_id is None:
        raise Refused("missing_field", "An llm.cancel must have an item or a turn_id.")


def check_end(event: events.SessionEnd) -> None:
    if event.last_seq is not None and (event.seq is None or event.last_seq != event.seq - 1):
        raise Refused("last_seq_mismatch")


def check_text(text: str | UnsetType | None) -> None:
    """Raise `Refused` for a text that is too long."""
    # A character has at most 4 bytes, so shorter texts need not be encoded.
    if isinstance(text, str) and len(text) * 4 > MAX_TEXT_BYTES and len(text.encode()) > MAX_TEXT_BYTES:
        raise Refused("text_too_long")


def check_message(event: events.MessageEvent) -> None:
    """Check a `message`, the only event that may carry reserved metadata: that is how a memory is restored."""
    if event.source not in SOURCES[event.role]:
        sources = ", ".join(sorted(SOURCES[event.role]))
        raise Refused("invalid_field", f"The source of a message with the role {event.role} must be one of {sources}.")
    try:
        restored = msgspec.convert(event.metadata or {}, RestoredMetadata)
    except msgspec.ValidationError as error:
        raise Refused("invalid_field", f"In the metadata: {describe_error(error, RestoredMetadata)}") from None
    present = {key for key in RESERVED_METADATA if getattr(restored, key) is not UNSET}
    allowed = {"source", "user", "partial"} if event.role == "user" else {"source", "user"}
    if restored.interrupted is True and event.role == "assistant":
        allowed |= INTERRUPTION_KEYS
    if restored.interrupted is True and (restored.interrupt_timestamp is UNSET or restored.original is UNSET):
        raise Refused(
            "invalid_field", "The metadata of an interrupted message must have interrupt_timestamp and original too."
        )
    if present - allowed or restored.partial is False or restored.source not in (UNSET, event.source):
        raise Refused("invalid_field", "The metadata has a reserved key or value that does not fit this message.")


def check_memory(event: events.MemoryAdded | events.MemoryEdited) -> None:
    if isinstance(event.text, str):
        check_memory_text(event.text)
        if sha256(event.text.encode()).hexdigest() != event.text_sha256:
            raise Refused("invalid_field", "The text of a memory does not have the hash in text_sha256.")
    if isinstance(event.event_at, str):
        check_time("event_at", event.event_at)


def check_memory_text(text: str) -> None:
    """Raise `Refused` for a memory's text that is empty or too long."""
    if not text.strip():
        raise Refused("invalid_field", "The text of a memory must have a character that is not a space: `text`")
    if len(text.encode()) > MAX_MEMORY_BYTES:
        limit = f"{MAX_MEMORY_BYTES:,} bytes of UTF-8"
        raise Refused("text_too_long", f"The text of a memory may have at most {limit}; give longer ones as several.")


def check_time(field: str, text: str) -> None:
    """Raise `Refused` for a day or an instant that does not exist."""
    try:
        time_ms(text)
    except ValueError:
        raise Refused("invalid_field", f"There is no such day or time: `{field}`") from None


CHECKS: dict[type, Callable[[Any], None]] = {
    events.Tts: check_tts,
    events.LlmCancel: check_cancel,
    events.SessionEnd: check_end,
    events.MessageEvent: check_message,
    events.MemoryAdded: check_memory,
    events.MemoryEdited: check_memory,
}
FAST_CHECKS = CHECKS | {kind: check_number(field) for kind, field in ANY_NUMBER.items()}
