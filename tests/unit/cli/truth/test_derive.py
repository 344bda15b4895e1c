"""The events that an engine would have sent about a true call, for each kind of evidence."""

from __future__ import annotations

import msgspec
import pytest

from bench.harness.truth import load_calls
from tests.support.paths import TRUTH
from tests.support.rows import every_row
from tests.support.samples.true_calls import BEGAN, call, reply
from voicemem.cli.truth import KINDS, FalseAlarm, PlayedPart, Synthesis, derive
from voicemem.protocol.codec import DecodedEvent, decode_event
from voicemem.protocol.types import JsonObject

TALKED = "one two three four five six"


def sent(kind: str, *types: str, **given: object) -> list[JsonObject]:
    """The events of some types about a call with one reply, without what they all have."""
    cut = reply(TALKED, **({"cut": 1300} | given))  # type: ignore[arg-type]
    events = derive(call(cut), KINDS[kind])
    common = ("type", "turn_id", "item")
    return [
        {name: value for name, value in {**event, "ts": event["ts"] - BEGAN}.items() if name not in common}
        for event in events
        if event["type"] in types
    ]


@every_row("kind", KINDS)
def test_every_event_is_one_of_the_protocol(kind: str) -> None:
    """The events of all true calls are accepted; they are in the order of their times, and end the session."""
    for true in load_calls(TRUTH / "calls"):
        events = derive(true, KINDS[kind])
        for event in events:
            arrived = decode_event(msgspec.json.encode({**event, "session_id": "s"}))
            assert isinstance(arrived, DecodedEvent), arrived
        assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
        assert {event["type"] for event in events[-2:]} >= {"session.end"}


def test_the_deltas_of_a_reply_are_its_text() -> None:
    """Nothing is said twice, and nothing is left out."""
    assert "".join(event["text"] for event in sent("words", "llm.delta")) == TALKED


@every_row(
    ("kind", "evidence"),
    [
        ("heard_text", {"heard_text": "one two "}),
        ("heard_chars", {"heard_chars": 11}),
        ("words", {"audio_end_ms": 1300}),
        ("position", {"audio_end_ms": 1300}),
        ("total_after", {"audio_end_ms": 1300}),
        ("clock_position", {"audio_end_ms": 1300, "estimated": True}),
        ("clock_gaps", {"audio_end_ms": 1300, "estimated": True}),
        ("clock_audio", {}),
        ("clock_text", {}),
        ("generated", {"heard_text": TALKED}),
    ],
)
def test_an_interrupt_states_its_evidence(kind: str, evidence: JsonObject) -> None:
    """Two words and most of the third were played when the caller broke in."""
    assert sent(kind, "interrupt") == [{"ts": 3800, **evidence}]


def test_words_come_with_their_times() -> None:
    """As the TTS has them, once their sentence is synthesised."""
    (event,) = [event for event in sent("words", "tts") if "words" in event]
    assert event["ts"] == 2700
    assert event["words"][1] == {"text": "two", "start_ms": 500, "end_ms": 900}
    assert len(event["words"]) == 6


def test_times_may_begin_again_and_entries_be_clauses() -> None:
    """Times of a sentence count from its own beginning; a clause ends with a mark, or with its sentence."""
    talked = "one two, three four five six"
    sentences = [Synthesis(2600, 14, 1400), Synthesis(2700, len(talked), 3000)]
    cut = msgspec.structs.replace(reply(talked, cut=1300), synthesised=sentences)

    def timed(kind: str) -> list[list[tuple[str, int, int]]]:
        events = derive(call(cut), KINDS[kind])
        return [[(w["text"], w["start_ms"], w["end_ms"]) for w in one["words"]] for one in events if "words" in one]

    assert timed("words_sentences")[1][:2] == [("four", 100, 500), ("five", 600, 1000)]
    assert timed("clauses") == [[("one two,", 0, 900), ("three", 1000, 1400)], [("four five six", 1500, 2900)]]


def test_totals_come_before_or_after_the_cut() -> None:
    """With the text that they measure, or without it."""
    total = {"total_audio_ms": 3000, "synthesised_text": TALKED}
    start = {"ts": 2500, "audio_ms": 0}
    assert sent("total_before", "tts") == [start, {"ts": 2700, **total}]
    assert sent("total_running", "tts") == [start, {"ts": 2700, "total_audio_ms": 3000}]
    assert sent("total_after", "tts") == [start, {"ts": 3920, **total}]


def test_progress_is_reported_after_words_or_twice_a_second() -> None:
    """Up to the cut, and no further."""
    texts = [event for event in sent("progress_text", "tts") if "heard_text" in event]
    assert texts == [{"ts": 2900, "heard_text": "one "}, {"ts": 3400, "heard_text": "one two "}]
    positions = [event for event in sent("progress", "tts") if event.get("audio_ms")]
    assert positions == [{"ts": 3000, "audio_ms": 500}, {"ts": 3500, "audio_ms": 1000}]


def test_a_reply_that_was_heard_ends_with_done() -> None:
    """Where there are playback events at all."""
    assert {"ts": 5500, "done": True} in sent("position", "tts", cut=None)
    assert sent("clock_text", "tts", "interrupt", cut=None) == []


def test_a_sentence_that_ends_is_taken_for_the_reply() -> None:
    """By a TTS that stops between sentences; the last one is the reply's own end, which was not heard."""
    cut = reply(TALKED, cut=1300)
    sentences = [Synthesis(2600, 7, 900), Synthesis(2700, len(TALKED), 3000)]
    events = derive(call(msgspec.structs.replace(cut, synthesised=sentences)), KINDS["done_before"])
    assert [event["ts"] - BEGAN for event in events if event.get("done")] == [3400]


def test_a_false_alarm_is_an_interrupt_and_a_resume() -> None:
    """The clock of the engine does not count the pause."""
    given = {"alarms": [FalseAlarm(3000, 4000)], "played": [PlayedPart(2500, 3000, 0), PlayedPart(4000, 4800, 500)]}
    assert sent("position", "interrupt", "resume", **given) == [
        {"ts": 3000, "audio_end_ms": 500},
        {"ts": 4000},
        {"ts": 4800, "audio_end_ms": 1300},
    ]
    assert sent("clock_position", "interrupt", **given)[-1]["audio_end_ms"] == 1300


@pytest.mark.parametrize(
    ("kind", "last"),
    [
        ("heard_text", {"type": "tts", "heard_text": "one two "}),
        ("heard_chars", {"type": "interrupt", "heard_chars": 11}),
        ("position", {"type": "tts", "audio_ms": 1300}),
        ("clock_text", {"type": "interrupt"}),
    ],
)
def test_a_hang_up_comes_with_the_last_progress(kind: str, last: JsonObject) -> None:
    """Or as an interrupt, where progress cannot say it."""
    *_, before, end = derive(call(reply(TALKED, cut=1300), end_ms=3800), KINDS[kind])
    assert end == {"type": "session.end", "ts": BEGAN + 3800}
    assert before == {**last, "ts": BEGAN + 3800, "turn_id": 1, "item": "a1"}


def test_a_hang_up_is_all_that_a_clock_sees() -> None:
    """Without positions there is nothing to report: the end of the session cuts the reply."""
    events = derive(call(reply(TALKED, cut=1300), end_ms=3800), KINDS["clock_audio"])
    assert [event["type"] for event in events if event["ts"] == BEGAN + 3800] == ["session.end"]
