"""Words that a request brought to the gateway, and that a recogniser reports after it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.random_calls.gateway import ASSISTANT, USER, Call, says
from tests.support.rows import every_row
from voicemem.protocol.events import Asr, LlmDone, MessageEvent
from voicemem.transcript.gateway_matching import FEW_MESSAGES, LATE_MS

WORDS = "A table for two."


def turns(call: Call) -> list[tuple[str, str, int]]:
    return [(one.role, one.content, one.turn_id) for one in call.read_model.current_messages()]


@every_row(
    ("name", "events"),
    [
        ("a final", [Asr(text="a table for two", final=True)]),
        ("a final of an item", [Asr(text=WORDS, final=True, item="u")]),
        ("a final with a turn of the engine's", [Asr(text=WORDS, final=True, turn_id=7)]),
        ("a partial before", [Asr(text="a table"), Asr(text="a table for two", final=True)]),
        ("a partial of an item", [Asr(text="a table", item="u"), Asr(text=WORDS, final=True, item="u")]),
        ("two finals", [Asr(text="A table", final=True), Asr(text="for two.", final=True)]),
        ("segments", [Asr(text="A table", final=True, segment=0), Asr(text="for two.", final=True, segment=1)]),
        ("a user", [Asr(text="a table for two!", final=True, user="ann")]),
    ],
)
def test_a_late_final_takes_the_place_of_the_requests_words(name: str, events: list[Asr]) -> None:
    """Before the reply, in its turn, and the next words are of the next turn."""
    for is_answered in (True, False):
        call = Call()
        new = call.ask(says(USER, WORDS))
        if is_answered:
            call.answer(new, "At what time?")
        call.fold(*events, producer="asr")
        if not is_answered:
            call.answer(new, "At what time?")
        (_, text, turn), reply = turns(call)
        assert "atablefortwo" == "".join(filter(str.isalnum, text.lower()))
        assert (1, (ASSISTANT, "At what time?", 1)) == (turn, reply)
        assert "asr" == call.read_model.current_messages()[0].metadata["source"]
        later = call.ask(says(USER, WORDS), says(ASSISTANT, "At what time?"), says(USER, "At eight."))
        call.answer(later, "Good.")
        assert ["At eight.", "Good."] == [text for _, text, _ in turns(call)[-2:]]
        assert 4 == len(turns(call))


def test_the_same_words_said_again_are_new() -> None:
    """Where they begin later than a request and its transcript may be apart; and each request is reported once."""
    call = Call()
    asked = call.now()
    call.answer(call.ask(says(USER, "Yes.")), "Good.")
    call.fold(Asr(text="Yes.", final=True, ts=asked + LATE_MS + 1_000), producer="asr")
    assert [(USER, "Yes.", 1), (ASSISTANT, "Good.", 1), (USER, "Yes.", 2)] == turns(call)
    call = Call()
    call.answer(call.ask(says(USER, "Yes.")), "Good.")
    for _ in range(2):
        call.fold(Asr(text="Yes.", final=True, ts=call.now() - 1_000), producer="asr")
    assert [(USER, "Yes.", 1), (ASSISTANT, "Good.", 1), (USER, "Yes.", 2)] == turns(call)


def test_the_same_words_in_partials_after_the_reply_are_new() -> None:
    """Their time shows that they were said after it, also where several messages were answered together."""
    for more in ((), (says(USER, "And a chair."),)):
        call = Call()
        call.answer(call.ask(says(USER, "Yes."), *more), "Good.")
        before = call.said
        for text, final in (("Ye", False), ("Yes.", True)):
            call.fold(Asr(text=text, final=final, ts=call.now()), producer="asr")
        assert [*before, (USER, "Yes.")] == call.said


def test_many_messages_of_a_turn_cost_their_size() -> None:
    """What is noted and compared of a turn is bounded, so none of its messages costs more than those before it."""
    call = Call()
    ts = call.now()
    texts = [f"Number {at}." for at in range(1_000)]
    messages = [MessageEvent(role="user", text=one, source="message", turn_id=1, ts=ts) for one in texts]
    call.fold(*messages, producer="gateway")
    assert len(call.read_model.state.requested) <= 2 * FEW_MESSAGES
    call.fold(Asr(text="Number 3.", final=True, ts=ts), producer="asr")
    assert 1_000 == sum(text.count("Number") for _, text, _ in turns(call))


def test_other_producers_messages_stay() -> None:
    """What was typed is no speech, whatever is said after it."""
    call = Call()
    call.fold(MessageEvent(role="user", text="Yes.", source="message"), producer="app")
    call.fold(Asr(text="Yes.", final=True), producer="asr")
    assert [(USER, "Yes."), (USER, "Yes.")] == call.said


def test_words_come_back_when_their_speech_is_withdrawn() -> None:
    """And a later final stands for them again."""
    call = Call()
    call.answer(call.ask(says(USER, WORDS)), "At what time?")
    call.fold(Asr(text=WORDS, final=True, item="u"), producer="asr")
    call.fold(Asr(text="", final=True, item="u"), producer="asr")
    assert [(USER, WORDS, 1), (ASSISTANT, "At what time?", 1)] == turns(call)
    call.fold(Asr(text="a table for two", final=True, item="v"), producer="asr")
    assert [(USER, "a table for two", 1), (ASSISTANT, "At what time?", 1)] == turns(call)


def test_words_that_go_on_are_reported_as_one() -> None:
    """A request that was thrown away, and one with the rest: one final for both."""
    call = Call()
    call.ask(says(USER, "I want"))
    call.answer(call.ask(says(USER, "I want a table")), "Good.")
    call.fold(Asr(text="I want a table.", final=True), producer="asr")
    assert [(USER, "I want a table."), (ASSISTANT, "Good.")] == call.said


@given(st.lists(st.sampled_from(["Yes.", "No.", "A table.", "はい。"]), min_size=1, max_size=12), st.data())
def test_every_word_stands_once_whoever_comes_first(words: list[str], data: st.DataObject) -> None:
    """A recogniser reports each utterance once, before its request or after it, or after its reply."""
    call, expected = Call(), list[tuple[str, str]]()
    for place, text in enumerate(words):
        when = data.draw(st.sampled_from(["before", "after", "after the reply", "never"]))
        final = Asr(text=text, final=True, ts=call.now())
        if when == "before":
            call.fold(final, producer="asr")
        new = call.ask(says(USER, text))
        if when == "after":
            call.fold(final, producer="asr")
        item = f"r{place}"
        call.fold(LlmDone(text=f"Reply {place}.", turn_id=new.turn_id, item=item, ts=call.now()))
        if when == "after the reply":
            call.fold(final, producer="asr")
        expected += [(USER, text), (ASSISTANT, f"Reply {place}.")]
    assert expected == call.said
