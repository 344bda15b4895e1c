"""Bytes to events: the wire format of `voicemem.v1`, its limits and its checks (docs/ingest.md, docs/limits.md).

What is not a frame of events raises `InvalidFrame`. An event that cannot be accepted becomes a `RejectedEvent` in its
place among the others. No error quotes what was sent.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from voicemem.errors import InvalidFrame, Refused
from voicemem.protocol.checks import CHECKS, check_event, explain_event
from voicemem.protocol.events import IncomingEvent, JournaledEvent, RefusalMarker, TranscriptEvent, kinds_by_type
from voicemem.protocol.redacted import is_redacted, is_same_redacted
from voicemem.protocol.types import MAX_DEPTH, MAX_FRAME_BYTES, MAX_INTEGER, MAX_VALUES, SESSION_ID_PATTERN, JsonObject

JSON_DECODER = msgspec.json.Decoder()
DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
# With every digit written as 0, a number beyond 2^53 (16 digits or more) or beyond a double (an exponent of 3 digits
# or more) contains one of these. Searching for them costs far less than decoding.
LONG, EXPONENT = b"0" * 16, b"e000"


def check_numbers(text: bytes) -> None:
    """Refuse integers beyond 2^53 and numbers too large for a double, in unknown fields and metadata too."""
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


def decode_body(body: bytes, limit: int = MAX_FRAME_BYTES, most_values: int = MAX_VALUES) -> Any:
    """Decode a request's body, any JSON within the limits. Raises `InvalidFrame`, `Refused`."""
    check_frame(body, limit, most_values)
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


SORTED = msgspec.json.Encoder(order="sorted")
MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec for malformed JSON. A `ValidationError` is a `DecodeError`, so catch it before these."""
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or the rest of the text from one that does not end. Possessive (`*+`), so that the search stays linear."""
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
ROUTING_FIELDS = frozenset({"session_id", "producer"})
QUOTES_A_VALUE = 3
"""Of the most values so many are read in 50 ms, even if there is nothing between them."""


def check_frame(frame: bytes, limit: int = MAX_FRAME_BYTES, most_values: int = MAX_VALUES) -> None:
    """Raise `InvalidFrame` for what is too big, not UTF-8, has too many values, or is nested too deep to be decoded."""
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
    """Put U+FFFD in place of each U+0000 in the texts of JSON, which not every database can store.

    Raises `Refused` for one in a key, an id or a name, which would become another one, and one of `MALFORMED`.
    """
    if NUL not in text:
        return text
    refuse_nul_in_names(JSON_DECODER.decode(text))
    return ESCAPED_NUL.sub(rb"\1\\ufffd", text)


def refuse_nul_in_names(value: Any) -> None:
    """Raise `Refused` for U+0000 in a key, an id or a name."""
    match value:
        case dict():
            for key, item in value.items():
                if "\0" in key or (key in NAMES and isinstance(item, str) and "\0" in item):
                    raise Refused("invalid_field", "An id, a name or a key may have no U+0000.")
                refuse_nul_in_names(item)
        case list():
            for item in value:
                refuse_nul_in_names(item)


def has_too_many_values(text: bytes, most: int = MAX_VALUES) -> bool:
    """Return whether JSON has more values than that, found without making any of them.

    A value costs up to a hundred times its size once it is made, so `[{},{},…]` of 1 MiB would take 30 MB.
    """
    if text.count(b'"') > QUOTES_A_VALUE * most:
        return True
    return count_values(text) > most and count_values(STRING.sub(b"", text)) > most


def count_values(text: bytes) -> int:
    """At least as many as there are: every value but the first follows a comma, a bracket, or the end of a line."""
    return 1 + sum(map(text.count, (b",", b"[", b"{", b"\n")))


def is_too_deep(text: bytes, limit: int) -> bool:
    """Return whether JSON is nested deeper than `limit`."""
    if text.count(b"{") + text.count(b"[") <= limit:
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


def is_same_event(one: bytes, other: bytes) -> bool:
    """True if two payloads are equal as decoded JSON, apart from `session_id` and `producer`, which only address them.

    A field that is null is one that is absent, as it is for the event; inside a field the two differ.
    """
    if one == other:
        return True
    first, second = event_values(one), event_values(other)
    # Equal events mostly have equal encodings, which are compared in C. What is left differs soon, or in its numbers.
    if SORTED.encode(first) == SORTED.encode(second) or is_same_value(first, second):
        return True
    if (is_redacted(one) or is_redacted(other)) and is_same_redacted(first, second):
        return True
    return is_same_frame(first, second)


def is_same_frame(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two events are one frame of another stack, of which not the same is kept.

    It has an id, and a later version keeps more of it; or nothing was kept, since what it is a part of was not there.
    """
    if one.get("type") != "frame" or any(one.get(name) != other.get(name) for name in ("type", "dialect")):
        return False
    has_same_id = one.get("id") is not None and one.get("id") == other.get("id")
    return has_same_id or "frame" not in one or "frame" not in other


def event_values(payload: bytes) -> dict[str, Any]:
    values = JSON_DECODER.decode(payload)
    return {key: value for key, value in values.items() if value is not None and key not in ROUTING_FIELDS}


def is_same_value(one: Any, other: Any) -> bool:
    """Return whether two values are equal as JSON, in which 1.0 is 1 and true is not. Ends at the first difference."""
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and len(one) == len(other)
            and all(key in other and is_same_value(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(is_same_value, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


MAX_PIECE_BYTES = MAX_FRAME_BYTES + 4096
"""Of one value: an event of the largest size, with what is around it."""
MAX_BLANKS = 65_536
"""White space in one place."""
STRING_PATTERN = r'"(?:[^"\\]++|\\.)*+"'


def value_pattern(depth: int) -> str:
    """Return a pattern of a value, or of what is between two, in an array or object of at most this depth.

    It is only about where a value ends: whether it is JSON shows when it is decoded. Every repetition is possessive,
    so that the time is linear.
    """
    pattern = rf'(?:[^"{{}}\[\]]++|{STRING_PATTERN})'
    for _ in range(depth):
        pattern = rf'(?:[^"{{}}\[\]]++|{STRING_PATTERN}|[{{\[]{pattern}*+[}}\]])'
    return pattern


# A few levels more than events may have, so that one that is too deep is found, and refused for that.
VALUE = re.compile(
    rf'{STRING_PATTERN}|[{{\[]{value_pattern(MAX_DEPTH + 4)}*+[}}\]]|[^\s",:{{}}\[\]]++'.encode(), re.DOTALL
)
BLANKS = re.compile(rb"[ \t\r\n]{0,%d}+" % MAX_BLANKS)


class Unreadable(ValueError):
    """The text is not JSON, or a value in it is larger or deeper than any that is taken."""


class Pieces:
    """Walks through a text from its beginning. All methods raise `Unreadable`."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.at = 0

    def follows(self, sign: bytes) -> bool:
        blanks = BLANKS.match(self.text, self.at)
        self.at = blanks.end() if blanks else self.at
        return self.text.startswith(sign, self.at)

    def take(self, sign: bytes) -> bool:
        found = self.follows(sign)
        self.at += len(sign) if found else 0
        return found

    def expect(self, sign: bytes) -> None:
        if not self.take(sign):
            raise Unreadable

    def value(self) -> slice:
        self.follows(b"")
        found = VALUE.match(self.text, self.at, self.at + MAX_PIECE_BYTES)
        # A value may end with the bound only if something follows it there.
        if found is None or found.end() == self.at + MAX_PIECE_BYTES:
            raise Unreadable
        self.at = found.end()
        return slice(*found.span())

    def names(self) -> Iterator[str]:
        """The names in the object that comes next; for each, its value must be taken before the next one is."""
        self.expect(b"{")
        known: set[str] = set()
        ended = self.take(b"}")
        while not ended:
            name = self.decode(self.value())
            if not isinstance(name, str) or name in known:
                raise Unreadable
            known.add(name)
            self.expect(b":")
            yield name
            ended = self.take(b"}")
            if not ended:
                self.expect(b",")

    def items(self) -> Iterator[slice]:
        self.expect(b"[")
        ended = self.take(b"]")
        while not ended:
            yield self.value()
            ended = self.take(b"]")
            if not ended:
                self.expect(b",")

    def end(self) -> None:
        self.follows(b"")
        if self.at < len(self.text):
            raise Unreadable

    def decode(self, place: slice) -> object:
        try:
            value: object = JSON_DECODER.decode(self.text[place])
        except MALFORMED:
            raise Unreadable from None
        return value


def merge_patch(target: JsonObject, patch: JsonObject) -> JsonObject:
    """A new object: the target after a JSON merge patch (RFC 7396)."""
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
    """A merge patch without the fields that it removes: what is left must be valid as a configuration."""
    if isinstance(value, dict):
        return {key: drop_nulls(item) for key, item in value.items() if item is not None}
    return value


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
    """The readable fields that say which event this is; None where they have nothing valid."""

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
    """Return what can be read of an event that is not valid. Raises one of `MALFORMED` when it is not a JSON object."""
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
