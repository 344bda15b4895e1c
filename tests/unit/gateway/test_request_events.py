"""What a request adds to a memory, over random conversations and clients."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.random_calls.gateway import ASSISTANT, USER, Call, calls, result, says
from tests.support.rows import every_row
from voicemem.errors import Refused
from voicemem.gateway.request_events import NewInput, beginning, disconnect_id
from voicemem.protocol.events import (
    Asr,
    Interrupt,
    LlmDelta,
    LlmDone,
    LlmError,
    MemoryForgotten,
    MessageEvent,
    ToolCall,
    Tts,
)
from voicemem.transcript.fold import DecodedRow

WORDS = st.sampled_from(["Yes.", "No.", "Okay.", "Hello?", "A table for two.", "はい。", "Yes, a table."])
TURNS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=12)


@given(TURNS, st.sampled_from(["whole", "piece", "with the last reply"]), st.sets(st.integers(0, 11)))
def test_a_conversation_is_stored_once_however_it_is_sent(
    turns: list[tuple[str, str]], way: str, forgotten: set[int]
) -> None:
    """Whole each time, the new message alone, or with the reply before it; also when all before it was forgotten."""
    call, conversation = Call(), list[dict[str, Any]]()
    for place, (words, reply) in enumerate(turns):
        if place in forgotten and place:
            call.fold(MemoryForgotten(through_turn=call.read_model.state.newest_turn))
        conversation.append(says(USER, words))
        if way == "piece" or (way == "with the last reply" and place == 0):
            new = call.ask(conversation[-1])
        elif way == "with the last reply":
            new = call.ask(*conversation[-2:])
        else:
            new = call.ask(*conversation)
        assert place + 1 == new.turn_id
        assert not new.ignored
        call.answer(new, reply)
        conversation.append(says(ASSISTANT, reply))
    assert [(one["role"], one["content"]) for one in conversation] == call.said


@given(TURNS, st.data())
def test_a_request_sent_twice_is_stored_once(turns: list[tuple[str, str]], data: st.DataObject) -> None:
    """Of a client that sends the whole conversation: the reply that it never got is withdrawn, and made again."""
    call, conversation = Call(), [says("system", "Be brief."), says(USER, "Good morning."), says(ASSISTANT, "Welcome.")]
    call.answer(call.ask(*conversation[:2]), "Welcome.")
    for words, reply in turns:
        conversation.append(says(USER, words))
        for _ in range(data.draw(st.integers(0, 2))):
            call.answer(call.ask(*conversation), "Thrown away.")
        call.answer(call.ask(*conversation), reply)
        conversation.append(says(ASSISTANT, reply))
    assert [(one["role"], one["content"]) for one in conversation[1:]] == call.said


@given(TURNS, st.lists(st.tuples(st.sampled_from([USER, ASSISTANT]), WORDS), min_size=1, max_size=3))
def test_everything_after_what_is_known_is_taken(turns: list[tuple[str, str]], more: list[tuple[str, str]]) -> None:
    """Several messages of the caller's, and what the app said itself."""
    call, conversation = Call(), list[dict[str, Any]]()
    for place, (words, reply) in enumerate(turns):
        conversation += [says(USER, f"{place} {words}"), says(ASSISTANT, f"{place} {reply}")]
        call.answer(call.ask(*conversation[:-1]), f"{place} {reply}")
    call.ask(*conversation, says(USER, "So then."), *(says(*one) for one in more))
    expected = [(one["role"], one["content"]) for one in conversation] + [(USER, "So then."), *more]
    assert sorted(expected) == sorted(call.said)


@given(st.lists(st.tuples(st.sampled_from([USER, ASSISTANT, "system", "tool"]), WORDS), max_size=12), TURNS)
def test_a_contradicting_history_loses_no_last_words(
    history: list[tuple[str, str]], turns: list[tuple[str, str]]
) -> None:
    """Whatever a request says of the past, the words at its end are in the memory after it."""
    call = Call()
    for words, reply in turns:
        call.answer(call.ask(says(USER, words)), reply)
    before = call.said.count((USER, "And this is new."))
    sent = [says(role, text) | ({"tool_call_id": "c"} if role == "tool" else {}) for role, text in history]
    sent = [one for one in sent if one["role"] != "tool"]
    call.ask(*sent, says(USER, "And this is new."))
    assert before + 1 == call.said.count((USER, "And this is new."))


def test_an_unheard_reply_hides_no_other_transcript() -> None:
    """Far back in a conversation too, words that the recogniser heard otherwise are known ones."""
    call = Call()
    call.fold(Asr(text="give me that uh", final=True, ts=call.now()), producer="asr")
    item = call.answer(call.ask(says(USER, "Give me that.")), "Never heard.")
    call.fold(Interrupt(item=item, heard_text="", ts=call.now()), producer="engine")
    conversation = [says(USER, "Give me that.")]
    for number in range(40):
        conversation.append(says(USER, f"And {number}?"))
        new = call.ask(*conversation)
        assert () == new.ignored, number
        call.answer(new, f"Yes, {number}.")
        conversation.append(says(ASSISTANT, f"Yes, {number}."))
    assert 41 == len([role for role, _ in call.said if role == USER])


def test_the_same_words_after_a_reply_are_new() -> None:
    """However the client sends them; only after a failure, or when it left, are they the ones before."""
    call = Call()
    call.answer(call.ask(says(USER, "Yes.")), "Good.")
    assert 2 == call.ask(says(USER, "Yes.")).turn_id
    call.fold(LlmError(turn_id=2, item="x", code=500, ts=call.now()))
    assert ([], 2) == (call.ask(says(USER, "Yes.")).events, 2)
    call.answer(NewInput(2), "Good again.")
    assert 3 == call.ask(says(USER, "Yes.")).turn_id
    call.fold(LlmDelta(text="Half", item="y", turn_id=3, ts=call.now()))
    call.fold(LlmDone(turn_id=3, item="y", id=disconnect_id("y"), ts=call.now()))
    new = call.ask(says(USER, "Yes."))
    assert (3, ["y"]) == (new.turn_id, [event.item for event in new.events])


@every_row("reported", ["asr", "message"])
def test_a_retry_after_a_failure_is_the_same_words(reported: str) -> None:
    """Also when the recogniser reported them."""
    call = Call()
    if reported == "asr":
        call.fold(Asr(text="a table for two", final=True), producer="asr")
    for _ in range(3):
        new = call.ask(says("system", "Be brief."), says(USER, "A table for two."))
        assert 1 == new.turn_id
        call.fold(LlmError(turn_id=1, item=f"x{next(call.names)}", code=500, ts=call.now()))
    assert 1 == len(call.said)


def test_a_reply_that_was_played_is_not_withdrawn() -> None:
    """Nor one to which a tool call of the request belongs."""
    call = Call()
    item = call.answer(call.ask(says(USER, "One.")), "Heard.")
    call.fold(Tts(item=item, audio_ms=500), producer="tts")
    call.answer(call.ask(says(USER, "One."), says(USER, "Two.")), "Let me see.")
    call.fold(ToolCall(call_id="c", name="book", arguments="{}", turn_id=2))
    new = call.ask(says(USER, "One."), says(USER, "Two."), calls("c"), result("c"))
    assert (2, ["tool.result"]) == (new.turn_id, [event.__struct_config__.tag for event in new.events])
    assert [(USER, "One."), (ASSISTANT, "Heard."), (USER, "Two."), (ASSISTANT, "Let me see.")] == call.said


def test_a_client_that_sends_no_replies_loses_none() -> None:
    """What it leaves out says nothing then, but for a reply that it left in the middle."""
    call, sent = Call(), list[dict[str, Any]]()
    for place in range(4):
        sent.append(says(USER, f"{place}?"))
        call.answer(call.ask(*sent), f"{place}.")
    assert [f"{place}{mark}" for place in range(4) for mark in "?."] == [text for _, text in call.said]
    call.fold(LlmDelta(text="Left", item="y", turn_id=4, ts=call.now()))
    call.fold(LlmDone(turn_id=4, item="y", id=disconnect_id("y"), ts=call.now()))
    call.ask(*sent, says(USER, "Stop."))
    assert (ASSISTANT, "Left") not in call.said


def test_words_that_go_on_stand_once() -> None:
    """A client that asks ahead, and again when the caller goes on, has both in one message, and lacks the reply."""
    call = Call()
    item = call.answer(call.ask(says("system", "x"), says(USER, "Tell me a joke.")), "Why did")
    call.fold(LlmDone(turn_id=1, item=item, id=disconnect_id(item), ts=call.now()))
    conversation = [says("system", "x"), says(USER, "Tell me a joke, no, a story.")]
    new = call.ask(*conversation)
    assert ([(USER, "Tell me a joke."), (USER, "no, a story.")], 1) == (call.said, new.turn_id)
    call.answer(new, "Once.")
    call.ask(*conversation, says(ASSISTANT, "Once."), says(USER, "Go on."))
    assert [(ASSISTANT, "Once."), (USER, "Go on.")] == call.said[2:]
    call.answer(NewInput(2), "And then.")
    assert 3 == call.ask(says(USER, "Go on, please.")).turn_id


@every_row("way", ["whole", "a message at a time", "later", "played"])
def test_the_first_reply_made_ahead_is_withdrawn_if_no_one_can_have_heard_it(way: str) -> None:
    """Streamed whole and thrown away, of a client whose conversation has no reply yet."""
    call = Call()
    instructions = [] if way == "a message at a time" else [says("system", "Be brief.")]
    item = call.answer(call.ask(*instructions, says(USER, "Tell me a joke.")), "Why did the scarecrow win an award?")
    if way == "played":
        call.fold(Tts(item=item, audio_ms=500), producer="tts")
    if way == "later":
        call.read_model.fold([DecodedRow(60, 60_000, MemoryForgotten(through_turn=0), "app")])
    new = call.ask(*instructions, says(USER, "Tell me a joke, no, a story."))
    said = [(USER, "Tell me a joke."), (ASSISTANT, "Why did the scarecrow win an award?")]
    if way == "whole":
        assert [(USER, "Tell me a joke."), (USER, "no, a story.")] == call.said
    else:
        assert [*said, (USER, "Tell me a joke, no, a story.")] == [*call.said]
    assert new.turn_id == (1 if way == "whole" else 2)


def test_results_are_taken_wherever_they_stand() -> None:
    """Behind words, before them, and before an instruction; each once, in the turn of its call."""
    call = Call()
    first = says(USER, "Book.")
    call.ask(first)
    call.fold(*(ToolCall(call_id=id, name="book", arguments="{}", turn_id=1) for id in "abc"))
    new = call.ask(first, calls("a"), result("a"), says(USER, "Hello?"), says("system", "Be brief."))
    assert (2, 2) == (new.turn_id, len(new.events))
    new = call.ask(first, calls("b"), says(USER, "Hello?"), result("a"), result("b"), says("developer", "x"))
    assert ["b"] == [event.call_id for event in new.events]  # type: ignore[union-attr]
    call.ask(result("c"), result("c"), says(ASSISTANT, "One moment."))
    assert [True] * 3 == [use.answered for use in call.read_model.tool_uses()]
    assert [(USER, "Book."), (ASSISTANT, "One moment."), (USER, "Hello?")] == call.said


def test_a_past_is_taken_with_its_tools() -> None:
    """A session that begins in the middle of a conversation gets it as the client has it."""
    call = Call()
    past = [says(ASSISTANT, "Welcome."), says(USER, "Book."), calls("c", "Let me see."), result("c"), says(USER, "So?")]
    new = call.ask(*past)
    assert 2 == new.turn_id
    assert [(ASSISTANT, "Welcome."), (USER, "Book."), (ASSISTANT, "Let me see."), (USER, "So?")] == call.said
    assert [(1, True)] == [(use.turn_id, use.answered) for use in call.read_model.tool_uses()]
    assert [] == call.ask(*past).events


def test_what_cannot_be_taken_is_said() -> None:
    """What stands before the newest message that both know, and the memory does not have."""
    call = Call()
    call.answer(call.ask(says(USER, "One.")), "Two.")
    new = call.ask(says(ASSISTANT, "Welcome."), says(USER, "One."), says(ASSISTANT, "Two."), says(USER, "Three."))
    assert (0,) == new.ignored
    with pytest.raises(Refused, match=r"no tool call with this id: `messages\[1\]"):
        call.ask(says(USER, "Four."), result("x" * 10_000))
    with pytest.raises(Refused, match=r"1 to 128 characters: `messages\[2\]"):
        call.ask(says(USER, "Four."), calls("x" * 10_000), result("x" * 10_000))


@every_row("text", ["Yes.", ""])
def test_a_request_of_ten_thousand_messages(text: str) -> None:
    """All different or all the same, it takes time in proportion to its size."""
    call = Call()
    sent = [says(USER if place % 2 else ASSISTANT, text or f"{place} words") for place in range(10_000)]
    call.ask(*sent)
    assert 10_000 == len(call.said)
    began = time.thread_time()
    assert 5_001 == call.ask(*sent, says(USER, "The last.")).turn_id
    assert time.thread_time() - began < 2


def test_words_of_the_recogniser_are_those_of_the_request() -> None:
    """In whatever words; where its transcript is not final, the LLM gets the request's."""
    call = Call()
    call.fold(Asr(text="tell me", final=False), producer="asr")
    new = call.ask(says(USER, "Tell me a joke."))
    assert ([], "Tell me a joke.", 1) == (new.events, new.pending_text, new.turn_id)
    call.fold(Asr(text="tell me two jokes", final=True), producer="asr")
    assert ([], None) == (call.ask(says(USER, "Tell me a joke.")).events, None)
    call.fold(MessageEvent(role="assistant", text="Why?", source="llm"), producer="llm")
    assert 2 == call.ask(says(USER, "Tell me a joke."), says(ASSISTANT, "Why?"), says(USER, "Go on.")).turn_id


def hear(call: Call, text: str) -> None:
    call.fold(Asr(text=text, final=True, ts=call.now()), producer="asr")


@every_row("words", ["No.", "Yes.", "Hello?"])
def test_the_same_words_around_a_tool_call(words: str) -> None:
    """Those before a call are of its turn or an earlier one, so those behind it are the speech that waits."""
    call = Call()
    hear(call, f"{words.lower()} uh")
    new = call.ask(says(USER, words))
    call.fold(ToolCall(call_id="c", name="book", arguments="{}", turn_id=new.turn_id, ts=call.now()))
    hear(call, f"{words.lower()} uh")
    assert ["tool.result"] == [
        event.__struct_config__.tag
        for event in call.ask(says(USER, words), calls("c"), result("c"), says(USER, words)).events
    ]


def test_the_last_words_are_the_speech_that_waits() -> None:
    """And those before them earlier speech, though they are as like to the newest."""
    call = Call()
    hear(call, "yes uh")
    turn = call.ask(says(USER, "Yes.")).turn_id
    call.fold(ToolCall(call_id="c", name="book", arguments="{}", turn_id=turn, ts=call.now()))
    hear(call, "yes, a table uh")
    assert [] == call.ask(says(USER, "Yes."), says(USER, "Yes, a table.")).events


@every_row(
    "running", ["IN_PROGRESS", "The tool call is still in progress.", "The tool call is still in progress. It keeps on"]
)
def test_a_tool_that_was_running_gets_its_result(running: str) -> None:
    """What frameworks send meanwhile is replaced by the result, once; nothing else is."""
    call = Call()
    turn = call.ask(says(USER, "Book a table.")).turn_id
    call.fold(ToolCall(call_id="c", name="book", arguments="{}", turn_id=turn, ts=call.now()))
    before = [says(USER, "Book a table."), calls("c")]
    for text, count in ((running, 1), (running, 0), ("booked", 1), ("booked", 0), ("[cleared]", 0), (running, 0)):
        new = call.ask(*before, result("c", text), says("system", "Be brief."))
        assert count == len(new.events), text
    assert ["booked"] == [use.result for use in call.read_model.tool_uses()]


def test_the_beginning_of_a_long_reply_takes_time_in_proportion_to_its_size() -> None:
    """It is found where both write the same words otherwise."""
    text = "!!! Straße, und so weiter. " * 10_000
    began = time.thread_time()
    assert beginning(text, "STRASSE und so") == "!!! Straße, und so"
    assert beginning(text, text[:-20].upper()) == text[: len(text[:-20].rstrip(" .,!"))]
    assert beginning(text, text.upper()) is None
    assert time.thread_time() - began < 2


@every_row("held", ["Why did the", "Why did the ", "why did the...", "W"])
def test_the_beginning_of_a_reply_is_what_was_heard(held: str) -> None:
    """Where the client has it alone, and goes on; not where the engine has said how far, or where nothing follows."""
    for is_reported in (False, True):
        call = Call()
        item = call.answer(call.ask(says(USER, "A joke.")), "Why did the scarecrow win an award?")
        if is_reported:
            call.fold(Tts(item=item, audio_ms=60_000, ts=call.now()), producer="tts")
        conversation = [says(USER, "A joke."), says(ASSISTANT, held)]
        assert [] == call.ask(*conversation).events
        for _ in range(2):
            call.ask(*conversation, says(USER, "Go on."))
        (_, joke), (_, heard), (_, words) = call.said
        assert ("A joke.", "Go on.") == (joke, words)
        assert heard == ("Why did the scarecrow win an award?" if is_reported else heard[: len(held)])
        assert is_reported or "".join(filter(str.isalpha, held.lower())) == "".join(filter(str.isalpha, heard.lower()))
