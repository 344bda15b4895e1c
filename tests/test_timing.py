"""When what was said could be heard."""

from __future__ import annotations

from typing import Any

import pytest
from calls import (
    CALLS,
    Given,
    JsonObject,
    closed,
    delta,
    done,
    entries,
    event,
    final,
    folded,
    interrupt,
    message,
    partial,
    tts,
    typed,
)
from hypothesis import given, settings

from voicemem.sessions.read_model import ReadModel
from voicemem.transcript.history import turn_times
from voicemem.transcript.state import State


def times(*given_events: Given) -> list[dict[str, Any]]:
    """The times of every message of a call."""
    state = folded(*given_events)
    return [one for number in state.turn_numbers for one in turn_times(state, state.turns[number])]


def speech(start: int | None = None, end: int | None = None, **more: Any) -> dict[str, Any]:
    given_times = {"speech_start_ms": start, "speech_end_ms": end, **more}
    return {name: value for name, value in given_times.items() if value is not None}


USERS: dict[str, tuple[list[JsonObject], dict[str, Any]]] = {
    "nothing was given": ([final(1, "Hi.")], {}),
    "both": ([final(1, "Hi.", start_ms=5, end_ms=9)], speech(5, 9)),
    "zero is a time": ([final(1, "Hi.", start_ms=0, end_ms=9)], speech(0, 9)),
    "one alone": ([final(1, "Hi.", end_ms=9)], speech(end=9)),
    "the start came with a partial": ([partial(1, "H", start_ms=5), final(1, "Hi.", end_ms=9)], speech(5, 9)),
    "the final says better": ([partial(1, "H", start_ms=5), final(1, "Hi.", start_ms=6)], speech(6)),
    "of several segments": (
        [
            final(1, "Hi.", segment=1, start_ms=20, end_ms=29),
            final(1, "Ah.", segment=0, start_ms=5, end_ms=9),
        ],
        speech(5, 29),
    ),
    "a withdrawn segment does not count": (
        [
            final(1, "Hi.", segment=0, start_ms=5, end_ms=9),
            final(1, "um", segment=1, start_ms=20, end_ms=29),
            final(1, "", segment=1),
        ],
        speech(5, 9),
    ),
    "the metadata goes before": (
        [final(1, "Hi.", start_ms=5, end_ms=9, metadata={"speech_end_ms": 8, "speech_algorithmic_delay": 1.5})],
        speech(5, 8, speech_algorithmic_delay=1.5),
    ),
    "what is no number is none": ([final(1, "Hi.", metadata={"speech_end_ms": "8", "speech_start_ms": True})], {}),
    "typed": ([typed(1, "Hi.")], {}),
    "typed, with metadata": ([typed(1, "Hi.", metadata={"speech_start_ms": 3})], speech(3)),
}


@pytest.mark.parametrize(("call", "expected"), USERS.values(), ids=USERS)
def test_the_times_of_a_user(call: list[JsonObject], expected: dict[str, Any]) -> None:
    """They are those that the recogniser gave, unscaled; the metadata goes before, and what was typed has none."""
    assert [expected] == times(*call)


REPLIES: dict[str, tuple[list[JsonObject], dict[str, Any]]] = {
    "never played": ([done(1, 100, text="Yes.")], {}),
    "played to a position": ([done(1, 100, text="Yes."), tts(1, 1500, audio_ms=400)], speech(1100, 1500)),
    "played to two": (
        [done(1, 100, text="Yes."), tts(1, 1500, audio_ms=400), tts(1, 1800, audio_ms=690)],
        speech(1100, 1800),
    ),
    "played to the end": (
        [done(1, 100, text="Yes."), tts(1, 1500, audio_ms=400), tts(1, 2000, done=True)],
        speech(1100, 2000),
    ),
    "only the end is known": ([done(1, 100, text="Yes."), tts(1, 2000, done=True)], speech(end=2000)),
    "cut short": (
        [delta(1, "Yes and no.", 100), tts(1, 1500, audio_ms=400), interrupt(1, 1600, heard_text="Yes ")],
        speech(1100, 1500),
    ),
    "named by its item": (
        [done(1, 100, text="Yes.", item="r"), tts(None, 1500, item="r", audio_ms=400)],
        speech(1100, 1500),
    ),
    "timing is no playback": ([done(1, 100, text="Yes."), tts(1, 1500, total_audio_ms=400)], {}),
    "the metadata goes before": (
        [done(1, 100, text="Yes.", metadata={"speech_start_ms": 7}), tts(1, 2000, done=True)],
        speech(7, 2000),
    ),
    "a greeting": ([message(0, "Hello."), tts(0, 2000, audio_ms=10)], speech(1990, 2000)),
}


@pytest.mark.parametrize(("call", "expected"), REPLIES.values(), ids=REPLIES)
def test_the_times_of_a_reply(call: list[JsonObject], expected: dict[str, Any]) -> None:
    """They are Unix ms, from what was reported of its playback."""
    assert [expected] == times(*call)


def test_each_reply_of_a_turn_has_its_own() -> None:
    """Playback that names the turn alone is about the reply that had begun by then."""
    call = [
        done(1, 100, text="One.", item="a"),
        tts(1, 500, audio_ms=300),
        done(1, 1000, text="Two.", item="b"),
        tts(1, 1500, audio_ms=200),
    ]
    assert [speech(200, 500), speech(1300, 1500)] == times(*call)


@settings(max_examples=60)
@given(CALLS)
def test_times_that_are_kept_are_those_made_anew(call: list[Given]) -> None:
    """However a memory is read while it grows, every message has its times, and they are those of the whole call."""
    memory = ReadModel(State())
    for entry in entries([*call, event("asr", 1, text="Bye.", final=True, start_ms=1), closed(10**6)]):
        memory.fold([entry])
        shown = memory.timed_messages()
        assert memory.messages() == [message for message, _ in shown]
    state = memory.state
    assert [one for _, one in shown] == [one for n in state.turn_numbers for one in turn_times(state, state.turns[n])]
