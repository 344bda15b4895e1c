"""JSON that every parser agrees on: structure, numbers, strings, equality."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from tests.support.rows import every_row
from tests.support.samples.frames import (
    CASES,
    GOOD,
    MIB,
    OPEN,
    STRING_CASES,
    STRUCTURE,
    TAKEN,
    single,
    verdict,
    with_number,
    with_string,
)
from tests.support.strategies import OWN
from voicemem.errors import Refused
from voicemem.protocol.codec import DecodedEvent, decode_body, decode_event, replace_nul
from voicemem.protocol.comparison import is_same_event
from voicemem.protocol.types import JsonObject

# JSON structure, 1 to 20


@every_row(("name", "frame", "expected"), STRUCTURE, ids=[name for name, _, _ in STRUCTURE])
def test_structure(name: str, frame: bytes, expected: str | list[str]) -> None:
    """What is no frame of events closes the connection; one event that cannot be taken does not."""
    assert verdict(frame) == expected, name


# Numbers, 21 to 32


@every_row(("name", "number", "field", "expected"), CASES, ids=[f"{name} as {field}" for name, _, field, _ in CASES])
def test_numbers(name: str, number: str, field: str, expected: str) -> None:
    """What is no JSON closes the connection; a number that JSON readers cannot hold refuses its event only."""
    assert single(with_number(field, number)) == expected, name


@every_row("field", ["seq", "producer", "session_id"])
@every_row("number", ["1e400", "9" * 5000])
def test_number_out_of_range_does_not_hurt_its_neighbours(field: str, number: str) -> None:
    """The other events of a frame are taken, wherever the number stands."""
    frame = b"[" + GOOD + b"," + with_number(field, number) + b"]"
    assert verdict(frame) == [TAKEN, "invalid_field"]


# Strings, 33 to 46


@every_row(
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


@pytest.mark.slow
@every_row("trap", TRAPS)
def test_traps_of_1_mib_end(trap: str) -> None:
    """What could take quadratic time is decoded or refused at once."""
    assert verdict(TRAPS[trap])


# Resends


@every_row(
    "other",
    [
        GOOD,
        b'{ "seq":7, "text":"\\u0048i.", "turn_id":1, "type":"asr" }',
        b'{"type":"asr","text":"Ho.","text":"Hi.","turn_id":1,"seq":7}',
        OPEN + b',"session_id":"s","producer":"p"}',
        OPEN + b',"ts":null,"metadata":null}',
        GOOD.replace(b'"turn_id":1', b'"turn_id":1.0').replace(b'"seq":7', b'"seq":70e-1'),
    ],
)
def test_same_event(other: bytes) -> None:
    """Order, spelling and the fields that say where an event belongs do not make it another."""
    assert is_same_event(GOOD, other)
    assert is_same_event(other, GOOD)


@every_row(
    "other",
    [
        GOOD.replace(b"Hi.", b"Ho."),
        GOOD.replace(b"Hi.", b"hi."),
        GOOD.replace(b'"turn_id":1', b'"turn_id":2'),
        OPEN + b',"final":true}',
        OPEN + b',"ts":1}',
        OPEN + b',"metadata":{"session_id":"s"}}',
        GOOD.replace(b'"turn_id":1', b'"turn_id":true'),
        GOOD.replace(b'"turn_id":1', b'"turn_id":1.5'),
        GOOD.replace(b'"turn_id":1', b'"turn_id":[]'),
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
    assert is_same_event(first, second) == (plain(one) == plain(other))


def plain(value: Any) -> Any:
    """A value that is equal to another one exactly when both are the same JSON."""
    match value:
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list():
            return [plain(item) for item in value]
    return (type(value) is bool, value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"metadata":{"a":null}}', b'{"metadata":{}}'),
        (b'{"session":{"name":null}}', b'{"session":{}}'),
        (b'{"words":[1,[true]]}', b'{"words":[1,[1]]}'),
        (b'{"words":[1]}', b'{"words":[1,1]}'),
    ],
)
def test_values_inside_a_field_differ(one: bytes, other: bytes) -> None:
    """Inside a field a null says something, such as that a setting is removed; true is not 1."""
    assert not is_same_event(one, other)


def test_numbers_inside_a_field_may_be_written_otherwise() -> None:
    """A producer whose buffer went through another language resends 1 where it had sent 1.0."""
    assert is_same_event(b'{"metadata":{"a":[1.0,-0.0,{"b":2e3}]}}', b'{"metadata":{"a":[1,0,{"b":2000}]}}')


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b'{"type":"frame","dialect":"a","frame":{"n":1}}', b'{"type":"frame","dialect":"a"}', True),
        (b'{"type":"frame","dialect":"a","frame":{"n":1}}', b'{"type":"frame","dialect":"a","frame":{"n":2}}', False),
        (b'{"type":"frame","dialect":"a","frame":{"n":1}}', b'{"type":"frame","dialect":"b"}', False),
        (b'{"type":"resume"}', b'{"type":"resume","turn_id":1}', False),
    ],
)
def test_frame_of_which_nothing_is_kept_is_the_same(one: bytes, other: bytes, same: bool) -> None:
    """Whether anything of a frame is kept may depend on what came over its connection before; its seq is the same."""
    assert is_same_event(one, other) == same
    assert is_same_event(other, one) == same


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (rb'{"text":"a\u0000b"}', "a\ufffdb"),
        (rb'{"text":"\u0000\u0000"}', "\ufffd\ufffd"),
        (rb'{"text":"\\u0000"}', r"\u0000"),
        (rb'{"text":"\\\u0000"}', "\\\ufffd"),
        (rb'{"text":{"a":["\u0000"]}}', {"a": ["\ufffd"]}),
    ],
)
def test_nul_in_a_text_is_replaced(sent: bytes, kept: object) -> None:
    """U+FFFD stands for it, also deep inside; a backslash before `u0000` that is a character of its own stays."""
    assert {"text": kept} == decode_body(sent)
    assert len(sent) == len(replace_nul(sent))


@pytest.mark.parametrize("sent", [rb'{"item":"\u0000"}', rb'{"a":{"\u0000":1}}', rb'[{"session_id":"s\u0000"}]'])
def test_nul_in_an_id_or_a_key_is_refused(sent: bytes) -> None:
    """It would be another id."""
    with pytest.raises(Refused, match="U\\+0000"):
        decode_body(sent)
