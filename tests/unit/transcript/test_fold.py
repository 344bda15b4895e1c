"""The fold as a whole: what holds for any call, in any order of arrival."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.events import EventLike, delta, done, event, failed, interrupt, partial
from tests.support.profiles import examples
from tests.support.samples.folds import KINDS, cut_texts
from tests.support.strategies import ANY_JOURNALS, PRODUCER_EVENTS, PRODUCER_JOURNALS, TEXTS, overtaking_calls
from tests.support.transcripts import (
    closed,
    entries,
    folded,
    heard_text_of,
    message_dicts,
    messages_after,
    only_message,
    reopened,
)
from voicemem.protocol.events import RefusalMarker, SessionGap
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import DecodedRow, fold, fold_all
from voicemem.transcript.history import tool_uses
from voicemem.transcript.replies.playing import settle
from voicemem.transcript.state import State, decode_state, encode_state
from voicemem.transcript.turns import turns

# Rule 9: failure, and rule 10: what is no message


def test_error_closes_the_open_reply_as_generated() -> None:
    """A failed call ends its reply, which is neither lost nor marked as interrupted."""
    assert only_message(delta(1, "One ", 10), failed(1, 20), closed(50)) == only_message(
        delta(1, "One ", 10), done(1, 20)
    )


NAMES: list[JsonObject] = [{"turn": 1}, {"item": "a"}, {}]


@pytest.mark.parametrize("names", NAMES)
def test_error_finds_the_open_reply(names: JsonObject) -> None:
    """The error closes the reply that is open, whether it names its turn, its item or nothing."""
    assert cut_texts(delta(1, "One ", 10, item="a"), failed(ts=20, **names), closed(50)) == []


def test_error_text_is_a_message_of_its_own() -> None:
    """The failure message that was spoken stands after what was generated."""
    memory = messages_after(delta(1, "One ", 10), failed(1, 20, text="Sorry."))
    assert [(one["content"], one["metadata"]["source"]) for one in memory] == [
        ("One ", "llm"),
        ("Sorry.", "llm_failure"),
    ]


def test_error_without_reply_leaves_its_text() -> None:
    """A call that fails before its first word leaves the failure message alone."""
    expected = {"source": "llm_failure"}
    assert [(one["content"], one["metadata"]) for one in messages_after(failed(1, 20, text="Sorry."))] == [
        ("Sorry.", expected)
    ]


def test_metadata_of_an_error_goes_into_its_message() -> None:
    """An event's metadata goes into the message that it makes."""
    assert only_message(failed(1, 20, text="Sorry.", metadata={"attempt": 2}))["metadata"].get("attempt") == 2


def test_failure_message_can_be_interrupted() -> None:
    """The failure message is a reply as any other."""
    assert heard_text_of(failed(1, 20, text="Sorry, sorry."), interrupt(1, 30, heard_text="Sorry, ")) == (
        "Sorry, ",
        None,
    )


def test_error_closes_at_its_own_time() -> None:
    """An error closes like a done at its `ts`, in whatever order they arrive."""
    call = [failed(1, 20), delta(1, "One ", 10)]
    assert messages_after(*call) == messages_after(*reversed(call))


def test_traces_and_metrics_are_no_messages() -> None:
    """Tool calls, results and metrics are told only to those who ask for them."""
    call = event("tool.call", 1, 10, call_id="c", name="weather", arguments={"in": "Ulm"})
    result = event("tool.result", 1, 20, call_id="c", result="sunny")
    state = folded(call, result, event("metric", 1, 30, name="llm_ttft", latency_ms=5), closed(50))
    assert message_dicts(state) == []
    assert [(one.name, one.result, one.answered) for one in tool_uses(state)] == [("weather", "sunny", True)]


def test_tool_result_may_overtake_its_call() -> None:
    """A result waits for its call, and is in the call's turn."""
    result = event("tool.result", 1, 20, call_id="c", result="sunny")
    assert tool_uses(folded(result)) == []
    call = event("tool.call", 1, 10, call_id="c", name="weather", arguments="{}")
    assert [(one.timestamp, one.result) for one in tool_uses(folded(result, call))] == [(10, "sunny")]


def test_tool_between_utterances_without_turn_numbers() -> None:
    """A tool that is called after an utterance is of its turn, and what the user says next is another one."""
    state = folded(
        event("asr", None, 10, text="สวัสดี", final=True),
        event("llm.done", None, 20, text="ค่ะ"),
        event("asr", None, 30, text="มีห้องไหม", final=True),
        event("tool.call", None, 40, call_id="c", name="rooms", arguments="{}"),
        event("tool.result", None, 50, call_id="c", result="1"),
        event("asr", None, 60, text="ว่าไง", final=True),
        closed(100),
    )
    assert [(one["turn_id"], one["content"]) for one in message_dicts(state)] == [
        (1, "สวัสดี"),
        (1, "ค่ะ"),
        (2, "มีห้องไหม"),
        (3, "ว่าไง"),
    ]
    assert [one.turn_id for one in tool_uses(state)] == [2]


def test_tool_result_that_waits_in_another_turn_is_found() -> None:
    """The call takes along the result that came before it, whatever turn that named."""
    call = event("tool.call", 1, 10, call_id="c", name="weather", arguments={})
    result = event("tool.result", 2, 20, call_id="c", result="sunny")
    (use,) = tool_uses(folded(result, call))
    assert (use.turn_id, use.result, use.answered) == (1, "sunny", True)
    assert tool_uses(folded(call, result)) == [use]


@pytest.mark.parametrize(
    "other",
    [
        event("session.update", labels={"a": "b"}),
        event("session.end", seq=1, reason="bye"),
        SessionGap(from_seq=1, to_seq=2),
        RefusalMarker(code="invalid_field"),
    ],
)
def test_events_about_the_session_change_no_message(other: EventLike) -> None:
    """Updates, ends, gaps and refused events stand in the journal and leave the memory alone."""
    call = [delta(1, "One ", 10), partial(1, "Hi", 5)]
    assert messages_after(*call, other, unfinished=True) == messages_after(*call, unfinished=True)


def test_position_follows_the_journal() -> None:
    """The state knows up to which position it was folded, even over events that change nothing."""
    state = fold(State(), DecodedRow(7, 0, RefusalMarker(code="invalid_field")))
    assert state.position == 7


# What holds for any call

FEW = examples(0.6)


def seen(state: State) -> tuple[Any, ...]:
    """All that a reader can see of a state."""
    return message_dicts(state), message_dicts(state, unfinished=True), tool_uses(state)


@given(ANY_JOURNALS)
def test_nothing_that_can_be_sent_makes_the_fold_raise(journal: list[EventLike]) -> None:
    """Any journal folds to messages that can be read at every position and written as JSON."""
    state = State()
    for entry in entries(journal):
        fold(state, entry)
        msgspec.json.encode(seen(state))


@FEW
@given(ANY_JOURNALS, st.integers(0, 25))
def test_folding_in_two_halves_is_folding_at_once(journal: list[EventLike], half: int) -> None:
    """Where a journal is parted, and what is read in between, does not matter."""
    whole = entries(journal)
    state = fold_all(State(), whole[:half])
    seen(state)
    assert seen(fold_all(State(), whole)) == seen(fold_all(state, whole[half:]))


@given(ANY_JOURNALS, st.integers(0, 25))
def test_snapshot_and_restore_change_nothing(journal: list[EventLike], half: int) -> None:
    """A state that was kept as a snapshot gives the same messages, then and after all that follows."""
    whole = entries(journal)
    state = fold_all(State(), whole[:half])
    kept = decode_state(encode_state(state))
    assert seen(state) == seen(kept)
    assert seen(fold_all(state, whole[half:])) == seen(fold_all(kept, whole[half:]))


@FEW
@given(ANY_JOURNALS, st.integers(0, 25), st.integers(1, 5))
def test_packing_changes_nothing(journal: list[EventLike], half: int, heavy: int) -> None:
    """A state whose turns and replies are all packed between two events gives the same, also from a snapshot.

    Turns that hold more than `heavy` are packed alone.
    """
    plain, packed = State(), State()
    for place, entry in enumerate(entries(journal)):
        fold(plain, entry)
        fold(packed, entry)
        settle(plain)
        settle(packed)
        if type(packed.turns) is dict:
            packed.find_packed(heavy)
        packed.pack(few=0)
        if place == half:
            packed = decode_state(encode_state(packed))
            packed.find_packed(heavy)
        if place % 5 == 0:
            assert (seen(plain), [*turns(plain, marks=True)]) == (seen(packed), [*turns(packed, marks=True)])
    assert [*plain.each_turn()] == [*packed.each_turn()]
    assert plain.replies == {id: packed.replies[id] for id in plain.replies}
    assert (seen(plain), [*turns(plain, marks=True)]) == (seen(packed), [*turns(packed, marks=True)])


@given(PRODUCER_JOURNALS, st.integers(-100, 100))
def test_reopening_gives_the_messages_from_before_the_close(call: list[EventLike], ts: int) -> None:
    """A close that is undone leaves no trace in the messages."""
    before = seen(folded(*call))
    assert before == seen(folded(*call, closed(ts), reopened()))
    assert before == seen(folded(*call, closed(ts), reopened(), closed(ts), reopened()))


@FEW
@given(PRODUCER_JOURNALS, st.lists(PRODUCER_EVENTS, max_size=3), st.integers(-100, 100))
def test_close_loses_nothing_that_was_in_the_history(call: list[EventLike], more: list[JsonObject], ts: int) -> None:
    """Each message that was in the history before the close, or in progress, is there after it."""
    state = folded(*call)
    before = [(one["role"], one["turn_id"], one["timestamp"]) for one in message_dicts(state, unfinished=True)]
    after = [(one["role"], one["turn_id"], one["timestamp"]) for one in messages_after(*call, closed(ts))]
    assert before == after


@given(overtaking_calls())
def test_order_of_arrival_does_not_change_the_contents(call: tuple[list[JsonObject], list[JsonObject]]) -> None:
    """Interrupts that name their reply, dones, deltas, playback and late transcripts may overtake each other."""
    timed, arrived = call
    assert messages_after(*sorted(timed, key=lambda one: one["ts"])) == messages_after(*arrived)


@given(overtaking_calls())
def test_order_of_arrival_does_not_change_what_the_close_cuts(call: tuple[list[JsonObject], list[JsonObject]]) -> None:
    """The same holds when the call then ends in the middle of a reply."""
    timed, arrived = call
    assert messages_after(*sorted(timed, key=lambda one: one["ts"]), closed(10_000)) == messages_after(
        *arrived, closed(10_000)
    )


@FEW
@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(TEXTS, min_size=1, max_size=4).filter(any), st.lists(TEXTS, min_size=1, max_size=4))
def test_no_later_delta_changes_the_content(kind: str, before: list[str], after: list[str]) -> None:
    """Whatever was generated before an interruption and after it, the content stays as it was cut.

    A count of more than was generated by then is about text that had not arrived with its right time.
    """
    assume(kind != "heard_chars" or len("".join(before)) >= 7)
    call = [*(delta(1, text, 10) for text in before), *KINDS[kind]]
    assert heard_text_of(*call, *(delta(1, text, 60) for text in after)) == heard_text_of(*call)
