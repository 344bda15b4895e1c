"""The codec: frames to events, and what is wrong with the others."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.frames import decode_frame, decode_lines
from tests.support.paths import FIXTURES
from tests.support.rows import every_row
from tests.support.samples.frames import (
    CASES,
    GOOD,
    MIB,
    OPEN,
    STRING_CASES,
    STRUCTURE,
    TAKEN,
    rejected,
    verdict,
    with_number,
    with_string,
)
from tests.support.strategies import PRODUCER_EVENTS
from voicemem.errors import CODES, InvalidFrame
from voicemem.protocol.codec import (
    ANY_NUMBER,
    MALFORMED,
    MAX_FAST_BYTES,
    DecodedEvent,
    RejectedEvent,
    decode_event,
    decode_events,
    decode_fast,
    decode_journaled,
    decode_stored,
    decode_thoroughly,
    is_too_deep,
    split_frame,
    split_payloads,
)
from voicemem.protocol.events import (
    LlmDelta,
    MessageEvent,
    RefusalMarker,
    SessionClosed,
    SessionGap,
    SessionReopened,
    TranscriptEvent,
)
from voicemem.protocol.types import MAX_INTEGER, JsonObject

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


@every_row(("field", "value"), [(field, value) for field in UNREADABLE for value in UNREADABLE[field]])
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
    """The bytes that are journaled are those that were validated."""
    (arrived,) = decode_frame(b" \n" + OPEN + b' , "metadata" : {"mood" : [1.50, "\\u00fc"]}}\n')
    assert isinstance(arrived, DecodedEvent)
    assert arrived.payload == OPEN + b' , "metadata" : {"mood" : [1.50, "\\u00fc"]}}'


def test_unknown_fields_in_the_journal_are_ignored() -> None:
    """A row that another version of voicemem has let in is read without the fields that this one does not know."""
    assert decode_journaled(OPEN + b',"mood":{"text":1},"words":[]}') == decode_journaled(OPEN + b',"words":[]}')
    assert decode_journaled(b'{"type":"session.closed","reason":"idle","why":[1]}') == SessionClosed(reason="idle")


def test_a_row_of_a_type_that_a_later_version_has_changes_nothing() -> None:
    """It takes its position like an event that was refused, and does not stop the memory of its session."""
    assert decode_stored(b'{"type":"memory.later","what":1}') == RefusalMarker(code="unknown_type")


@pytest.mark.parametrize("row", [b"5", b"{}", b'{"type":"asr","mood":1}', b'{"type":"asr"', b""])
def test_a_damaged_row_is_not_an_event(row: bytes) -> None:
    """What lacks its type or a required field is not made into an event."""
    with pytest.raises(MALFORMED):
        decode_journaled(row)


@every_row(
    ("event", "detail"),
    [
        (
            {"type": "asr", "text": "a", "is_final": True},
            "no field `is_final` (did you mean `final`?); known:",
        ),
        ({"type": "asr", "text": "a", "turn": 1}, "There is no field `turn` (did you mean `turn_id`?); known:"),
        ({"type": "llm.done", "content": "a"}, "no field `content`; known: `agent`, `id`, `item`,"),
        ({"type": "interrupt", "heard": "a"}, "no field `heard`; known: `audio_end_ms`, `cause`, `estimated`,"),
        (
            {"type": "session.update", "session": {}},
            "no field `session`: it goes beside `type`, field by field; known:",
        ),
        ({"type": "session.open", "user_id": "ann"}, "no field `user_id`: it goes under `session`; known: `dialect`,"),
        ({"type": "session.open", "memoryFrom": {}}, "no field `memoryFrom`: it goes under `session`; known:"),
        ({"type": "session.open", "sesion_id": "a"}, "(did you mean `session_id`?); known: `dialect`, `from_seq`,"),
        ({"type": "auth", "token": "a", "key": "a"}, "no field `key`"),
    ],
    ids=str,
)
def test_an_unknown_field_is_refused_with_the_nearest_one_and_all(event: JsonObject, detail: str) -> None:
    """A misspelt field must not silently lose a sentence."""
    refused = rejected(msgspec.json.encode(event))
    assert (refused.code, detail in refused.detail) == ("unknown_field", True), refused.detail


def test_unknown_fields_of_words_are_ignored() -> None:
    """Engines send their words with whatever else they know of them."""
    word = {"text": "Hi.", "start_ms": 0, "end_ms": 9, "confidence": 0.9}
    (arrived,) = decode_frame(msgspec.json.encode({"type": "asr", "text": "Hi.", "words": [word]}))
    assert isinstance(arrived, DecodedEvent)


@given(PRODUCER_EVENTS)
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


# HTTP bodies


def lines(body: bytes) -> str | list[str]:
    """What becomes of an HTTP body."""
    try:
        return [TAKEN if isinstance(one, DecodedEvent) else one.code for one in decode_lines(body)]
    except InvalidFrame as error:
        return error.code


@every_row(
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


@given(st.lists(PRODUCER_EVENTS, min_size=1, max_size=4))
def test_array_and_lines_are_the_same_events(events: list[JsonObject]) -> None:
    """Both forms of a body give the same events as a frame of them."""
    encoded = [msgspec.json.encode(event) for event in events]
    array = b"[" + b",".join(encoded) + b"]"
    assert decode_lines(array) == decode_lines(b"\n".join(encoded)) == decode_frame(array)


# Resends


def test_types_of_decoded_events() -> None:
    """An event is a record of its type."""
    frame = b'[{"type":"llm.delta","text":"a"},{"type":"message","role":"user","text":"b","source":"message"}]'
    assert [type(one.event) for one in decode_frame(frame) if isinstance(one, DecodedEvent)] == [LlmDelta, MessageEvent]


# Most events: a shorter way to the same


@given(event=PRODUCER_EVENTS, spaces=st.sampled_from(["", " ", "\n"]))
def test_an_ordinary_event_is_what_a_closer_look_finds(event: JsonObject, spaces: str) -> None:
    """Whatever the short way takes, the long way takes as the same."""
    frame = json.dumps(event).encode() + spaces.encode()
    found = decode_fast(frame)
    if found is not None:
        arrived = decode_thoroughly(frame.strip())
        assert isinstance(arrived, DecodedEvent)
        assert found == ([arrived.event], arrived.payload + spaces.encode())


@given(events=st.lists(PRODUCER_EVENTS, min_size=1, max_size=4), named=st.booleans())
def test_an_array_of_ordinary_events_is_what_a_closer_look_finds(events: list[JsonObject], named: bool) -> None:
    """Whatever is decoded together is the same as decoded one by one, bytes included, and of one producer."""
    if named:
        events = [event | {"session_id": "s", "producer": "tts"} for event in events]
    found = decode_fast(json.dumps(events).encode())
    if found is not None:
        assert [decode_thoroughly(json.dumps(event).encode()) for event in events] == one_by_one(*found)
        assert len({(one.session_id, one.producer) for one in found[0]}) == 1


def one_by_one(decoded: list[TranscriptEvent], text: bytes) -> list[DecodedEvent]:
    return [*map(DecodedEvent, decoded, split_payloads([text]))]


@every_row("frame", [one for _, one, _ in STRUCTURE] + [with_string(p, t) for _, t, p, _ in STRING_CASES])
def test_the_short_way_takes_no_array_with_anything_bad(frame: bytes) -> None:
    """One event that is refused has the whole array looked at more closely; what is no frame is refused both ways."""
    for array in (frame, b"[%b]" % frame, b"[%b,%b]" % (GOOD, frame), b"[%b,%b]" % (frame, GOOD)):
        found = decode_fast(array) if array.startswith(b"[") else None
        assert found is None or one_by_one(*found) == decode_events(split_frame(array))


def test_most_events_are_ordinary() -> None:
    """What streams in masses goes the short way."""
    assert decode_fast(GOOD) is not None
    both = decode_fast(b"[%b , %b]\n" % (GOOD, GOOD))
    assert both is not None
    assert [one.payload for one in one_by_one(*both)] == [GOOD, GOOD]
    assert decode_fast(b"[ %b ]" % GOOD) == decode_fast(GOOD)
    long = [b'{"type":"llm.delta","text":"%b"}' % (b"x" * count) for count in (MAX_FAST_BYTES - 40, MAX_FAST_BYTES)]
    assert [decode_fast(b"[%b]" % one) is not None for one in long] == [True, False]
    assert [decode_fast(one) is not None for one in long] == [True, False]
    assert (
        decode_fast(b'{"type":"llm.delta","turn_id":1,"item":"r","text":"\xc3\xa4","ts":1750000000000,"seq":9}')
        is not None
    )


@every_row("frame", [one for _, one, _ in STRUCTURE] + [with_string(p, t) for _, t, p, _ in STRING_CASES])
def test_the_short_way_takes_nothing_bad(frame: bytes) -> None:
    """What is refused, or is no frame, is left to the closer look."""
    if decode_fast(frame) is not None:
        assert isinstance(decode_thoroughly(frame), DecodedEvent)


@every_row(("name", "number", "field", "expected"), CASES)
def test_the_short_way_takes_no_bad_number(name: str, number: str, field: str, expected: str) -> None:
    """Numbers that JSON readers cannot hold are seen there too."""
    if decode_fast(with_number(field, number)) is not None:
        assert expected == TAKEN, name
        assert isinstance(decode_thoroughly(with_number(field, number)), DecodedEvent)


def test_only_named_kinds_may_hold_any_number() -> None:
    """The short way looks for large numbers in events with an unbounded field; types bound those of all others."""

    def may_be_any(kind: msgspec.inspect.Type) -> bool:
        if isinstance(kind, msgspec.inspect.IntType):
            return kind.le != MAX_INTEGER
        return isinstance(kind, msgspec.inspect.FloatType | msgspec.inspect.AnyType) or any(
            map(may_be_any, getattr(kind, "types", ()))
        )

    unbounded = set()
    for kind in get_args(TranscriptEvent):
        described = msgspec.inspect.type_info(kind)
        assert isinstance(described, msgspec.inspect.StructType)
        unbounded |= {(kind, field.name) for field in described.fields if may_be_any(field.type)}
    assert unbounded == {*ANY_NUMBER.items()}


@every_row(("depth", "expected"), [(1, False), (31, False), (32, False), (33, True), (400, True)])
def test_lists_of_objects_are_as_deep_as_the_deepest(depth: int, expected: bool) -> None:
    """However many objects there are, and whatever their texts look like."""
    deep = b'{"a":' * depth + b"1" + b"}" * depth
    flat = b'{"a":"},{"}'
    assert expected is is_too_deep(b",".join([flat] * 50 + [deep] + [flat] * 50), 32)


CALLS = sorted(path.stem for path in FIXTURES.glob("*.jsonl"))


@every_row("name", CALLS)
def test_call_is_the_same_by_frame_and_by_lines(name: str) -> None:
    """The file is a body of JSON lines, and its lines are frames; both are taken whole, byte by byte."""
    body = (FIXTURES / f"{name}.jsonl").read_bytes()
    lines = [arrived for line in body.splitlines() for arrived in decode_frame(line)]
    assert lines == decode_lines(body)
    assert all(isinstance(one, DecodedEvent) for one in lines)
    assert b"\n".join(one.payload for one in lines if isinstance(one, DecodedEvent)) == body.strip()


def test_times_in_ms_with_a_fraction_are_rounded() -> None:
    """An engine's fraction loses no interruption: the journal has whole numbers, and negative times are refused."""
    rounded = decode_event(b'{"type":"interrupt","turn_id":1,"audio_end_ms":1234.6}')
    assert isinstance(rounded, DecodedEvent)
    assert rounded.payload == b'{"type":"interrupt","turn_id":1,"audio_end_ms":1235}'
    timed = decode_event(b'{"type":"tts","words":[{"text":"a","start_ms":0.4,"end_ms":99.5}]}')
    assert isinstance(timed, DecodedEvent)
    assert timed.payload == b'{"type":"tts","words":[{"text":"a","start_ms":0,"end_ms":100}]}'
    refused = decode_event(b'{"type":"tts","audio_ms":-1.5}')
    assert isinstance(refused, RejectedEvent)
    assert refused.code == "invalid_field"


@pytest.mark.parametrize("text", [b'"start_ms"', b'["start_ms"]', b"1", b'{"start_ms"}'])
def test_what_is_no_object_is_no_event(text: bytes) -> None:
    """It is refused as a frame, whatever it names."""
    with pytest.raises(InvalidFrame):
        decode_event(text)
