"""What an export knows of a call: who spoke, when it could be heard, and what could not."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from hypothesis import given

from tests.support.events import final, message, typed
from tests.support.profiles import examples
from tests.support.samples.exported_calls import EVENTS, JOKE, START, call_after, call_from, said
from tests.support.strategies import PRODUCER_JOURNALS
from tests.support.transcripts import entries
from voicemem.exports.call import Utterance
from voicemem.exports.formats import FORMATS
from voicemem.protocol.events import JournaledEvent
from voicemem.transcript.fold import fold_all
from voicemem.transcript.state import State


def test_a_reply_begins_when_it_is_heard_and_ends_where_it_is_cut() -> None:
    """Not when its text was generated: playback tells, and the interruption."""
    user, reply, _ = call_after(*EVENTS).utterances
    assert ("Caller", START, None) == (user.speaker, user.start_ms, user.end_ms)
    assert ("Agent", START + 2_000, START + 5_000) == (reply.speaker, reply.start_ms, reply.end_ms)
    assert ("Why did the scarecrow ", JOKE[22:]) == (reply.heard, reply.unheard)


def test_speech_times_of_another_clock_do_not_count() -> None:
    """A producer may state times in its own metadata, from the beginning of its stream."""
    call = call_after(typed(1, "Hi.", START, metadata={"speech_start_ms": 12, "speech_end_ms": 90.5}))
    assert [(START, None)] == [(one.start_ms, one.end_ms) for one in call.utterances]


def test_speech_times_near_the_message_count() -> None:
    """Those of a recogniser, for example."""
    stated = {"speech_start_ms": START + 40, "speech_end_ms": START + 900.7}
    call = call_after(typed(1, "Hi.", START, metadata=stated))
    assert [(START + 40, START + 900)] == [(one.start_ms, one.end_ms) for one in call.utterances]


def test_tool_calls_stand_before_what_began_later_in_their_turn() -> None:
    """The order is that of turns, and then of times."""
    kinds = [type(one).__name__ for one in call_after(*EVENTS).in_order()]
    assert ["Utterance", "Utterance", "ToolUse", "Utterance"] == kinds


def test_a_call_in_which_nothing_was_said_has_the_times_of_its_session() -> None:
    """It is exported too."""
    call = call_after(ended_ms=START + 60_000)
    assert (START, START + 60_000) == (call.start_ms, call.end_ms)


def test_who_spoke_is_named_if_that_is_known() -> None:
    """A name of white space is none."""
    assert ["Ann", "Caller"] == [said("Hi.", user=name).utterances[0].speaker for name in ("Ann", " ")]


def test_an_unmatched_heard_text_leaves_all_that_was_generated_as_unheard() -> None:
    """It cannot be told which part of it was heard."""
    (_, reply) = call_after(
        final(1, "Hi.", START),
        message(1, "Something else", START + 1, source="llm", metadata={
            "interrupted": True, "interrupt_timestamp": START + 2, "original": JOKE, "heard": "unmatched",
        }),
    ).utterances  # fmt: skip
    assert JOKE == reply.unheard


@examples(0.2)
@given(PRODUCER_JOURNALS)
def test_every_call_can_be_exported_in_every_format(journal: list[JournaledEvent]) -> None:
    """Whatever its producers said, and whatever times they gave."""
    call = call_from(fold_all(State(), entries(journal)))
    assert all(isinstance(one, Utterance) for one in call.utterances)
    for form in FORMATS.values():
        document = "".join(form.write(call))
        assert document.encode().decode().startswith(form.head)
