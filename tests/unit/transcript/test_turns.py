"""The turns of a call: their causes and latencies, and when their parts were."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given

from tests.support.events import (
    EventLike,
    delta,
    done,
    event,
    failed,
    final,
    interrupt,
    message,
    partial,
    resume,
    tts,
    typed,
)
from tests.support.rows import every_row
from tests.support.strategies import PRODUCER_JOURNALS
from tests.support.transcripts import closed, entries, folded, reopened
from voicemem.protocol.events import JournaledEvent
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.state import State, decode_state, encode_state
from voicemem.transcript.turns import (
    VOICE_MS,
    ToolMarks,
    TurnMarks,
    count_false_alarms,
    reply_after,
    tool_marks,
    turn_marks,
    turns,
)

# ruff: noqa: SIM300 (asserts read `expected == actual`)


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
        "reply_after_ms": 455.5,
        "reply_after_by": "reported",
        "false_alarms": 0,
    }


def test_a_call_without_turns() -> None:
    """Before the first event there is no turn."""
    assert [] == [*turns(State())]


def test_turns_stand_in_their_order() -> None:
    """Turns are sorted by number, whatever arrived first."""
    state = folded(final(7, "C"), final(0, "A"), final(3, "B"))
    assert [0, 3, 7] == [turn["turn_id"] for turn in turns(state)]


@pytest.mark.parametrize(
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


def test_what_the_agent_says_before_anybody_spoke_is_a_greeting() -> None:
    """Also where the stack reports it as any reply: it is in turn 0."""
    assert "greeting" == only(delta(0, "Hi. ", 1000), done(0, 1100))["start"]["type"]
    assert "voice_input" == only(final(0, "Hello?", 900), delta(0, "Hi. ", 1000), done(0, 1100))["start"]["type"]


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
    shown = msgspec.json.decode(msgspec.json.encode([*turns(state)]))
    assert sorted(turn["turn_id"] for turn in shown) == [turn["turn_id"] for turn in shown]
    assert START_TYPES >= {turn["start"]["type"] for turn in shown if turn["start"]}
    assert END_TYPES >= {turn["end"]["type"] for turn in shown if turn["end"]}


# ruff: noqa: SIM300 (asserts read `expected == actual`)


ANSWERED = (
    partial(1, "How", 1000),
    final(1, "How are you?", 1400),
    delta(1, "Fine, ", 1700),
    delta(1, "thanks.", 1800),
)


def marks(*given_events: EventLike, turn: int = 1) -> TurnMarks:
    """The marks of a turn after these events."""
    state = folded(*given_events)
    return turn_marks(state, state.turns[turn])


def alarms(*given_events: EventLike, turn: int = 1) -> int:
    state = folded(*given_events)
    return count_false_alarms(state, state.turns[turn])


def tools(*given_events: EventLike, turn: int = 1) -> list[ToolMarks]:
    return list(tool_marks(folded(*given_events).turns[turn]))


def tool_call(call_id: str, turn: int, ts: int) -> Any:
    return event("tool.call", turn, ts, call_id=call_id, name="weather", arguments={})


def tool_result(call_id: str, turn: int, ts: int, result: Any = "sunny") -> Any:
    return event("tool.result", turn, ts, call_id=call_id, result=result)


def test_a_turn_of_which_all_is_known() -> None:
    """Every mark is the time of the event that states it, and nothing is an estimate."""
    known = (*ANSWERED, done(1, 1900), tts(1, 2000, audio_ms=0), tts(1, 3000, audio_ms=1000), tts(1, 3200, done=True))
    assert TurnMarks(1000, 1400, 1400, 1700, 1900, 2000, 3200) == marks(*known)


def test_a_position_tells_when_the_audio_began() -> None:
    """A voice that is at 400 ms began 400 ms before, but never before its text."""
    assert 2100 == marks(*ANSWERED, tts(1, 2500, audio_ms=400)).heard_first
    assert 1700 == marks(*ANSWERED, tts(1, 2500, audio_ms=2400)).heard_first


def test_what_only_the_end_of_playback_tells() -> None:
    """A text that was heard, or the end of playback, does not say when the voice began."""
    for played in (tts(1, 2500, heard_text="Fine, "), tts(1, 2500, done=True)):
        made = marks(*ANSWERED, played)
        assert (1850, 2500, ("heard_first",)) == (made.heard_first, made.heard_last, made.estimated)
    estimated = marks(*ANSWERED, tts(1, 2500, audio_ms=400, estimated=True))
    assert (2100, ("heard_first",)) == (estimated.heard_first, estimated.estimated)


def test_the_pipeline_reports_the_first_audio() -> None:
    """Without playback, `tts_ttfb` says when the voice began; each is of the newest reply by then."""
    first, second = event("metric", 1, 1950, name="tts_ttfb", latency_ms=90), delta(1, "Sure.", 4000, item="b")
    later = event("metric", 1, 4200, name="tts_ttfb", latency_ms=80)
    assert (1950, ()) == (
        marks(*ANSWERED, first).heard_first,
        marks(*ANSWERED, first, tts(1, 2400, done=True)).estimated,
    )
    both = marks(*ANSWERED, done(1, 1900), first, second, done(1, 4050, item="b"), later)
    assert (1950, 4050, ("heard_last",)) == (both.heard_first, both.llm_done, both.estimated)


def test_what_no_event_states_is_named() -> None:
    """A lone final and a reply without playback give estimates, which say so."""
    made = marks(final(1, "Hello.", 5000), delta(1, "Hi.", 5600), done(1, 5700))
    assert (4640, 5000) == (made.user_started, made.user_final)
    assert (5750, 5750) == (made.heard_first, made.heard_last)
    assert ("user_started", "heard_first", "heard_last") == made.estimated


def test_nothing_is_heard_after_the_cut() -> None:
    """Where it is an estimate when the voice began, it is the cut at the latest."""
    made = marks(*ANSWERED, interrupt(1, 1750, heard_text="Fine"))
    assert (1750, 1750, 1750, ("heard_first",)) == (made.heard_first, made.heard_last, made.cut, made.estimated)


def test_what_has_not_been_has_no_mark() -> None:
    """A partial is no final; a reply that still grows is not done."""
    assert TurnMarks(user_started=1000, user_final=None) == marks(partial(1, "Well", 1000))
    growing = marks(*ANSWERED)
    assert (1700, None, None, None) == (growing.llm_first, growing.llm_done, growing.cut, growing.resumed)


def test_a_cut_ends_what_was_heard() -> None:
    """The voice ends where it was interrupted, whatever was reported later."""
    made = marks(*ANSWERED, tts(1, 2000, audio_ms=0), interrupt(1, 2600), tts(1, 2700, audio_ms=600), done(1, 2800))
    assert (2600, 2600, None, 2800) == (made.cut, made.heard_last, made.resumed, made.llm_done)


def test_a_resume_takes_the_cut_back() -> None:
    """After a false alarm there is no cut; it is counted, and its resume marked."""
    played = (*ANSWERED, done(1, 1900), tts(1, 2000, audio_ms=0), interrupt(1, 2600), resume(1, 3000))
    made = marks(*played, tts(1, 3600, done=True))
    assert (None, 3000, 3600, 1) == (made.cut, made.resumed, made.heard_last, alarms(*played))


def test_each_resume_counts_once() -> None:
    """Two interruptions before one resume are one false alarm; a resume of nothing is none."""
    played = (*ANSWERED, done(1, 1900), tts(1, 2000, audio_ms=0))
    first = (interrupt(1, 2600), interrupt(1, 2650), resume(1, 3000), resume(1, 3100))
    assert 1 == alarms(*played, *first)
    assert 2 == alarms(*played, *first, interrupt(1, 3500), resume(1, 3700))
    assert 2 == alarms(*played, *first, interrupt(1, 3500), resume(1, 3700), interrupt(1, 4000))
    assert 0 == alarms(*played, resume(1, 3000))


def test_the_close_cuts_by_the_producers_clock() -> None:
    """The server's own clock says nothing about a call that is sent later."""
    playing = [*ANSWERED, tts(1, 2000, audio_ms=0), tts(1, 2500, audio_ms=500)]

    def cut_after(*ending: EventLike) -> int | None:
        sent = [entry._replace(producer="main") for entry in entries(playing)]
        own = [entry._replace(position=entry.position + len(sent)) for entry in entries(ending)]
        state = fold_all(State(), [*sent, *own])
        return turn_marks(state, state.turns[1]).cut

    assert 2500 == cut_after(closed(9_999_999))
    assert 2700 == cut_after(event("session.end", ts=2700), closed(9_999_999))
    assert None is cut_after(closed(9_999_999), reopened())


def test_typed_words_take_no_time() -> None:
    """A typed message begins and ends at once; a greeting has no caller."""
    made = marks(typed(1, "Tell me.", 1000))
    assert (1000, 1000, ()) == (made.user_started, made.user_final, made.estimated)
    greeting = marks(message(1, "Hello.", 1000))
    assert (None, None, 1000) == (greeting.user_started, greeting.user_final, greeting.llm_first)


def test_a_restored_cut_is_where_its_metadata_say() -> None:
    """Of a restored reply only the cut is known, and of one that only an interruption knew."""
    metadata = {"interrupted": True, "interrupt_timestamp": 2600, "original": "All of it."}
    assert 2600 == marks(message(1, "All", 2000, metadata=metadata)).cut
    heard = marks(interrupt(1, 2600, heard_text="All", more=True))
    assert (None, 2600) == (heard.heard_first, heard.heard_last)


def test_a_failed_llm_is_done() -> None:
    """An error ends the reply that it is about."""
    assert 1900 == marks(*ANSWERED, failed(1, 1900)).llm_done


def test_tool_calls_begin_and_end() -> None:
    """A tool call ends with its result, in whatever order they arrive; without one it has no end."""
    assert [ToolMarks("weather", "a", 1000, 1500, False)] == tools(tool_call("a", 1, 1000), tool_result("a", 1, 1500))
    assert [ToolMarks("weather", "a", 1000, 1500, False)] == tools(tool_result("a", 1, 1500), tool_call("a", 1, 1000))
    assert [ToolMarks("weather", "a", 1000, 1500, False)] == tools(tool_result("a", 2, 1500), tool_call("a", 1, 1000))
    assert [ToolMarks("weather", "a", 1000, None, False)] == tools(tool_call("a", 1, 1000))
    assert [] == tools(tool_result("a", 1, 1500))


@every_row(
    ("result", "is_failed"),
    [
        ({"error": "no such town"}, True), ({"is_error": True}, True), ({"isError": True}, True),
        ({"error": None}, False), ({"is_error": False}, False), ("error", False), ([], False),
    ],
)  # fmt: skip
def test_a_result_may_say_that_it_failed(result: Any, is_failed: bool) -> None:
    """The usual fields for an error count when they hold one."""
    (made,) = tools(tool_call("a", 1, 1000), tool_result("a", 1, 1500, result))
    assert is_failed is made.failed


def test_a_clock_in_seconds_breaks_nothing() -> None:
    """Times are passed on in whatever unit they are; what is known stays in order."""
    made = marks(final(1, "Hello.", 5), delta(1, "Hi.", 6), done(1, 6), tts(1, 7, audio_ms=800), tts(1, 8, done=True))
    assert (5, 6, 6, 8) == (made.user_final, made.llm_first, made.heard_first, made.heard_last)


def test_a_snapshot_keeps_them() -> None:
    """What was saved and loaded again has the same marks."""
    state = folded(*ANSWERED, tool_call("a", 1, 1000), tool_result("a", 1, 1500), interrupt(1, 2000), resume(1, 2100))
    loaded = decode_state(encode_state(state))
    for made in (state, loaded):
        assert (2100, 1) == (turn_marks(made, made.turns[1]).resumed, count_false_alarms(made, made.turns[1]))
    assert list(tool_marks(state.turns[1])) == list(tool_marks(loaded.turns[1]))


@given(PRODUCER_JOURNALS)
def test_any_events_give_marks(given_events: list[JournaledEvent]) -> None:
    """Whatever producers send, marks can be made and written; a voice never ends before it begins."""
    state = folded(*given_events)
    for turn in state.turns.values():
        made = turn_marks(state, turn)
        msgspec.json.decode(msgspec.json.encode([made, list(tool_marks(turn)), count_false_alarms(state, turn)]))
        if made.heard_first is not None and made.heard_last is not None:
            assert made.heard_first <= made.heard_last


def test_the_noise_of_a_false_alarm_begins_nothing() -> None:
    """A turn and its user's speech begin with what was said, with items too; a turn of noise alone has no begin."""
    played = (*ANSWERED, done(1, 1900), tts(1, 2000, audio_ms=0))
    noise = partial(2, "mhm", 2500, item="a"), interrupt(1, 2600), resume(1, 3000)
    words = partial(2, "Book", 3500, item="b"), final(2, "Book me.", 3900, item="b")
    state = folded(*played, *noise, *words)
    assert (3500, {"start_at": 3500, "type": "voice_input", "metadata": {}}) == (
        turn_marks(state, state.turns[2]).user_started,
        [*turns(state)][-1]["start"],
    )
    assert [*turns(folded(*played, *noise))][-1]["start"] is None


# How long the caller waited


def waited(*given_events: Any, turn: int = 1) -> tuple[float | None, str | None]:
    """How long the reply of a turn was waited for, and what says so."""
    state = folded(*given_events)
    return reply_after(state, state.turns[turn])


QUESTION = (partial(1, "How", 1000), final(1, "How are you?", 1400))
REPLIED = (*QUESTION, delta(1, "Fine.", 1700), done(1, 1750))


def test_the_wait_for_a_reply_ends_with_its_first_audio() -> None:
    """Playback says when the voice began; a latency of the stack's goes before a guess by the text."""
    e2e = metric("e2e", 830)
    assert (600, "marks") == waited(*REPLIED, tts(1, 2000, audio_ms=0))
    assert (600, "marks") == waited(*REPLIED, e2e, tts(1, 2600, audio_ms=600))
    assert (830, "reported") == waited(*REPLIED, e2e)
    assert (830, "reported") == waited(*REPLIED, e2e, tts(1, 2600, audio_ms=400, estimated=True))
    assert (300 + VOICE_MS, "estimate") == waited(*REPLIED)
    assert (550, "estimate") == waited(*REPLIED, tts(1, 1950, total_audio_ms=20), tts(1, 2000, total_audio_ms=900))
    assert (450, "marks") == waited(*REPLIED, metric("tts_ttfb", 90) | {"ts": 1850})


def test_the_wait_begins_when_the_caller_has_stopped() -> None:
    """The recogniser's own times say when that was; without them the last final does, or typed text."""
    timed = final(1, "How are you?", 1400) | {"start_ms": 100, "end_ms": 350}
    played = delta(1, "Fine.", 1700), tts(1, 2000, audio_ms=0)
    assert (750, "marks") == waited(partial(1, "How", 1000), timed, *played)
    late = final(1, "How are you?", 2900) | {"start_ms": 0, "end_ms": 300}
    assert (700, "marks") == waited(partial(1, "How", 1000), *played, late)
    assert (600, "marks") == waited(partial(1, "How", 1000), timed | {"end_ms": 9000}, *played)
    assert (600, "marks") == waited(timed, *played)
    assert (1000, "marks") == waited(typed(1, "How are you?", 1000), *played)
    assert (100, "marks") == waited(*QUESTION, final(1, "Well?", 1900), *played)


def test_a_wait_that_nothing_tells() -> None:
    """A greeting, a reply that no one heard, one that began before the transcript came, and a turn without one."""
    greeting = delta(1, "Hello.", 1700), tts(1, 2000, audio_ms=0)
    assert (None, None) == waited(*greeting)
    assert (None, None) == waited(*REPLIED, interrupt(1, 2000, heard_text=""))
    assert (None, None) == waited(partial(1, "How", 1000), *greeting, final(1, "How are you?", 2900))
    assert (None, None) == waited(*QUESTION)
    assert (830, "reported") == waited(*QUESTION, metric("e2e", 830))


def test_the_wait_is_for_the_first_reply_to_the_words() -> None:
    """Not for the greeting before them, nor for a second answer; the caller's next words do not count."""
    greeting = delta(1, "Hello.", 100, item="g"), tts(1, 200, item="g", audio_ms=0), done(1, 150, item="g")
    first = delta(1, "Let me see.", 1700, item="a"), tts(1, 1800, item="a", audio_ms=0)
    second = delta(1, "Fine.", 4000, item="b"), tts(1, 4100, item="b", audio_ms=0)
    later = partial(1, "And", 5000, item="u2"), final(1, "And you?", 5400, item="u2")
    assert (400, "marks") == waited(*greeting, *QUESTION, *first, *second, *later)
