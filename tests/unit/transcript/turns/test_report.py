"""The turns of a call: when each began and ended, why, and how long the pipeline took."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given

from tests.support.events import delta, done, event, failed, final, interrupt, message, partial, resume, tts
from tests.support.rows import every_row
from tests.support.strategies import PRODUCER_JOURNALS
from tests.support.transcripts import closed, folded
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.state import State
from voicemem.transcript.turns.report import turns

START_TYPES = {"voice_input", "greeting", "silence_timeout", "api_speak", "api_think", "message"}
END_TYPES = {"ok", "interrupted", "ignored", "error"}


def only(*given_events: Any) -> JsonObject:
    """The one turn of a call."""
    (turn,) = turns(folded(*given_events))
    return turn


def metric(name: str, latency_ms: float, turn: int = 1) -> JsonObject:
    return event("metric", turn, name=name, latency_ms=latency_ms)


def test_a_turn_from_voice_to_voice() -> None:
    """A turn begins with the user's first word, ends with the last word heard, and has Agora's fields and ours."""
    turn = only(
        partial(1, "How", 1000),
        final(1, "How are you?", 1400),
        metric("asr_ttlw", 120),
        metric("llm_ttft", 245.5),
        metric("tts_ttfb", 90),
        metric("e2e", 455.5),
        delta(1, "Fine.", 1700),
        done(1, 1750),
        tts(1, 2600, done=True),
    )
    latencies = [("asr_ttlw", 120), ("llm_ttft", 245.5), ("tts_ttfb", 90)]
    assert turn == {
        "turn_id": 1,
        "start": {"start_at": 1000, "type": "voice_input", "metadata": {}},
        "end": {"end_at": 2600, "type": "ok", "metadata": {}},
        "metrics": {
            "e2e_latency_ms": 455.5,
            "segmented_latency_ms": [{"name": name, "latency": latency} for name, latency in latencies],
        },
        "false_alarms": 0,
    }


def test_a_call_without_turns() -> None:
    """Before the first event there is no turn."""
    assert [] == turns(State())


def test_turns_stand_in_their_order() -> None:
    """Turns are sorted by number, whatever arrived first."""
    state = folded(final(7, "C"), final(0, "A"), final(3, "B"))
    assert [0, 3, 7] == [turn["turn_id"] for turn in turns(state)]


@every_row(
    ("first", "kind"),
    [
        (message(1, "Hello.", 1000), "greeting"),
        (message(1, "Still there?", 1000, source="silence"), "silence_timeout"),
        (message(1, "Time is up.", 1000, source="command"), "api_speak"),
        (message(1, "Tell her.", 1000, role="user", source="command"), "api_think"),
        (partial(1, "Well", 1000), "voice_input"),
        (delta(1, "Well, ", 1000), "voice_input"),
    ],
)
def test_how_a_turn_begins(first: JsonObject, kind: str) -> None:
    """The type of the start is Agora's word for what came first."""
    assert {"start_at": 1000, "type": kind, "metadata": {}} == only(first, delta(1, "More.", 1500), done(1, 1600))[
        "start"
    ]


def test_the_user_begins_a_turn_before_any_reply() -> None:
    """A turn that the user spoke in began with the user, also when the transcript is late."""
    turn = only(delta(1, "Yes.", 1500), done(1, 1600), final(1, "Right?", 1200))
    assert (1200, "voice_input") == (turn["start"]["start_at"], turn["start"]["type"])


@pytest.mark.parametrize("growing", [[], [delta(1, "Well ")], [delta(1, "Well "), tts(1, 5000, heard_text="Well ")]])
def test_a_turn_that_goes_on_has_no_end(growing: list[JsonObject]) -> None:
    """While the reply is awaited or grows, the end is null."""
    assert only(final(1, "And?"), *growing)["end"] is None


def test_without_playback_a_turn_ends_with_the_generation() -> None:
    """An engine that does not report playback has its turns end when the text was complete."""
    assert {"end_at": 1600, "type": "ok", "metadata": {}} == only(delta(1, "Yes.", 1500), done(1, 1600))["end"]


@pytest.mark.parametrize(("cause", "expected"), [("api_interrupt", "api_interrupt"), (None, "start_of_speech")])
def test_an_interrupted_turn_says_why(cause: str | None, expected: str) -> None:
    """It ends at the first interruption, by the cause that was given, else by the user's speech."""
    cuts = [interrupt(1, 1600, heard_text="On", cause=cause), interrupt(1, 1800, heard_text="One", cause="later")]
    turn = only(delta(1, "One two three.", 1500), *cuts, done(1, 1900))
    assert {"end_at": 1600, "type": "interrupted", "metadata": {"caused_by": expected}} == turn["end"]


def test_a_false_alarm_does_not_end_a_turn() -> None:
    """After a resume the turn ends when the reply was heard."""
    turn = only(delta(1, "One two.", 1500), interrupt(1, 1600), resume(1, 1700), done(1, 1800), tts(1, 2000, done=True))
    assert {"end_at": 2000, "type": "ok", "metadata": {}} == turn["end"]


@pytest.mark.parametrize("text", [None, "Sorry."])
def test_a_failed_turn_says_so(text: str | None) -> None:
    """A failed LLM call ends the turn with Agora's reason, and its own code."""
    turn = only(final(1, "And?", 1000), failed(1, 1500, code=503, text=text))
    metadata = {"reason": "LLM_REQUEST_ERR", "details": "503"}
    assert {"end_at": 1500, "type": "error", "metadata": metadata} == turn["end"]


def test_the_close_ends_what_goes_on() -> None:
    """A turn without a reply ends with the call."""
    assert {"end_at": 9000, "type": "ok", "metadata": {}} == only(final(1, "Bye.", 1000), closed(9000))["end"]


def test_a_reply_that_the_close_cuts_was_not_interrupted_by_speech() -> None:
    """When the call ends in the middle of a reply, the turn says so, and not that the user spoke."""
    end = only(delta(1, "One two three.", 1500), tts(1, 1600, heard_text="One "), closed(1700))["end"]
    assert (1700, "interrupted") == (end["end_at"], end["type"])
    assert "start_of_speech" != end["metadata"]["caused_by"]


def test_a_turn_of_several_replies_ends_with_the_last() -> None:
    """While one reply is incomplete the turn goes on; then its last playback counts."""
    first = [delta(1, "One moment.", 1000, item="a"), done(1, 1100, item="a"), tts(1, 1500, item="a", done=True)]
    second = [delta(1, "Found it.", 2000, item="b")]
    assert only(*first, *second)["end"] is None
    assert 2500 == only(*first, *second, done(1, 2100, item="b"), tts(1, 2500, item="b", done=True))["end"]["end_at"]


def test_a_restored_turn() -> None:
    """Messages of an earlier call have begins and ends, too."""
    carried = {"interrupted": True, "interrupt_timestamp": 1500, "original": "One two."}
    turn = only(message(1, "One ", 1000, source="llm", metadata=carried))
    assert 1000 == turn["start"]["start_at"]
    assert turn["end"]["type"] in END_TYPES


def test_the_newest_value_of_a_latency_counts() -> None:
    """A latency that is reported again is replaced, in its place."""
    turn = only(metric("tts_ttfb", 100), metric("llm_ttft", 5), metric("tts_ttfb", 90))
    assert {("tts_ttfb", 90), ("llm_ttft", 5)} == {
        (one["name"], one["latency"]) for one in turn["metrics"]["segmented_latency_ms"]
    }


@pytest.mark.parametrize("name", ["e2e", "e2e_latency", "e2e_latency_ms"])
def test_the_whole_latency_stands_apart(name: str) -> None:
    """However the producer calls it, the end-to-end latency has Agora's field."""
    assert {"e2e_latency_ms": 337, "segmented_latency_ms": []} == only(metric(name, 337))["metrics"]


def test_without_metrics_there_are_no_latencies() -> None:
    """No latency is made up."""
    assert {"segmented_latency_ms": []} == only(final(1, "Hi."))["metrics"]


def test_a_turn_of_which_only_a_metric_is_known() -> None:
    """A turn without words has neither begin nor end."""
    turn = only(metric("llm_ttft", 5))
    assert (None, None) == (turn["start"], turn["end"])


@given(PRODUCER_JOURNALS)
def test_every_call_has_turns(call: list[Any]) -> None:
    """Whatever producers send, the turns can be told, in Agora's words, as JSON."""
    state = fold_all(State(), [DecodedRow(position, position * 1000, one) for position, one in enumerate(call, 1)])
    shown = msgspec.json.decode(msgspec.json.encode(turns(state)))
    assert sorted(turn["turn_id"] for turn in shown) == [turn["turn_id"] for turn in shown]
    assert START_TYPES >= {turn["start"]["type"] for turn in shown if turn["start"]}
    assert END_TYPES >= {turn["end"]["type"] for turn in shown if turn["end"]}
