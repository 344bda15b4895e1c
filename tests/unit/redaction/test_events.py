"""What is kept of events, over their borders and after a restart."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from voicemem.protocol.codec import DecodedEvent, decode_event, decode_journaled
from voicemem.protocol.comparison import HIDDEN, is_same_event
from voicemem.protocol.types import JsonObject
from voicemem.redaction.events import Speech, redact_event
from voicemem.redaction.texts import Rules, rules_of

CARD = "4929 1234 5678 9012"
CARDS = rules_of(["cards"])


def keep(events: Iterable[JsonObject], rules: Rules = CARDS, speech: Speech | None = None) -> list[JsonObject]:
    """What is journaled of events of one producer."""
    speech = speech or Speech(rules)
    return [msgspec.json.decode(keep_one(event, speech)) for event in events]


def keep_one(event: JsonObject, speech: Speech) -> bytes:
    payload = msgspec.json.encode(event)
    decoded = decode_event(payload)
    assert isinstance(decoded, DecodedEvent)
    redacted = redact_event(decoded.event, payload, speech)
    if redacted is None:
        return payload
    assert msgspec.json.decode(redacted[1], type=dict[str, Any]) == (msgspec.json.decode(redacted[1]))
    assert decode_journaled(redacted[1]) == redacted[0]
    return redacted[1]


def recalled(journal: list[JsonObject], rules: Rules = CARDS) -> Speech:
    """What is known of a producer after a restart: only what was journaled."""
    speech = Speech(rules)
    keep(journal, rules, speech)
    return speech


def digits(text: str) -> int:
    return sum(char.isdecimal() for char in text)


def cut(text: str, places: Iterable[int]) -> list[str]:
    return [text[start:end] for start, end in pairwise([0, *sorted(places), len(text)])]


PLACES = st.sets(st.integers(0, len(CARD)), max_size=8)


@every_row(
    ("event", "field"),
    [
        ({"type": "asr", "text": CARD, "final": True}, "text"),
        ({"type": "asr", "text": CARD}, "text"),
        ({"type": "llm.delta", "text": CARD}, "text"),
        ({"type": "llm.delta", "text": CARD, "whole": True}, "text"),
        ({"type": "llm.done", "text": CARD}, "text"),
        ({"type": "llm.error", "text": CARD}, "text"),
        ({"type": "tts", "heard_text": CARD}, "heard_text"),
        ({"type": "tts", "synthesised_text": CARD, "total_audio_ms": 5}, "synthesised_text"),
        ({"type": "interrupt", "heard_text": CARD}, "heard_text"),
        ({"type": "message", "role": "user", "source": "message", "text": CARD}, "text"),
        ({"type": "message", "role": "assistant", "source": "greeting", "text": CARD}, "text"),
        ({"type": "tool.call", "call_id": "c", "name": "pay", "arguments": CARD}, "arguments"),
        ({"type": "tool.result", "call_id": "c", "result": CARD}, "result"),
    ],
)
def test_every_text_of_an_event_is_cut_off(event: JsonObject, field: str) -> None:
    """What users said, what was generated and heard of it, messages, and what tools are called with."""
    (kept,) = keep([event])
    assert kept == event | {field: "4929 12██ ████ ████"}


@every_row(
    ("value", "kept"),
    [
        ({"number": 4929123456789012, "amount": 250}, {"number": "492912██████████", "amount": 250}),
        ({"number": 4929123456789012.0}, {"number": "492912██████████"}),
        ({"4929123456789012": True}, {"492912██████████": True}),
        ([4, 9, 2, 9, 1, 2, 3, 4], [4, 9, 2, 9, 1, 2, "█", "█"]),
        (["4929", "1234", "5678"], ["4929", "12██", "████"]),
        (
            '{"number": "4929123456789012", "list": [4929, 12345]}',
            '{"number":"492912██████████","list":[4929,"12███"]}',
        ),
        ({"at": 1764000000000, "since": 1764000000, "rate": 0.12345678}, None),
        ({"date": "2026-11-23", "time": "10:30", "ok": True, "none": None}, None),
        ('{"number": 12', None),
    ],
)
def test_arguments_of_any_form_are_cut_off(value: Any, kept: Any) -> None:
    """Texts, numbers, keys, JSON in a text, and runs over the items of a list; times and dates stay."""
    (event,) = keep([{"type": "tool.call", "call_id": "c", "name": "pay", "arguments": value}])
    assert event["arguments"] == (value if kept is None else kept)


def test_metadata_is_cut_off_but_for_its_times() -> None:
    """What a producer adds to a message is shown with it."""
    metadata = {"note": CARD, "interrupted": True, "interrupt_timestamp": 1678905225, "original": CARD}
    (event,) = keep([{"type": "message", "role": "assistant", "source": "llm", "text": "Hello.", "metadata": metadata}])
    kept = {"note": "4929 12██ ████ ████", "original": "4929 12██ ████ ████"}
    assert event["metadata"] == metadata | kept


@given(PLACES, st.integers(0, 9))
def test_deltas_are_cut_off_over_their_borders(places: set[int], restart: int) -> None:
    """A number in deltas, also if another process takes over between any two of them."""
    deltas = [{"type": "llm.delta", "item": "r", "text": piece} for piece in cut(CARD, places)]
    before = keep(deltas[:restart])
    after = keep(deltas[restart:], CARDS, recalled(before))
    assert "".join(event["text"] for event in before + after) == "4929 12██ ████ ████"


@given(PLACES, st.integers(0, 9), st.booleans())
def test_finals_are_cut_off_over_their_borders(places: set[int], restart: int, named: bool) -> None:
    """A number that a user says in several utterances, while the agent says something in between."""
    events: list[JsonObject] = []
    for number, piece in enumerate(cut(CARD, places)):
        segment = {"item": f"u{number}"} if named else {}
        events += [{"type": "asr", "text": piece[: len(piece) // 2], **segment} for _ in range(2)]
        events.append({"type": "asr", "text": piece, "final": True, **segment})
        events.append({"type": "llm.delta", "text": "Go on."})
    before = keep(events[:restart])
    kept = before + keep(events[restart:], CARDS, recalled(before))
    finals = "".join(event["text"] for event in kept if event.get("final"))
    assert finals == "4929 12██ ████ ████"
    partials = [event["text"] for event in kept if event["type"] == "asr" and not event.get("final")]
    assert all(finals.find(text) >= 0 for text in partials)


@given(PLACES)
def test_partials_that_never_become_final_are_cut_off(places: set[int]) -> None:
    """Segments of which only partials come, each after the one before it."""
    events = [{"type": "asr", "text": piece, "segment": number} for number, piece in enumerate(cut(CARD, places))]
    assert digits("".join(event["text"] for event in keep(events))) <= 6


@given(PLACES, st.integers(0, len(CARD)))
def test_what_was_heard_stays_the_beginning_of_what_was_generated(places: set[int], heard: int) -> None:
    """Deltas, the whole reply and heard texts agree, whoever reports them; words are found in the text."""
    text = f"I read back {CARD}. Right?"
    deltas = keep([{"type": "llm.delta", "item": "r", "text": piece} for piece in cut(text, places)])
    (done,) = keep([{"type": "llm.done", "item": "r", "text": text}])
    assert "".join(event["text"] for event in deltas) == done["text"]
    (interrupt,) = keep([{"type": "interrupt", "item": "r", "heard_text": text[: 12 + heard]}])
    assert done["text"].startswith(interrupt["heard_text"])
    words = [{"text": word, "start_ms": at, "end_ms": at + 1} for at, word in enumerate(text.split())]
    timed = keep([{"type": "tts", "item": "r", "words": [word]} for word in [*words, *words[3:5]]])
    assert [event["words"][0]["text"] for event in timed] == [*done["text"].split(), *done["text"].split()[3:5]]


def test_words_of_a_user_are_those_of_the_text() -> None:
    """The words of a final go on from the same place as its text."""
    words = [{"text": word, "start_ms": 0, "end_ms": 1, "score": 0.5} for word in ("5678", "9012")]
    first, last = keep(
        [
            {"type": "asr", "text": "4929 1234", "final": True},
            {"type": "asr", "text": "5678 9012", "final": True, "words": words},
        ]
    )
    assert (first["text"], last["text"]) == ("4929 12██", "████ ████")
    assert [(word["text"], word["score"]) for word in last["words"]] == [("████", 0.5), ("████", 0.5)]


def test_replies_are_texts_of_their_own() -> None:
    """Each reply begins again, by item, by turn, or after the end of the one before it."""
    half: list[JsonObject] = [
        {"type": "llm.delta", "text": "4929 12", **name} for name in ({"item": "a"}, {"turn_id": 0}, {})
    ]
    assert keep(half) == half
    assert [event["text"] for event in keep([half[2], half[2]])] == ["4929 12", "████ ██"]
    assert keep([half[2], {"type": "llm.done"}, half[2]])[2] == half[2]


@given(PLACES, st.integers(0, 9))
def test_a_resend_is_the_same_event(places: set[int], restart: int) -> None:
    """What was journaled equals the original however much of it was redacted then, and not another event."""
    pieces = cut(CARD, places)
    events: list[JsonObject] = [{"type": "llm.delta", "seq": n + 1, "text": text} for n, text in enumerate(pieces)]
    kept = keep(events)
    for stored, original in zip(kept, events, strict=True):
        for again in (original, *keep([original]), *keep([original], CARDS, recalled(kept[:restart]))):
            if HIDDEN in str(stored) + str(again) or stored == again:
                assert is_same_event(msgspec.json.encode(stored), msgspec.json.encode(again))
        other = {**original, "text": f"{original['text']} more words"}
        assert not is_same_event(msgspec.json.encode(stored), msgspec.json.encode(other))


TWICE = {
    "text": b'{"type":"asr","text":"%b","text":"Hi.","final":true}',
    "metadata": b'{"type":"asr","text":"Hi.","final":true,"metadata":{"n":"%b","n":1}}',
    "arguments": b'{"type":"tool.call","call_id":"c","name":"n","arguments":{"n":{"a":"%b","a":""}},"turn_id":1}',
    "result": b'{"type":"tool.result","call_id":"c","result":"%b","result":"none"}',
}


@every_row("where", TWICE)
def test_a_field_that_comes_twice_hides_nothing(where: str) -> None:
    """Whoever reads the event sees the last one; the journal has no other."""
    payload = TWICE[where] % CARD.encode()
    decoded = decode_event(payload)
    assert isinstance(decoded, DecodedEvent)
    redacted = redact_event(decoded.event, payload, Speech(CARDS))
    assert redacted is not None
    assert redacted[0] is decoded.event
    assert CARD.encode() not in redacted[1]
    assert decode_journaled(redacted[1]) == decoded.event


EMAIL = rules_of(["email"])


@every_row(
    ("text", "kept"),
    [
        ("write to john.doe@example.com, please", "write to ████@████, please"),
        ("john dot doe at example dot com, please", "████ dot ████ at ████ dot ████, please"),
        ("write ann at example.com, or bob @ example.com.", "write ████ at ████, or ████ @ ████."),
        ("j o e at g m a i l dot com", "████ ████ ████ at ████ ████ ████ ████ ████ dot ████"),
        ("ann (at) my dash shop (dot) com", "████ (at) ████ dash ████ (dot) ████"),
        ("meet me at noon, not by dot", "meet me at noon, not by dot"),
        ("Meine ist max punkt muster at beispiel punkt de.", "Meine ist ████ punkt ████ at ████ punkt ████."),
        ("meet me at the office @ noon", "meet me at the office @ noon"),
    ],
)
def test_addresses_of_users_are_hidden(text: str, kept: str) -> None:
    """Written and spelt out, with as many words as before."""
    (event,) = keep([{"type": "asr", "text": text, "final": True}], EMAIL)
    assert event["text"] == kept


@given(st.sets(st.integers(0, 40), max_size=8))
def test_addresses_in_pieces_lose_what_follows_the_sign(places: set[int]) -> None:
    """Of an address in deltas what stands before its sign was kept when the sign comes; nothing after it is."""
    text = "It is john.doe@example.com and no more."
    kept = keep(
        [{"type": "llm.delta", "text": piece} for piece in cut(text, {min(p, len(text)) for p in places})], EMAIL
    )
    joined = "".join(event["text"] for event in kept)
    assert joined.replace(HIDDEN, "") == "It is john.doe@ and no more."
    assert len(joined.split()) == len(text.split())


def names(text: str) -> Iterable[tuple[int, int]]:
    """An operator's own: where the name Anna stands."""
    if "fail" in text:
        raise ValueError(text)
    return [(place, place + 4) for place in range(len(text)) if text.startswith("Anna", place)]


def test_own_rules_hide_what_they_find() -> None:
    """Words in the spans of an operator's function; all of a text with which it fails."""
    own = rules_of(["cards"], [names])
    said = ["I am Anna B.", "fail with my secret", f"Anna has {CARD}"]
    kept = keep([{"type": "asr", "text": text, "final": True} for text in said], own)
    assert [event["text"] for event in kept] == ["I am ████ B.", "████ ████ ████ ████", "████ has 4929 12██ ████ ████"]


def test_what_has_no_texts_stays() -> None:
    """Ids, names of users and tools, times and ends are not looked at."""
    events: list[JsonObject] = [
        {"type": "asr", "text": "Hello.", "item": "4929123456789012", "user": "+4930123456789", "final": True},
        {"type": "metric", "name": "e2e", "latency_ms": 12345678},
        {"type": "session.end", "reason": "hung up"},
        {"type": "session.update", "labels": {"order": "4929123456789012"}},
    ]
    assert keep(events) == events
