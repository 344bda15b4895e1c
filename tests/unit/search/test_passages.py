"""Passages are what was heard, with what came before it."""

from __future__ import annotations

import msgspec
from hypothesis import given

from tests.support.events import EventLike, delta, done, final, interrupt, tts, typed
from tests.support.plain_fold.calls import call_closed, plain_rows
from tests.support.random_calls.strategies import calls
from tests.support.transcripts import closed, folded, reopened
from voicemem.protocol.codec import decode_journaled
from voicemem.protocol.types import JsonObject
from voicemem.search.passages import Passage, day_words, has_open_messages, indexed_words, passages_in
from voicemem.search.words import words_of
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.history import messages
from voicemem.transcript.state import State

JOKE = "Why did the scarecrow win an award? Because he was outstanding in his field!"


def passages_of(state: State) -> list[Passage]:
    return [passage for number in state.turn_numbers for passage in passages_in(state, number)]


def texts_after(*given: EventLike) -> list[str]:
    """What is indexed after these events."""
    return [passage.text for passage in passages_of(folded(*given))]


def test_a_reply_is_indexed_when_it_can_no_longer_be_interrupted() -> None:
    """Not while it may play; when it was heard to its end, cut, followed by the user's words, or the call is over."""
    reply = [final(1, "Tell me a joke.", 10), delta(1, JOKE, 20), done(1, 30)]
    assert texts_after(*reply) == ["Tell me a joke."]
    assert has_open_messages(folded(*reply), 1)
    assert texts_after(*reply, tts(1, 40, done=True)) == ["Tell me a joke.", JOKE]
    assert texts_after(*reply, interrupt(1, 40, heard_text="Why did the scarecrow")) == [
        "Tell me a joke.",
        "Why did the scarecrow",
    ]
    assert texts_after(*reply, final(2, "Ha!", 50)) == ["Tell me a joke.", JOKE, "Ha!"]
    assert texts_after(*reply, closed(60)) == ["Tell me a joke.", JOKE]
    assert not has_open_messages(folded(*reply, closed(60)), 1)


def test_typed_text_ends_a_reply_that_never_played() -> None:
    """One that is playing goes on while the user types."""
    reply = [final(1, "Hello", 10), delta(1, "Hello there.", 20), done(1, 30)]
    assert texts_after(*reply, typed(2, "Hm", 40)) == ["Hello", "Hello there.", "Hm"]
    assert texts_after(*reply, tts(1, 35, heard_text="Hello"), typed(2, "Hm", 40)) == ["Hello", "Hm"]


def test_a_reopened_call_may_still_cut_its_last_reply() -> None:
    """So the reply is not indexed again until that is over."""
    reply: list[EventLike] = [final(1, "Hello", 10), delta(1, "Hello there.", 20), done(1, 30), closed(60), reopened()]
    assert texts_after(*reply) in (["Hello"], ["Hello", "Hello there."])


def test_a_passage_has_the_message_before_it() -> None:
    """Of its turn, or of one of the turns before."""
    state = folded(final(1, "A", 10), delta(1, "B", 20), done(1, 30), final(4, "C", 40))
    assert [(passage.text, passage.before) for passage in passages_of(state)] == [("A", ""), ("B", "A"), ("C", "B")]
    assert [passage.position for passage in passages_of(state)] == [1, 2, 4]


def test_a_long_message_is_found_by_its_first_words() -> None:
    """The first 4,000 of them, if these are not far apart; of the message before it, the last 200."""
    numbers = [f"w{number}" for number in range(5_000)]
    passage = Passage(1, 0, 1, "user", 0, " ".join(numbers), " ".join(numbers))
    assert (numbers[:4_000], numbers[-200:], []) == indexed_words(passage, "")
    assert not indexed_words(msgspec.structs.replace(passage, text=" " * 1_000_000 + "late", before=""), "")[0]


def test_days_are_words() -> None:
    """Of the calendar, also long before and after."""
    assert day_words(1_778_390_400_000) == "10 May 2026"
    assert day_words(0) == "1 January 1970"
    assert day_words(-1) == "31 December 1969"
    assert day_words(951_782_400_000) == "29 February 2000"
    assert day_words(-(2**53)) == "1 January 1"
    assert day_words(2**53) == "31 December 9999"


def state_of(events: list[JsonObject]) -> State:
    """The state after events as they arrived, each with the name of its producer."""
    rows = plain_rows(*events)
    decoded = [(row, decode_journaled(msgspec.json.encode(row.event))) for row in rows]
    return fold_all(State(), [DecodedRow(row.position, row.received_ms, event, row.producer) for row, event in decoded])


@given(calls())
def test_no_unheard_word_is_ever_in_a_passage(events: list[JsonObject]) -> None:
    """At each moment of any call: each passage is a message of the history then, and has no word that was unheard."""
    for length in range(len(events) + 1):
        state = state_of(events[:length])
        shown = messages(state)
        texts = [message.content for message in shown]
        cut = [message for message in shown if message.metadata.get("interrupted")]
        for passage in passages_of(state):
            assert passage.text in texts
            assert passage.before == "" or passage.before in texts
        heard = {word for text in texts for word in words_of(text)}
        unheard = {word for message in cut for word in words_of(str(message.metadata["original"]))} - heard
        assert not unheard & {
            word for passage in passages_of(state) for word in words_of(passage.text + passage.before)
        }


@given(calls())
def test_after_a_call_everything_that_was_heard_is_a_passage(events: list[JsonObject]) -> None:
    """Each message of the history that has any text, in its order, once the call is closed."""
    state = state_of([*events, call_closed(10**7)])
    assert [message.content for message in messages(state) if message.content.strip()] == [
        passage.text for passage in passages_of(state)
    ]
