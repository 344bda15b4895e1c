"""The wire format: what is no frame, what is refused, what is taken; the numbers are those of the list of bad input."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from calls import OWN, PRODUCED, JsonObject
from hypothesis import example, given, settings
from hypothesis import strategies as st

from voicemem.errors import CODES, InvalidFrame
from voicemem.protocol.codec import (
    DecodedEvent,
    RejectedEvent,
    decode_event,
    decode_fast,
    decode_frame,
    decode_journaled,
    decode_lines,
)
from voicemem.protocol.events import LlmDelta, MessageEvent, RefusalMarker, SessionClosed, SessionGap, SessionReopened
from voicemem.protocol.strict_json import is_same_event

GOOD = b'{"type":"asr","turn_id":1,"seq":7,"text":"Hi."}'
OPEN = GOOD[:-1]
"""An event whose object still takes fields."""
MIB = 1024 * 1024
TAKEN = "taken"


def verdict(frame: bytes) -> str | list[str]:
    """What becomes of a frame: the code that closes the connection, or each event's code."""
    try:
        decoded = decode_frame(frame)
    except InvalidFrame as error:
        return error.code
    return [TAKEN if isinstance(one, DecodedEvent) else one.code for one in decoded]


def single(frame: bytes) -> str:
    """What becomes of a frame that is one event."""
    found = verdict(frame)
    return found if isinstance(found, str) else found[0]


def rejected(frame: bytes) -> RejectedEvent:
    """The one refused event of a frame."""
    (single,) = decode_frame(frame)
    assert isinstance(single, RejectedEvent), single
    return single


def nested(levels: int, inner: bytes = b"") -> bytes:
    """Arrays in arrays."""
    return b"[" * levels + inner + b"]" * levels


# JSON structure, 1 to 20

STRUCTURE: list[tuple[str, bytes, str | list[str]]] = [
    ("1 empty", b"", "invalid_json"),
    ("2 whitespace", b" \t\r\n", "invalid_json"),
    ("3 truncated", OPEN, "invalid_json"),
    ("3 truncated in a string", b'{"type":"as', "invalid_json"),
    ("3 truncated array", b"[" + GOOD, "invalid_json"),
    ("4 trailing garbage", GOOD + b" x", "invalid_json"),
    ("5 two documents", GOOD + GOOD, "invalid_json"),
    ("5 two lines", GOOD + b"\n" + GOOD, "invalid_json"),
    ("6 trailing comma", OPEN + b",}", "invalid_json"),
    ("6 trailing comma in an array", b"[" + GOOD + b",]", "invalid_json"),
    ("7 comment", b"/* Hi. */" + GOOD, "invalid_json"),
    ("7 comment inside", OPEN + b"// Hi.\n}", "invalid_json"),
    ("8 single quotes", b"{'type':'asr','turn_id':1,'text':'Hi.'}", "invalid_json"),
    ("9 BOM", b"\xef\xbb\xbf" + GOOD, "invalid_json"),
    ("10 UTF-16", GOOD.decode().encode("utf-16"), "invalid_json"),
    ("10 UTF-16 without BOM", GOOD.decode().encode("utf-16-le"), "invalid_json"),
    ("11 depth 32", OPEN + b',"x":' + nested(31) + b"}", [TAKEN]),
    ("11 depth 33", OPEN + b',"x":' + nested(32) + b"}", "too_deep"),
    ("11 depth 32 in an array", b"[" + OPEN + b',"x":' + nested(31) + b"}]", [TAKEN]),
    ("11 depth 33 in an array", b"[" + OPEN + b',"x":' + nested(32) + b"}]", "too_deep"),
    ("11 depth 32 of objects", b'{"a":' * 32 + b"1" + b"}" * 32, ["missing_field"]),
    ("11 depth 33 of objects", b'{"a":' * 33 + b"1" + b"}" * 33, "too_deep"),
    ("12 depth 255", nested(255), "too_deep"),
    ("13 depth 1025", nested(1025), "too_deep"),
    ("14 depth 100,000", nested(100_000), "too_deep"),
    ("14 depth 100,000 of objects", b'{"a":' * 100_000, "too_deep"),
    ("15 depth 100,000 inside an unknown field", OPEN + b',"x":' + nested(100_000) + b"}", "too_deep"),
    ("15 brackets in a string are not depth", OPEN + b',"x":"' + nested(100_000) + b'"}', [TAKEN]),
    ("15 brackets after an escaped quote", OPEN + b',"x":"\\"' + nested(100) + b'"}', [TAKEN]),
    ("15 brackets after an escaped backslash", OPEN + b',"x":["\\\\",' + nested(100) + b"]}", "too_deep"),
    ("16 top level number", b"5", "not_events"),
    ("16 top level string", b'"Hi."', "not_events"),
    ("16 top level null", b"null", "not_events"),
    ("16 top level true", b"true", "not_events"),
    ("16 array of numbers", b"[1]", "not_events"),
    ("16 array in an array", b"[[" + GOOD + b"]]", "not_events"),
    ("16 array with null", b"[" + GOOD + b",null]", "not_events"),
    ("16 empty array", b"[]", []),
    ("16 empty object", b"{}", ["missing_field"]),
    ("17 duplicate key", OPEN + b',"text":"Ho."}', [TAKEN]),
    ("18 duplicate type", OPEN + b',"type":"llm.delta"}', ["unknown_type"]),
    ("18 the server's type hidden behind another", b'{"type":"session.closed",' + GOOD[1:], ["unknown_type"]),
    ("19 1 MB of keys", OPEN + b"".join(b',"k%d":1' % key for key in range(80_000)) + b"}", [TAKEN]),
    ("20 unknown field", OPEN + b',"mood":{"happy":[true,null]}}', [TAKEN]),
    ("20 unknown type", b'{"type":"asr.final","seq":7}', ["unknown_type"]),
    ("20 no type", b'{"seq":7,"text":"Hi."}', ["missing_field"]),
    ("20 type of another kind", b'{"type":5}', ["invalid_field"]),
    ("20 type null", b'{"type":null}', ["invalid_field"]),
]


@pytest.mark.parametrize(("name", "frame", "expected"), STRUCTURE, ids=[name for name, _, _ in STRUCTURE])
def test_structure(name: str, frame: bytes, expected: str | list[str]) -> None:
    """What is no frame of events closes the connection; one event that cannot be taken does not."""
    assert verdict(frame) == expected, name


# Numbers, 21 to 32

ANYWHERE = ("turn_id", "ts", "seq", "confidence", "x", "metadata")
"""Integers that are checked, an integer that is needed to answer, a float, an unknown field, and free JSON."""
NO_JSON = dict.fromkeys(ANYWHERE, "invalid_json")
REFUSED = dict.fromkeys(ANYWHERE, "invalid_field")
NO_INTEGER = REFUSED | dict.fromkeys(("confidence", "x", "metadata"), TAKEN)
NUMBERS: list[tuple[str, str, dict[str, str]]] = [
    ("21 NaN", "NaN", NO_JSON),
    ("22 Infinity", "Infinity", NO_JSON),
    ("22 -Infinity", "-Infinity", NO_JSON),
    ("23 1e400", "1e400", REFUSED),
    ("23 -1E+400", "-1E+400", REFUSED),
    ("23 too small", "1e-400", NO_INTEGER),
    ("24 5,000 digits", "9" * 5000, REFUSED),
    ("24 5,000 decimals", "0." + "9" * 5000, NO_INTEGER),
    ("25 2^53", "9007199254740992", dict.fromkeys(ANYWHERE, TAKEN)),
    ("25 2^53+1", "9007199254740993", REFUSED),
    ("25 -2^53", "-9007199254740992", REFUSED | dict.fromkeys(("ts", "confidence", "x", "metadata"), TAKEN)),
    ("25 -2^53-1", "-9007199254740993", REFUSED),
    ("26 2^63", "9223372036854775808", REFUSED),
    ("27 2^64", "18446744073709551616", REFUSED),
    ("28 -2^63-1", "-9223372036854775809", REFUSED),
    ("29 1.0", "1.0", NO_INTEGER),
    ("29 1e3", "1e3", NO_INTEGER),
    ("30 true", "true", NO_INTEGER | {"confidence": "invalid_field"}),
    ('31 "1"', '"1"', NO_INTEGER | {"confidence": "invalid_field"}),
    ("32 leading zero", "01", NO_JSON),
    ("32 -0", "-0", dict.fromkeys(ANYWHERE, TAKEN) | {"seq": "invalid_field"}),
    ("32 +1", "+1", NO_JSON),
    ("32 .5", ".5", NO_JSON),
    ("32 1.", "1.", NO_JSON),
    ("32 hexadecimal", "0x10", NO_JSON),
    ("null", "null", dict.fromkeys(ANYWHERE, TAKEN)),
]
CASES = [(name, number, field, expected[field]) for name, number, expected in NUMBERS for field in ANYWHERE]


def with_number(field: str, number: str) -> bytes:
    """An event that has this number in this field, or within it."""
    values = {"turn_id": "1", "seq": "7"} | {field: number}
    if field in ("x", "metadata"):
        values[field] = f'{{"deep":[{number}]}}'
    return f'{{"type":"asr","text":"Hi.",{",".join(f"{json.dumps(k)}:{v}" for k, v in values.items())}}}'.encode()


@pytest.mark.parametrize(
    ("name", "number", "field", "expected"), CASES, ids=[f"{name} as {field}" for name, _, field, _ in CASES]
)
def test_numbers(name: str, number: str, field: str, expected: str) -> None:
    """What is no JSON closes the connection; a number that JSON readers cannot hold refuses its event only."""
    assert single(with_number(field, number)) == expected, name


@pytest.mark.parametrize("field", ["seq", "producer", "session_id"])
@pytest.mark.parametrize("number", ["1e400", "9" * 5000])
def test_number_out_of_range_does_not_hurt_its_neighbours(field: str, number: str) -> None:
    """The other events of a frame are taken, wherever the number stands."""
    frame = b"[" + GOOD + b"," + with_number(field, number) + b"]"
    assert verdict(frame) == [TAKEN, "invalid_field"]


# Strings, 33 to 46

PLACES = ("text", "x", "id", "type", "key")
NO_TEXT = dict.fromkeys(PLACES, "invalid_json")
FINE = dict.fromkeys(PLACES, TAKEN) | {"type": "unknown_type"}
STRINGS: list[tuple[str, bytes, dict[str, str]]] = [
    ("33 invalid UTF-8", b"\xff", NO_TEXT),
    ("33 truncated UTF-8", b"\xe4\xbd", NO_TEXT),
    ("33 overlong UTF-8", b"\xc0\xaf", NO_TEXT),
    ("34 lone high surrogate", b"\\ud800", NO_TEXT),
    ("35 lone low surrogate", b"\\udc00", NO_TEXT),
    ("35 surrogates in the wrong order", b"\\ude00\\ud83d", NO_TEXT),
    ("35 surrogate pair", b"\\ud83d\\ude00", FINE),
    ("36 UTF-8-encoded surrogate", b"\xed\xa0\x80", NO_TEXT),
    ("37 escaped NUL", b"\\u0000", FINE),
    ("38 raw NUL", b"\x00", NO_TEXT),
    ("38 raw control character", b"\x1f", NO_TEXT),
    ("38 raw tab", b"\t", NO_TEXT),
    ("38 raw line feed", b"\n", NO_TEXT),
    ("38 DEL", b"\x7f", FINE),
    ("39 U+FFFE", "\ufffe".encode(), FINE),
    ("39 U+FDD0", "\ufdd0".encode(), FINE),
    ("40 RTL override", "\u202egnol".encode(), FINE),
    ("41 emoji", "👩\u200d🚀🏽".encode(), FINE),
    ("44 only whitespace", b"   ", FINE),
    ("44 empty", b"", FINE | {"id": "invalid_field"}),
    ("45 CR LF", b"\\r\\nINFO: forged", FINE),
    ("46 HTML", b"<script>alert(1)</script>", FINE),
    ("46 SQL", b"'; drop table events; --", FINE),
    ("46 format string", b"%s%n {0} ${jndi:ldap://x}", FINE),
    ("46 unknown escape", b"\\x41", NO_TEXT),
]
STRING_CASES = [(name, text, place, expected[place]) for name, text, expected in STRINGS for place in PLACES]


def with_string(place: str, text: bytes) -> bytes:
    """An event that has this string at this place."""
    values = {b"type": b"asr", b"text": b"Hi.", b"id": b"e"}
    values[text if place == "key" else place.encode()] = b"v" if place == "key" else text
    return b'{"turn_id":1,' + b",".join(b'"' + k + b'":"' + v + b'"' for k, v in values.items()) + b"}"


@pytest.mark.parametrize(
    ("name", "text", "place", "expected"),
    STRING_CASES,
    ids=[f"{name} as {place}" for name, _, place, _ in STRING_CASES],
)
def test_strings(name: str, text: bytes, place: str, expected: str) -> None:
    """Text is any Unicode that is UTF-8 and JSON; no text is dangerous to take."""
    assert single(with_string(place, text)) == expected, name


def test_ids_are_not_normalised() -> None:
    """42: two ids that only look alike are two."""
    composed, decomposed = (decode_event(with_string("id", text.encode())) for text in ("\u00e9", "e\u0301"))
    assert isinstance(composed, DecodedEvent)
    assert isinstance(decomposed, DecodedEvent)
    assert composed.event.id != decomposed.event.id


def test_text_of_1_mib_is_too_big() -> None:
    """43: with what stands around it, such a text is no frame."""
    assert verdict(with_string("text", b"a" * MIB)) == "too_big"


# Limits


@pytest.mark.parametrize("character", ["a", "é", "好", "😀"])
@pytest.mark.parametrize("field", ["text", "heard_text", "reason"])
def test_texts_may_have_256_kib_of_utf_8(field: str, character: str) -> None:
    """Bytes are counted, not characters: exactly 256 KiB are taken, and one character more is not."""
    fields = {"text": {"type": "asr", "turn_id": 1}, "heard_text": {"type": "tts", "turn_id": 1}}
    event = fields.get(field, {"type": "session.end"})
    size = 256 * 1024 // len(character.encode())
    filled = character * size + "a" * (256 * 1024 - size * len(character.encode()))
    assert verdict(msgspec.json.encode(event | {field: filled})) == [TAKEN]
    assert verdict(msgspec.json.encode(event | {field: filled + "a"})) == ["text_too_long"]


def test_frame_may_have_1_mib() -> None:
    """Exactly 1 MiB is decoded, and one byte more is not."""
    frame = GOOD + b" " * (MIB - len(GOOD))
    assert verdict(frame) == [TAKEN]
    assert verdict(frame + b" ") == "too_big"


@pytest.mark.parametrize("field", ["id", "item", "producer", "user"])
def test_names_have_1_to_128_characters(field: str) -> None:
    """Other ids than the session's are any text, counted in characters."""
    codes = [verdict(msgspec.json.encode(json.loads(GOOD) | {field: "好" * length}))[0] for length in (0, 1, 128, 129)]
    assert codes == ["invalid_field", TAKEN, TAKEN, "invalid_field"]


@pytest.mark.parametrize(
    ("session_id", "code"), [("a.B-9_:z", TAKEN), ("a b", "invalid_field"), ("a\n", "invalid_field")]
)
def test_session_ids_are_checked(session_id: str, code: str) -> None:
    """An event that names an impossible session is refused."""
    assert verdict(msgspec.json.encode(json.loads(GOOD) | {"session_id": session_id})) == [code]


TRAPS = {
    "quotes": b'"' * MIB,
    "backslashes": b"\\" * MIB,
    "quotes and backslashes": b'"\\' * (MIB // 2),
    "brackets": b"[" * MIB,
    "brackets and quotes": b'["' * (MIB // 2),
    "quotes and brackets": b'"[' * (MIB // 2),
    "objects": b'{"' * (MIB // 2),
    "object of quotes": b'{"a":[[' + b'"' * (MIB - 10),
    "open string of escaped quotes": b'["' + b'\\"' * (MIB // 2 - 1),
    "open string of backslashes": b'{"type":"asr","text":"' + b"\\" * (MIB - 30),
    "many short strings": OPEN + b',"x":[' + b'"[",' * 250_000 + b"0]}",
    "many empty objects": b"[" + b"{}," * 300_000 + b"{}]",
    "spaces": b" " * MIB,
    "digits": b"1" * MIB,
}


@pytest.mark.parametrize("trap", TRAPS)
def test_traps_of_1_mib_end(trap: str) -> None:
    """What could take quadratic time is decoded or refused at once."""
    assert verdict(TRAPS[trap])


# What the types cannot say

VALID: list[JsonObject] = [
    {"type": "asr", "text": "Hi."},
    {"type": "llm.delta", "text": "Hi."},
    {"type": "llm.done"},
    {"type": "llm.error", "code": 429},
    {"type": "llm.error", "code": "rate_limit"},
    {"type": "tts", "done": False},
    {"type": "tts", "words": []},
    {"type": "tts", "heard_text": "", "audio_ms": 0, "done": True, "words": [], "total_audio_ms": 0},
    {"type": "interrupt", "cause": "vad"},
    {"type": "interrupt", "heard_text": ""},
    {"type": "resume"},
    {"type": "message", "role": "user", "source": "command", "text": "Hi."},
    {"type": "message", "role": "assistant", "source": "command", "text": "Hi."},
    {"type": "tool.call", "turn_id": 1, "call_id": "c", "name": "f", "arguments": None},
    {"type": "tool.result", "turn_id": 1, "call_id": "c", "result": [1]},
    {"type": "metric", "turn_id": 1, "name": "e2e", "latency_ms": 1.5},
    {"type": "session.update"},
    {"type": "session.update", "labels": {"a": "b"}},
    {"type": "session.end"},
    {"type": "session.end", "seq": 5, "last_seq": 4},
    {"type": "session.end", "seq": 1, "last_seq": 0},
    {"type": "session.open"},
    {"type": "session.open", "session_id": "s", "session": {"name": "n"}, "from_seq": 1},
    {"type": "auth", "token": "t"},
]


@pytest.mark.parametrize("event", VALID, ids=str)
def test_events_that_are_taken(event: JsonObject) -> None:
    """Each type is taken with what it must have."""
    assert verdict(msgspec.json.encode(event)) == [TAKEN]


INVALID: list[tuple[JsonObject, str]] = [
    ({"type": "asr"}, "missing_field"),
    ({"type": "asr", "text": None}, "invalid_field"),
    ({"type": "asr", "text": "Hi.", "final": "yes"}, "invalid_field"),
    ({"type": "asr", "text": "Hi.", "turn_id": -1}, "invalid_field"),
    ({"type": "asr", "text": "Hi.", "words": [{"text": "Hi."}]}, "missing_field"),
    ({"type": "asr", "text": "Hi.", "words": [{"text": "Hi.", "start_ms": -1, "end_ms": 0}]}, "invalid_field"),
    ({"type": "asr", "text": "Hi.", "metadata": []}, "invalid_field"),
    ({"type": "llm.delta"}, "missing_field"),
    ({"type": "llm.error", "code": 1.5}, "invalid_field"),
    ({"type": "tts"}, "missing_field"),
    ({"type": "tts", "turn_id": 1, "estimated": True}, "missing_field"),
    ({"type": "tts", "audio_ms": -1}, "invalid_field"),
    ({"type": "interrupt", "heard_text": "", "heard_chars": 0}, "invalid_field"),
    ({"type": "interrupt", "heard_chars": 0, "audio_end_ms": 0}, "invalid_field"),
    ({"type": "interrupt", "heard_text": "", "audio_end_ms": 0}, "invalid_field"),
    ({"type": "message", "role": "system", "source": "command", "text": "Hi."}, "invalid_field"),
    ({"type": "message", "role": "user", "source": "llm", "text": "Hi."}, "invalid_field"),
    ({"type": "message", "role": "assistant", "source": "asr", "text": "Hi."}, "invalid_field"),
    ({"type": "message", "role": "assistant", "source": "rumour", "text": "Hi."}, "invalid_field"),
    ({"type": "message", "role": "user", "text": "Hi."}, "missing_field"),
    ({"type": "tool.call", "call_id": "c", "name": "f", "arguments": {}}, "missing_field"),
    ({"type": "tool.result", "turn_id": 1, "call_id": "c"}, "missing_field"),
    ({"type": "metric", "turn_id": 1, "name": "e2e", "latency_ms": -0.5}, "invalid_field"),
    ({"type": "session.end", "last_seq": 4}, "last_seq_mismatch"),
    ({"type": "session.end", "seq": 5, "last_seq": 5}, "last_seq_mismatch"),
    ({"type": "session.end", "seq": 5, "last_seq": 3}, "last_seq_mismatch"),
    ({"type": "session.end", "last_seq": -1}, "invalid_field"),
    ({"type": "auth"}, "missing_field"),
    ({"type": "session.closed", "reason": "mine"}, "unknown_type"),
    ({"type": "session.reopened"}, "unknown_type"),
    ({"type": "session.gap", "from_seq": 1, "to_seq": 2}, "unknown_type"),
    ({"type": "refused", "code": "invalid_field"}, "unknown_type"),
]


@pytest.mark.parametrize(("event", "code"), INVALID, ids=[str(event)[:60] for event, _ in INVALID])
def test_events_that_are_refused(event: JsonObject, code: str) -> None:
    """Each refusal has its code."""
    assert verdict(msgspec.json.encode(event)) == [code]


RESERVED = ["interrupted", "interrupt_timestamp", "original", "source", "user", "heard", "partial"]


@pytest.mark.parametrize("key", RESERVED)
@pytest.mark.parametrize("event", [event for event in VALID if event["type"] != "message"], ids=str)
def test_reserved_metadata_is_refused(event: JsonObject, key: str) -> None:
    """Keys that voicemem writes itself are refused in every event but a whole message."""
    assert verdict(msgspec.json.encode(event | {"metadata": {"fine": 1, key: "x"}})) == ["reserved_metadata"]


def test_whole_message_may_carry_reserved_metadata() -> None:
    """That is how a memory is restored."""
    carried = {"interrupted": True, "interrupt_timestamp": 5, "original": "One two.", "heard": "aligned", "user": "u"}
    event = {"type": "message", "role": "assistant", "source": "llm", "text": "One ", "metadata": carried}
    assert verdict(msgspec.json.encode(event)) == [TAKEN]


@pytest.mark.parametrize(
    "metadata",
    [{"interrupted": 1}, {"interrupted": True, "original": 5}, {"interrupt_timestamp": 5}, {"original": "One two."}],
    ids=str,
)
def test_reserved_metadata_of_a_message_is_checked(metadata: JsonObject) -> None:
    """Reserved keys have their types, and those of an interruption stand only beside it."""
    event = {"type": "message", "role": "assistant", "source": "llm", "text": "One ", "metadata": metadata}
    assert verdict(msgspec.json.encode(event)) == ["invalid_field"]


# What can still be read of a refused event


def test_refused_event_keeps_whose_it_is() -> None:
    """Session, producer and seq of an event that cannot be taken are readable, so that it can be answered."""
    names = {"session_id": "s1", "producer": "asr worker", "seq": 7}
    refused = rejected(msgspec.json.encode({"type": "nonsense", **names}))
    assert (refused.code, refused.session_id, refused.producer, refused.seq) == ("unknown_type", "s1", "asr worker", 7)


UNREADABLE: dict[str, list[Any]] = {
    "seq": [0, -1, 1.0, True, "7", None, [], 2**53 + 1],
    "session_id": ["", "a b", "x" * 129, 5, None, {}],
    "producer": ["", "x" * 129, 5, None, []],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in UNREADABLE for value in UNREADABLE[field]])
def test_name_that_cannot_be_read_is_none(field: str, value: Any) -> None:
    """A field that cannot be read leaves the others readable."""
    names = {"session_id": "s1", "producer": "p1", "seq": 7} | {field: value}
    refused = rejected(msgspec.json.encode({"type": "nonsense", **names}))
    expected = {"session_id": "s1", "producer": "p1", "seq": 7} | {field: None}
    assert expected == {"session_id": refused.session_id, "producer": refused.producer, "seq": refused.seq}


def test_events_of_a_frame_succeed_or_fail_alone() -> None:
    """A refused event stands in its place beside those that are taken."""
    assert verdict(b"[" + GOOD + b',{"type":"x"}, ' + GOOD + b"]") == [TAKEN, "unknown_type", TAKEN]


def test_payload_is_what_was_sent() -> None:
    """The bytes that are journaled are those that were validated, unknown fields included."""
    (arrived,) = decode_frame(b" \n" + OPEN + b' , "mood" : [1.50, "\\u00fc"]}\n')
    assert isinstance(arrived, DecodedEvent)
    assert arrived.payload == OPEN + b' , "mood" : [1.50, "\\u00fc"]}'


@settings(deadline=None)
@given(PRODUCED)
def test_what_is_taken_can_be_read_from_the_journal(event: JsonObject) -> None:
    """An event that was taken decodes to the same when it is read back."""
    (arrived,) = decode_frame(msgspec.json.encode(event))
    assert isinstance(arrived, DecodedEvent)
    assert decode_journaled(arrived.payload) == arrived.event


@pytest.mark.parametrize(
    "own",
    [
        SessionClosed(ts=5, reason="bye"),
        SessionReopened(ts=5),
        SessionGap(producer="p", from_seq=1, to_seq=2),
        RefusalMarker(code="invalid_field"),
    ],
)
def test_own_events_can_be_read_from_the_journal(own: Any) -> None:
    """What the server journals itself decodes there, and only there."""
    payload = msgspec.json.encode(own)
    assert decode_journaled(payload) == own
    assert rejected(payload).code == "unknown_type"


@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,\\0123456789.eE-+ntfasr', max_size=60).map(str.encode))
@example(b'{"type":"asr",\xff')
@example(b"\x0c[]")
def test_any_bytes_give_a_verdict(frame: bytes) -> None:
    """Whatever is sent, it is a frame of events or closes the connection with a known code."""
    code = verdict(frame)
    assert isinstance(code, list) or CODES[code].close in (1007, 1009)


@given(st.lists(st.sampled_from([GOOD, b'{"type":"x"}', b"{}", b'{"seq":'])), st.sampled_from([b",", b" , ", b""]))
def test_any_frame_is_all_or_nothing(pieces: list[bytes], comma: bytes) -> None:
    """An array is decoded piece by piece when all of it is JSON, and not at all otherwise."""
    frame = b"[" + comma.join(pieces) + b"]"
    try:
        count = len(json.loads(frame))
    except json.JSONDecodeError:
        assert verdict(frame) == "invalid_json"
    else:
        assert len(verdict(frame)) == count


# No payload text in errors

SECRET = "s3cret"
LEAKS: list[bytes] = [
    b'{"type":"%s"}',
    b'{"type":"asr","text":"Hi.","turn_id":"%s"}',
    b'{"type":"asr","text":"Hi.","session_id":"%s !"}',
    b'{"type":"asr","text":{"%s":1}}',
    b'{"type":"asr","text":"Hi.","metadata":"%s"}',
    b'{"type":"asr","text":"Hi.","metadata":{"user":"%s"}}',
    b'{"type":"message","role":"%s","source":"asr","text":"Hi."}',
    b'{"type":"message","role":"user","source":"%s","text":"Hi."}',
    b'{"type":"message","role":"assistant","source":"llm","text":"Hi.","metadata":{"interrupted":"%s"}}',
]


@pytest.mark.parametrize("quote", ["", "'", '\\"', "`", "''", "\\\\"])
@pytest.mark.parametrize("template", LEAKS, ids=[template.decode() for template in LEAKS])
def test_detail_does_not_hold_what_was_sent(template: bytes, quote: str) -> None:
    """No sentence of a refusal tells a value, however it is quoted."""
    text = f"{quote}{SECRET}{quote}x{quote}{SECRET}".encode()
    assert SECRET not in rejected(template.replace(b"%s", text)).detail


@given(
    st.sampled_from(LEAKS),
    st.text(alphabet="'\"`$. -[]\\xyz", max_size=6),
    st.text(alphabet="'\"`$. -[]\\xyz", max_size=6),
)
def test_no_detail_holds_what_was_sent(template: bytes, before: str, after: str) -> None:
    """Quotes and brackets around a value do not bring it into a detail."""
    text = json.dumps(before + SECRET + after)[1:-1].encode()
    assert SECRET not in rejected(template.replace(b"%s", text)).detail


# HTTP bodies


def lines(body: bytes) -> str | list[str]:
    """What becomes of an HTTP body."""
    try:
        return [TAKEN if isinstance(one, DecodedEvent) else one.code for one in decode_lines(body)]
    except InvalidFrame as error:
        return error.code


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (GOOD, [TAKEN]),
        (GOOD + b"\n", [TAKEN]),
        (GOOD + b"\n" + GOOD, [TAKEN, TAKEN]),
        (GOOD + b"\r\n\r\n" + GOOD + b"\r\n", [TAKEN, TAKEN]),
        (b"\n\n" + GOOD + b'\n{"type":"x"}', [TAKEN, "unknown_type"]),
        (b"[" + GOOD + b",\n" + GOOD + b"]", [TAKEN, TAKEN]),
        (b"[]", []),
        (b"", "invalid_json"),
        (b"\n", "invalid_json"),
        (GOOD + b"\nnonsense", "invalid_json"),
        (GOOD + b"\n5", "not_events"),
        (b"5", "not_events"),
        (b"x" * (MIB + 1), "too_big"),
    ],
)
def test_body_is_an_array_or_lines(body: bytes, expected: str | list[str]) -> None:
    """Events come over HTTP as a JSON array, or as JSON lines."""
    assert lines(body) == expected


@pytest.mark.parametrize("line", [b"nonsense", b"5", b'{"type":', b'{"type":"x"} {}'])
def test_the_line_that_is_no_event_is_named(line: bytes) -> None:
    """Lines are counted from 1, empty ones too."""
    with pytest.raises(InvalidFrame, match=r"Line 3 is not (JSON|a JSON object)\."):
        decode_lines(GOOD + b"\n\n" + line + b"\n" + GOOD)


@given(st.lists(PRODUCED, min_size=1, max_size=4))
def test_array_and_lines_are_the_same_events(events: list[JsonObject]) -> None:
    """Both forms of a body give the same events as a frame of them."""
    encoded = [msgspec.json.encode(event) for event in events]
    array = b"[" + b",".join(encoded) + b"]"
    assert decode_lines(array) == decode_lines(b"\n".join(encoded)) == decode_frame(array)


# Resends


@pytest.mark.parametrize(
    "other",
    [
        GOOD,
        b'{ "seq":7, "text":"\\u0048i.", "turn_id":1, "type":"asr" }',
        b'{"type":"asr","text":"Ho.","text":"Hi.","turn_id":1,"seq":7}',
        OPEN + b',"session_id":"s","producer":"p"}',
    ],
)
def test_same_event(other: bytes) -> None:
    """Order, spelling and the fields that say where an event belongs do not make it another."""
    assert is_same_event(GOOD, other)
    assert is_same_event(other, GOOD)


@pytest.mark.parametrize(
    "other",
    [
        GOOD.replace(b"Hi.", b"Ho."),
        GOOD.replace(b"Hi.", b"hi."),
        GOOD.replace(b'"turn_id":1', b'"turn_id":2'),
        OPEN + b',"final":true}',
        OPEN + b',"ts":1}',
        OPEN + b',"metadata":{"session_id":"s"}}',
        b'{"type":"refused","code":"invalid_field"}',
    ],
)
def test_another_event(other: bytes) -> None:
    """Any other difference makes it another event."""
    assert not is_same_event(GOOD, other)
    assert not is_same_event(other, GOOD)


@given(OWN, OWN)
def test_same_event_is_equality_of_json(one: JsonObject, other: JsonObject) -> None:
    """Two events are the same exactly when their decoded JSON is."""
    first, second = (json.dumps({"type": "resume", "metadata": value}).encode() for value in (one, other))
    assert is_same_event(first, first)
    assert is_same_event(first, second) == (
        msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")
    )


def test_types_of_decoded_events() -> None:
    """An event is a record of its type."""
    frame = b'[{"type":"llm.delta","text":"a"},{"type":"message","role":"user","text":"b","source":"message"}]'
    assert [type(one.event) for one in decode_frame(frame) if isinstance(one, DecodedEvent)] == [LlmDelta, MessageEvent]


# Most events: a shorter way to the same


@given(event=PRODUCED, spaces=st.sampled_from(["", " ", "\n"]))
def test_an_ordinary_event_is_what_a_closer_look_finds(event: JsonObject, spaces: str) -> None:
    """Whatever the short way takes, the long way takes as the same."""
    frame = json.dumps(event).encode() + spaces.encode()
    found = decode_fast(frame)
    if found is not None:
        (arrived,) = decode_frame(frame)
        assert isinstance(arrived, DecodedEvent)
        assert found == arrived.event


def test_most_events_are_ordinary() -> None:
    """What streams in masses goes the short way."""
    assert decode_fast(GOOD) is not None
    assert (
        decode_fast(b'{"type":"llm.delta","turn_id":1,"item":"r","text":"\xc3\xa4","ts":1750000000000,"seq":9}')
        is not None
    )


@pytest.mark.parametrize("frame", [one for _, one, _ in STRUCTURE] + [with_string(p, t) for _, t, p, _ in STRING_CASES])
def test_the_short_way_takes_nothing_bad(frame: bytes) -> None:
    """What is refused, or is no frame, is left to the closer look."""
    if decode_fast(frame) is not None:
        assert single(frame) == TAKEN


@pytest.mark.parametrize(("name", "number", "field", "expected"), CASES)
def test_the_short_way_takes_no_bad_number(name: str, number: str, field: str, expected: str) -> None:
    """Numbers that JSON readers cannot hold are seen there too."""
    if decode_fast(with_number(field, number)) is not None:
        assert expected == TAKEN, name


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ('"role":"x","source":"llm"', "must be one of user, assistant: `role`"),
        ('"role":"assistant","source":"llm","metadata":{"heard":"x"}', "must be one of aligned, estimated: `heard`"),
    ],
)
def test_refusal_of_a_choice_lists_what_can_be(fields: str, detail: str) -> None:
    """Where a field is a choice, the sentence shows it."""
    assert rejected(b'{"type":"message","turn_id":1,"text":"a",%b}' % fields.encode()).detail.endswith(detail)
