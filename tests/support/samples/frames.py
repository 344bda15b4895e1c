"""Frames and numbers for the codec: what is taken, and what is refused."""

from __future__ import annotations

import json

from tests.support.frames import decode_frame
from voicemem.errors import InvalidFrame
from voicemem.protocol.codec import DecodedEvent, RejectedEvent

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
    ("11 depth 32", OPEN + b',"metadata":{"x":' + nested(30) + b"}}", [TAKEN]),
    ("11 depth 33", OPEN + b',"x":' + nested(32) + b"}", "too_deep"),
    ("11 depth 32 in an array", b"[" + OPEN + b',"metadata":{"x":' + nested(30) + b"}}]", [TAKEN]),
    ("11 depth 33 in an array", b"[" + OPEN + b',"x":' + nested(32) + b"}]", "too_deep"),
    ("11 depth 32 of objects", b'{"a":' * 32 + b"1" + b"}" * 32, ["missing_field"]),
    ("11 depth 33 of objects", b'{"a":' * 33 + b"1" + b"}" * 33, "too_deep"),
    ("12 depth 255", nested(255), "too_deep"),
    ("13 depth 1025", nested(1025), "too_deep"),
    ("14 depth 100,000", nested(100_000), "too_deep"),
    ("14 depth 100,000 of objects", b'{"a":' * 100_000, "too_deep"),
    ("15 depth 100,000 inside an unknown field", OPEN + b',"x":' + nested(100_000) + b"}", "too_deep"),
    ("15 brackets in a string are not depth", OPEN + b',"language":"' + nested(100_000) + b'"}', [TAKEN]),
    ("15 brackets after an escaped quote", OPEN + b',"language":"\\"' + nested(100) + b'"}', [TAKEN]),
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
    ("19 1 MB of keys", OPEN + b"".join(b',"k%d":1' % key for key in range(80_000)) + b"}", ["unknown_field"]),
    ("20 unknown field", OPEN + b',"mood":{"happy":[true,null]}}', ["unknown_field"]),
    ("20 unknown type", b'{"type":"asr.final","seq":7}', ["unknown_type"]),
    ("20 no type", b'{"seq":7,"text":"Hi."}', ["missing_field"]),
    ("20 type of another kind", b'{"type":5}', ["invalid_field"]),
    ("20 type null", b'{"type":null}', ["invalid_field"]),
]
ANYWHERE = ("turn_id", "ts", "seq", "confidence", "x", "metadata")
"""Integers that are checked, an integer that is needed to answer, a float, an unknown field, and free JSON."""
NO_JSON = dict.fromkeys(ANYWHERE, "invalid_json")
REFUSED = dict.fromkeys(ANYWHERE, "invalid_field") | {"x": "unknown_field"}
NO_INTEGER = REFUSED | dict.fromkeys(("confidence", "metadata"), TAKEN)
ALLOWED = dict.fromkeys(ANYWHERE, TAKEN) | {"x": "unknown_field"}
NUMBERS: list[tuple[str, str, dict[str, str]]] = [
    ("21 NaN", "NaN", NO_JSON),
    ("22 Infinity", "Infinity", NO_JSON),
    ("22 -Infinity", "-Infinity", NO_JSON),
    ("23 1e400", "1e400", REFUSED),
    ("23 -1E+400", "-1E+400", REFUSED),
    ("23 too small", "1e-400", NO_INTEGER),
    ("24 5,000 digits", "9" * 5000, REFUSED),
    ("24 5,000 decimals", "0." + "9" * 5000, NO_INTEGER),
    ("25 2^53", "9007199254740992", ALLOWED),
    ("25 2^53+1", "9007199254740993", REFUSED),
    ("25 -2^53", "-9007199254740992", REFUSED | dict.fromkeys(("ts", "confidence", "metadata"), TAKEN)),
    ("25 -2^53-1", "-9007199254740993", REFUSED),
    ("26 2^63", "9223372036854775808", REFUSED),
    ("27 2^64", "18446744073709551616", REFUSED),
    ("28 -2^63-1", "-9223372036854775809", REFUSED),
    ("29 1.0", "1.0", NO_INTEGER),
    ("29 1e3", "1e3", NO_INTEGER),
    ("30 true", "true", NO_INTEGER | {"confidence": "invalid_field"}),
    ('31 "1"', '"1"', NO_INTEGER | {"confidence": "invalid_field"}),
    ("32 leading zero", "01", NO_JSON),
    ("32 -0", "-0", ALLOWED | {"seq": "invalid_field"}),
    ("32 +1", "+1", NO_JSON),
    ("32 .5", ".5", NO_JSON),
    ("32 1.", "1.", NO_JSON),
    ("32 hexadecimal", "0x10", NO_JSON),
    ("null", "null", ALLOWED),
]
CASES = [(name, number, field, expected[field]) for name, number, expected in NUMBERS for field in ANYWHERE]


def with_number(field: str, number: str) -> bytes:
    """An event that has this number in this field, or within it."""
    values = {"turn_id": "1", "seq": "7"} | {field: number}
    if field in ("x", "metadata"):
        values[field] = f'{{"deep":[{number}]}}'
    return f'{{"type":"asr","text":"Hi.",{",".join(f"{json.dumps(k)}:{v}" for k, v in values.items())}}}'.encode()


PLACES = ("text", "x", "id", "type", "key")
NO_TEXT = dict.fromkeys(PLACES, "invalid_json")
FINE = dict.fromkeys(PLACES, TAKEN) | {"type": "unknown_type", "x": "unknown_field", "key": "unknown_field"}
STRINGS: list[tuple[str, bytes, dict[str, str]]] = [
    ("33 invalid UTF-8", b"\xff", NO_TEXT),
    ("33 truncated UTF-8", b"\xe4\xbd", NO_TEXT),
    ("33 overlong UTF-8", b"\xc0\xaf", NO_TEXT),
    ("34 lone high surrogate", b"\\ud800", NO_TEXT),
    ("35 lone low surrogate", b"\\udc00", NO_TEXT),
    ("35 surrogates in the wrong order", b"\\ude00\\ud83d", NO_TEXT),
    ("35 surrogate pair", b"\\ud83d\\ude00", FINE),
    ("36 UTF-8-encoded surrogate", b"\xed\xa0\x80", NO_TEXT),
    ("37 escaped NUL", b"\\u0000", FINE | {"id": "invalid_field", "key": "invalid_field"}),
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
