"""Replies, interruptions, playback and the close: rules 2, 3, 5 and 8 to 10, and what holds for any call."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest
from calls import (
    CALLS,
    JOKE,
    JOURNALS,
    PRODUCED,
    TEXTS,
    Given,
    JsonObject,
    closed,
    contents,
    delta,
    done,
    entries,
    event,
    failed,
    final,
    folded,
    heard,
    interrupt,
    message,
    only,
    overtaking_calls,
    partial,
    reopened,
    resume,
    shown,
    texts,
    tts,
    words,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from voicemem.protocol.events import RefusalMarker, SessionGap
from voicemem.transcript.fold import DecodedRow, fold, fold_all
from voicemem.transcript.history import tool_uses
from voicemem.transcript.state import State, decode_state, encode_state


def replies(*given: Given, unfinished: bool = False) -> list[tuple[int, str]]:
    """Turn and text of each assistant message."""
    memory = contents(*given, unfinished=unfinished)
    return [(one["turn_id"], one["content"]) for one in memory if one["role"] == "assistant"]


def cut_texts(*given: Given) -> list[str]:
    """What was generated of each interrupted reply."""
    return [one["metadata"]["original"] for one in contents(*given) if "interrupted" in one["metadata"]]


def orders(call: list[JsonObject]) -> list[tuple[JsonObject, ...]]:
    """All orders in which some events can arrive."""
    return list(permutations(call))


def kinds(call: tuple[JsonObject, ...]) -> str:
    """The types of some events, as the name of a test."""
    return " ".join(one["type"] for one in call)


# Rule 2: replies


def test_deltas_of_a_turn_are_one_reply() -> None:
    """Without item, a reply is what all `llm.*` events of its turn make."""
    assert replies(delta(1, "One "), delta(1, "two."), done(1)) == [(1, "One two.")]


def test_deltas_of_a_turn_are_one_reply_even_after_its_done() -> None:
    """All that carry the turn's number are of its reply, whenever they arrive."""
    assert replies(delta(1, "One "), done(1), delta(2, "Else."), done(2), delta(1, "two.")) == [
        (1, "One two."),
        (2, "Else."),
    ]


def test_items_of_a_turn_are_replies_of_their_own() -> None:
    """A turn may hold several replies, told apart by their items."""
    call = [delta(1, "One ", item="a"), delta(1, "Two ", item="b"), delta(1, "one.", item="a"), done(1, item="a")]
    assert replies(*call, delta(1, "two.", item="b"), done(1, item="b")) == [(1, "One one."), (1, "Two two.")]


def test_item_stays_in_the_turn_where_it_began() -> None:
    """A later event of a reply's item is about that reply, whatever turn it names."""
    assert replies(delta(1, "One ", item="a"), delta(4, "two.", item="a"), done(item="a")) == [(1, "One two.")]


def test_item_is_never_shown() -> None:
    """Items are the engine's own; no message tells them."""
    assert "secret-item" not in str(
        contents(final(1, "Hi.", item="secret-item"), message(1, "Hi!", item="secret-item"))
    )


def test_reply_without_turn_and_item_ends_with_its_done() -> None:
    """With neither, a reply is all up to a done, after which a new one begins."""
    call = [delta(None, "One "), delta(None, "one."), done(), delta(None, "Two."), done()]
    assert replies(*call) == [(0, "One one."), (0, "Two.")]


def test_reply_without_turn_and_item_ends_with_its_interruption() -> None:
    """With neither, what comes after an interruption is a new reply."""
    call = [delta(None, "One one."), interrupt(heard_text="One "), delta(None, "Two."), done()]
    assert replies(*call) == [(0, "One "), (0, "Two.")]


def test_reply_without_turn_and_item_survives_a_false_alarm() -> None:
    """An interruption that was withdrawn does not end the reply."""
    assert replies(delta(None, "One "), interrupt(), resume(), delta(None, "two."), done()) == [(0, "One two.")]


def test_reply_without_turn_and_item_goes_on_around_a_message() -> None:
    """Only a done or an interruption ends it, not a whole message that is said meanwhile."""
    call = [delta(None, "One ", 10), message(None, "Still there?", 20), delta(None, "two.", 30), done(ts=40)]
    assert replies(*call) == [(0, "One two."), (0, "Still there?")]


def test_reply_without_turn_takes_the_turn_of_the_utterance_before_it() -> None:
    """A reply belongs to the newest utterance, and to turn 0 before any."""
    call = [delta(None, "Hello."), done(), final(None, "Hi."), delta(None, "How are you?"), done()]
    assert replies(*call) == [(0, "Hello."), (1, "How are you?")]


def test_late_delta_without_turn_finds_its_reply_by_item() -> None:
    """An item takes the turn where it began."""
    call = [final(None, "A"), delta(None, "One ", item="a"), final(None, "B"), delta(None, "two.", item="a")]
    assert replies(*call, done(item="a")) == [(1, "One two.")]


def test_reply_begins_at_its_earliest_time() -> None:
    """The earliest `ts` of its events is the message's time, in whatever order they arrive."""
    assert only(delta(1, "One ", 30), delta(1, "two.", 20), done(1, 40))["timestamp"] == 20


def test_event_without_ts_happened_when_it_was_received() -> None:
    """The time of receipt stands in for a missing `ts`."""
    assert only(message(1, "Hi."))["timestamp"] == 1000


def test_done_text_is_the_generated_text() -> None:
    """The text of a done replaces what the deltas said."""
    assert replies(delta(1, "Won too"), done(1, text="One two.")) == [(1, "One two.")]


def test_newest_done_text_is_the_generated_text() -> None:
    """Of two dones the later `ts` wins, then the later arrival."""
    assert replies(done(1, 20, text="B"), done(1, 10, text="A")) == [(1, "B")]
    assert replies(done(1, 20, text="A"), done(1, 20, text="B")) == [(1, "B")]
    assert replies(done(1, 20, text="A"), done(1, 30), delta(1, "B", 40)) == [(1, "A")]


def test_reply_enters_the_history_with_its_done() -> None:
    """A reply that is still generated is shown only when it is asked for."""
    assert replies(delta(1, "One ")) == []
    assert replies(delta(1, "One "), unfinished=True) == [(1, "One ")]
    assert replies(delta(1, "One "), done(1)) == [(1, "One ")]


def test_reply_enters_the_history_with_an_interruption() -> None:
    """An interrupted reply is in the history before its done."""
    assert replies(delta(1, "One two "), interrupt(1, heard_text="One ")) == [(1, "One ")]


def test_reply_enters_the_history_with_the_end() -> None:
    """A reply without done is in the history once the session is closed."""
    assert replies(delta(1, "One "), closed(9000)) == [(1, "One ")]


def test_assistant_message_is_a_reply_generated_whole() -> None:
    """It is in the history at once, and can be interrupted."""
    greeting = message(0, "Hello there.", 10)
    assert replies(greeting) == [(0, "Hello there.")]
    assert heard(greeting, interrupt(0, 20, heard_text="Hello ")) == ("Hello ", None)


def test_assistant_message_is_not_the_reply_of_its_turn() -> None:
    """Later `llm.*` events of the turn make a reply of their own."""
    assert replies(message(1, "Hello.", 10), delta(1, "Hi.", 20), done(1, 30)) == [(1, "Hello."), (1, "Hi.")]


@pytest.mark.parametrize("call", [[done(1)], [delta(1, ""), done(1)], [interrupt(1)], [tts(1, done=True)], [failed(1)]])
def test_reply_that_never_had_text_is_no_message(call: list[JsonObject]) -> None:
    """An end, an interruption or playback alone makes no message, even at the close."""
    assert contents(*call, closed(9000)) == []


def test_whole_text_is_all_so_far() -> None:
    """With `whole`, the newest text replaces those before, and later plain deltas go on from it."""
    call = [delta(1, "Won", 10, whole=True), delta(1, "One two", 20, whole=True)]
    assert replies(*call, done(1, 40)) == [(1, "One two")]
    assert replies(*call, delta(1, " three", 30), done(1, 40)) == [(1, "One two three")]


def test_of_two_whole_texts_the_later_wins() -> None:
    """The later `ts` wins, then the later arrival."""
    assert replies(delta(1, "B", 20, whole=True), delta(1, "A", 10, whole=True), done(1)) == [(1, "B")]
    assert replies(delta(1, "A", 20, whole=True), delta(1, "B", 20, whole=True), done(1)) == [(1, "B")]


def test_plain_deltas_keep_their_order_of_arrival() -> None:
    """Their times do not reorder them."""
    assert replies(delta(1, "One ", 30), delta(1, "two ", 10), delta(1, "three.", 20), done(1)) == [
        (1, "One two three.")
    ]


def test_repeated_id_changes_nothing() -> None:
    """An event whose id was seen is not taken again, whatever it says."""
    assert replies(delta(1, "One ", id="e"), delta(1, "One ", id="e"), done(1)) == [(1, "One ")]
    assert replies(delta(1, "One ", id="e"), done(1, text="Two", id="e"), done(1)) == [(1, "One ")]


# Rule 3: interruption


def test_interruption_of_a_reply() -> None:
    """The content becomes the heard text, and the metadata tells when it was cut and what was generated."""
    expected = {"interrupted": True, "interrupt_timestamp": 50, "original": JOKE, "source": "llm"}
    message = only(delta(2, JOKE, 10), interrupt(2, 50, heard_text="Why did the scarecrow "))
    assert (message["content"], message["metadata"]) == ("Why did the scarecrow ", expected)


def test_what_arrives_after_an_interruption_grows_the_original_only() -> None:
    """Late deltas and a late done do not change what was heard."""
    call = [delta(1, "One ", 10), interrupt(1, 20, heard_text="One "), delta(1, "two ", 30), delta(1, "three.", 40)]
    single = only(*call, done(1, 50, text="One two three. Four."))
    assert (single["content"], single["metadata"]["original"]) == ("One ", "One two three. Four.")


KINDS = {
    "heard_text": [interrupt(1, 50, heard_text="Why did")],
    "heard_chars": [interrupt(1, 50, heard_chars=7)],
    "words": [tts(1, 20, words=words(JOKE)), interrupt(1, 50, audio_end_ms=200)],
    "progress": [tts(1, 20, heard_text="Why did"), interrupt(1, 50)],
    "share": [tts(1, 20, total_audio_ms=100), interrupt(1, 50, audio_end_ms=100)],
    "generated": [interrupt(1, 50)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_deltas_after_an_interruption_never_change_the_content(kind: str) -> None:
    """Whatever the evidence was, what is generated later does not change what was heard, not even by a space."""
    call = [delta(1, "Why did", 10), *KINDS[kind]]
    assert heard(*call, delta(1, " the scarecrow", 60)) == heard(*call)


def test_interrupt_by_turn_may_overtake_its_reply() -> None:
    """An interrupt that names its turn may overtake the whole reply."""
    assert heard(interrupt(1, 50, heard_text="One "), done(1, 60, text="One two.")) == ("One ", None)


def test_interrupt_by_item_may_overtake_its_reply() -> None:
    """An interrupt that names its item waits for the reply."""
    call = [interrupt(None, 50, item="a", heard_text="One "), delta(1, "One two.", 10, item="a"), done(1, 60, item="a")]
    assert heard(*call) == ("One ", None)


def test_late_delta_of_an_earlier_time_was_generated_before_the_cut() -> None:
    """The order of arrival does not matter for what was generated until the interruption."""
    call = [delta(1, "One ", 10), delta(1, "two ", 20), delta(1, "three.", 40)]
    assert heard(*call, interrupt(1, 30)) == ("One two ", "estimated")
    assert heard(interrupt(1, 30), *call) == ("One two ", "estimated")


# Rule 5: which reply, and false alarms


def test_unnamed_interrupt_is_about_the_reply_that_plays() -> None:
    """An interrupt that names nothing cuts the reply whose playback has not reached its end."""
    call = [message(1, "One one.", 10), tts(1, 20, heard_text="One ")]
    assert cut_texts(*call, interrupt(ts=30)) == ["One one."]


ENDS = {
    "done": [tts(1, 20, done=True)],
    "text": [tts(1, 20, heard_text="One two.")],
    "text but for white space": [tts(1, 20, heard_text=" One  two. ")],
    "total": [tts(1, 15, total_audio_ms=500), tts(1, 20, audio_ms=500)],
    "words": [tts(1, 15, words=words("One two.")), tts(1, 20, audio_ms=200)],
}


@pytest.mark.parametrize("end", ENDS)
def test_reply_plays_until_its_end(end: str) -> None:
    """A reply whose playback reached its end no longer plays."""
    assert cut_texts(message(1, "One two.", 10), *ENDS[end], interrupt(ts=30)) == []


@pytest.mark.parametrize("end", ENDS)
def test_interrupt_of_a_reply_that_was_heard_to_its_end_marks_nothing(end: str) -> None:
    """Even an interrupt that names its turn marks nothing when playback up to its `ts` reached the end."""
    assert cut_texts(message(1, "One two.", 10), *ENDS[end], interrupt(1, 30)) == []


@pytest.mark.parametrize("end", ENDS)
def test_playback_after_an_interrupt_does_not_excuse_it(end: str) -> None:
    """What was played after the interrupt's `ts` says nothing about the reply at that time."""
    assert cut_texts(message(1, "One two.", 10), *ENDS[end], interrupt(1, 18)) == ["One two."]


def test_heard_text_of_an_interrupt_counts_as_progress() -> None:
    """An interrupt that says that all of a finished reply was heard marks nothing."""
    assert cut_texts(message(1, "One two.", 10), interrupt(1, 30, heard_text="One two.")) == []


def test_progress_to_the_end_of_an_unfinished_reply_is_not_its_end() -> None:
    """While the LLM goes on, nobody can have heard the reply to its end."""
    assert cut_texts(delta(1, "One ", 10), tts(1, 20, heard_text="One "), interrupt(1, 30)) == ["One "]


def test_playback_of_a_later_reply_ends_the_playing() -> None:
    """An unnamed interrupt is about the later reply once that is played."""
    call = [message(1, "One one.", 10), tts(1, 20, heard_text="One "), message(2, "Two two.", 30)]
    assert cut_texts(*call, tts(2, 40, heard_text="Two "), interrupt(ts=50)) == ["Two two."]


def test_playback_of_a_later_reply_in_the_same_turn_ends_the_playing() -> None:
    """Within a turn, too, the later reply is the one that plays."""
    call = [message(1, "One one.", 10, item="a"), tts(None, 20, item="a", heard_text="One ")]
    call += [message(1, "Two two.", 30, item="b"), tts(None, 40, item="b", heard_text="Two ")]
    assert cut_texts(*call, interrupt(ts=50)) == ["Two two."]


@pytest.mark.parametrize("name", ["turn", "item"])
def test_playback_of_a_later_reply_counts_before_the_reply_arrives(name: str) -> None:
    """Playback that overtakes the first delta of its reply ends the playing of earlier replies, too."""
    turn, item = (None, "b") if name == "item" else (2, None)
    call = [message(1, "One one.", 10), tts(1, 20, heard_text="One "), tts(turn, 40, item=item, heard_text="Two ")]
    assert cut_texts(*call, delta(2, "Two two.", 30, item=item), interrupt(ts=50)) == ["Two two."]


def test_first_final_of_a_later_turn_ends_the_playing() -> None:
    """Once the user has said something in a later turn, an unnamed interrupt is not about an earlier reply."""
    call = [message(1, "One one.", 10), tts(1, 20, heard_text="One "), final(2, "Well.", 30)]
    assert cut_texts(*call, interrupt(ts=40)) == []


def test_partial_of_a_later_turn_does_not_end_the_playing() -> None:
    """The user's first sounds in a later turn are the interruption itself."""
    call = [message(1, "One one.", 10), tts(1, 20, heard_text="One "), partial(2, "We", 30)]
    assert cut_texts(*call, interrupt(ts=40)) == ["One one."]


def test_reply_without_playback_plays_until_its_done() -> None:
    """Without any playback event, an unnamed interrupt can only be about a reply that is still generated."""
    assert cut_texts(delta(1, "One ", 10), interrupt(ts=30)) == ["One "]
    assert cut_texts(delta(1, "One ", 10), done(1, 20), interrupt(ts=30)) == []


def test_timing_alone_is_not_playback() -> None:
    """Words and totals do not show that anything was played."""
    timing = tts(1, 15, words=words("One one."), total_audio_ms=200)
    assert cut_texts(message(1, "One one.", 10), timing, interrupt(ts=30)) == []


def test_interrupt_that_names_its_turn_counts_after_a_later_turn_began() -> None:
    """That the user spoke in a later turn is no evidence against an interrupt that names its reply."""
    call = [message(1, "One one.", 10), final(2, "Well.", 30), message(2, "Two.", 40)]
    assert cut_texts(*call, interrupt(1, 50, heard_text="One ")) == ["One one."]


def test_interrupt_by_item_is_about_its_reply() -> None:
    """Of several replies of a turn, the one with the item is cut."""
    call = [message(1, "One one.", 10, item="a"), message(1, "Two two.", 20, item="b")]
    assert cut_texts(*call, interrupt(1, 30, item="a")) == ["One one."]


def test_interrupt_by_turn_is_about_its_newest_reply() -> None:
    """With the turn alone, the newest reply begun by its `ts` is cut."""
    call = [message(1, "One one.", 10), message(1, "Two two.", 20), message(1, "Three.", 40), message(2, "Four.", 5)]
    assert cut_texts(*call, interrupt(1, 30)) == ["Two two."]


def test_interrupt_by_turn_before_all_of_its_replies_is_about_the_first() -> None:
    """With the turn alone, and no reply begun by its `ts`, the first to come is cut."""
    call = [interrupt(1, 5, heard_text=""), message(1, "Two two.", 20), message(1, "One one.", 10)]
    assert cut_texts(*call) == ["One one."]


def test_unnamed_interrupt_is_about_the_oldest_reply_still_playing() -> None:
    """Of several replies without end, the oldest is cut."""
    call = [message(1, "Heard.", 1), tts(1, 2, done=True)]
    assert cut_texts(*call, delta(2, "One ", 10, item="a"), delta(2, "Two ", 20, item="b"), interrupt(ts=30)) == [
        "One "
    ]


def test_interrupt_that_fits_no_reply_marks_nothing() -> None:
    """An interrupt of a turn or item without reply changes no message."""
    memory = contents(message(1, "One.", 10))
    for stray in (interrupt(7, 20), interrupt(None, 20, item="x"), interrupt(ts=20)):
        assert contents(message(1, "One.", 10), stray) == memory


def test_tts_by_item_is_about_its_reply() -> None:
    """Playback with an item is about that reply, even before the reply arrives."""
    call = [tts(None, 25, item="b", heard_text="Two "), message(1, "One one.", 10, item="a")]
    call += [message(1, "Two two.", 20, item="b"), interrupt(None, 30, item="a"), interrupt(None, 30, item="b")]
    assert texts(*call) == ["One one.", "Two "]


def test_tts_by_turn_is_about_its_newest_reply() -> None:
    """Playback with the turn alone is about the newest reply begun by its `ts`."""
    call = [
        message(1, "One one.", 10),
        tts(1, 15, done=True),
        message(1, "Two two.", 20),
        tts(1, 25, heard_text="Two "),
    ]
    assert texts(*call, interrupt(1, 18), interrupt(1, 30)) == ["One one.", "Two "]


def test_tts_by_turn_before_all_of_its_replies_is_about_the_first() -> None:
    """Playback with the turn alone, before any of its replies began, is about the first to come."""
    call = [tts(1, 5, heard_text="One "), message(1, "One one.", 10), message(1, "Two two.", 20)]
    assert texts(*call, interrupt(1, 15)) == ["One ", "Two two."]


def test_unnamed_tts_is_about_the_oldest_reply_not_heard_to_its_end() -> None:
    """Playback that names nothing goes through the replies in their order."""
    call = [
        message(1, "One one.", 10),
        message(2, "Two two.", 20),
        tts(ts=30, done=True),
        tts(ts=40, heard_text="Two "),
    ]
    assert texts(*call, interrupt(1, 50), interrupt(2, 50)) == ["One one.", "Two "]


def test_unnamed_tts_passes_over_interrupted_replies() -> None:
    """Playback that names nothing is not about a reply that was cut."""
    call = [message(1, "One one.", 10), message(2, "Two two.", 20), interrupt(1, 25, heard_text="")]
    assert texts(*call, tts(ts=30, heard_text="Two "), interrupt(2, 50)) == ["", "Two "]


def test_unnamed_tts_is_about_an_older_reply_whose_text_came_late() -> None:
    """The oldest reply counts as soon as it has text, whatever was played before."""
    call = [done(1, 12), message(2, "Two two.", 20), tts(ts=25, heard_text="Two "), delta(1, "One one.", 10)]
    assert texts(*call, tts(ts=30, heard_text="One "), interrupt(1, 40), interrupt(2, 40)) == ["One ", "Two "]


def test_queued_reply_is_not_marked_by_the_interrupt_of_another() -> None:
    """The fold makes no interrupts of its own for replies that were queued and never played."""
    call = [message(1, "One one.", 10, item="a"), message(1, "Two two.", 11, item="b")]
    assert texts(*call, interrupt(None, 20, item="a", heard_text="One ")) == ["One ", "Two two."]
    assert texts(*call, interrupt(None, 20, item="b", heard_text="")) == ["One one.", ""]


def test_resume_withdraws_the_interrupt() -> None:
    """After a false alarm the reply is as if nothing had happened."""
    assert contents(message(1, "One.", 10), interrupt(1, 20), resume(1, 30)) == contents(message(1, "One.", 10))


def test_resume_may_overtake_its_interrupt() -> None:
    """A resume withdraws by `ts`, not by arrival."""
    assert cut_texts(message(1, "One.", 10), resume(1, 30), interrupt(1, 20)) == []
    assert cut_texts(resume(None, 30, item="a"), interrupt(None, 20, item="a"), message(1, "One.", 10, item="a")) == []


def test_resume_withdraws_interrupts_up_to_its_own_time() -> None:
    """An interrupt at the resume's `ts` is withdrawn, a later one counts."""
    call = [message(1, "One one.", 10), interrupt(1, 20, heard_text=""), interrupt(1, 30), resume(1, 30)]
    assert cut_texts(*call) == []
    assert only(*call, interrupt(1, 31, heard_text="One "))["metadata"]["interrupt_timestamp"] == 31


def test_resume_by_item_is_about_its_reply() -> None:
    """A resume with an item withdraws the interrupts of that reply only."""
    call = [message(1, "One.", 10, item="a"), message(1, "Two.", 11, item="b")]
    call += [interrupt(None, 20, item="a"), interrupt(None, 20, item="b")]
    assert cut_texts(*call, resume(None, 30, item="a")) == ["Two."]


def test_unnamed_resume_is_about_the_newest_interrupted_reply() -> None:
    """A resume that names nothing leaves older interruptions as they are."""
    call = [
        message(1, "One.", 10),
        interrupt(1, 20),
        message(2, "Two.", 30),
        interrupt(2, 40),
        message(3, "Three.", 50),
    ]
    assert cut_texts(*call, resume(ts=60)) == ["One."]


# Rule 8: the close


def test_close_cuts_the_reply_that_is_generated() -> None:
    """A reply without done is cut to what was generated, and marked at the close's `ts`."""
    single = only(delta(1, "One ", 10), closed(50))
    expected = {
        "interrupted": True,
        "interrupt_timestamp": 50,
        "original": "One ",
        "source": "llm",
        "heard": "estimated",
    }
    assert (single["content"], single["metadata"]) == ("One ", expected)


def test_close_cuts_the_reply_that_plays_to_what_was_heard() -> None:
    """A finished reply whose playback has not reached its end is cut to what playback reported."""
    assert heard(message(1, "One one.", 10), tts(1, 20, heard_text="One "), closed(50)) == ("One ", None)


def test_close_leaves_what_nobody_knows_to_be_playing() -> None:
    """A finished reply without playback events stays whole."""
    assert cut_texts(message(1, "One.", 10), closed(50)) == []


@pytest.mark.parametrize("end", ENDS)
def test_close_leaves_what_was_heard_to_its_end(end: str) -> None:
    """A reply whose playback reached its end stays whole."""
    assert cut_texts(message(1, "One two.", 10), *ENDS[end], closed(50)) == []


def test_close_leaves_replies_of_which_later_ones_were_played() -> None:
    """Only the newest played reply is known to be still playing."""
    call = [message(1, "One one.", 10), tts(1, 20, heard_text="One "), message(2, "Two two.", 30)]
    assert cut_texts(*call, tts(2, 40, heard_text="Two "), closed(50)) == ["Two two."]


@pytest.mark.parametrize(
    "call", orders([delta(1, "One two.", 10), done(1, 20), tts(1, 30, heard_text="One ")]), ids=kinds
)
def test_close_cuts_the_reply_that_plays_however_its_events_arrived(call: tuple[JsonObject, ...]) -> None:
    """Done, deltas and playback may overtake each other, and the reply is still known to be playing."""
    assert heard(*call, closed(50)) == ("One ", None)


@pytest.mark.parametrize(
    "call", orders([delta(2, "Two two.", 30), done(2, 35), tts(2, 40, heard_text="Two ")]), ids=kinds
)
def test_close_leaves_earlier_replies_however_the_later_one_arrived(call: tuple[JsonObject, ...]) -> None:
    """Playback of a later reply ends the playing of earlier ones, even when it overtakes that reply."""
    earlier = [message(1, "One one.", 10), tts(1, 20, heard_text="One ")]
    assert cut_texts(*earlier, *call, closed(50)) == ["Two two."]


def test_playback_of_a_turn_is_about_a_reply_with_text() -> None:
    """A reply that never had text, as a failed call leaves it, does not take playback from its turn's reply."""
    call = [message(1, "One two.", 10), done(1, 20, item="silent"), tts(1, 30, heard_text="One ")]
    assert heard(*call, closed(50)) == ("One ", None)


def test_close_leaves_replies_of_turns_before_the_newest_final() -> None:
    """Once the user has answered in a later turn, the reply before no longer plays."""
    call = [message(1, "One one.", 10), tts(1, 20, heard_text="One "), final(2, "Well.", 30)]
    assert cut_texts(*call, closed(50)) == []


def test_close_leaves_interrupted_replies_as_they_are() -> None:
    """What an interrupt has cut is not cut again."""
    call = [delta(1, "One one.", 10), interrupt(1, 20, heard_text="One ")]
    assert contents(*call, closed(50)) == contents(*call)


def test_close_keeps_an_unfinished_partial() -> None:
    """The last words of a call are never lost, and are marked as partial."""
    single = only(partial(1, "Wait, I", 10), closed(50))
    assert (single["content"], single["metadata"]) == ("Wait, I", {"source": "asr", "partial": True})


def test_close_joins_an_unfinished_partial_to_finals() -> None:
    """Finals and the partial after them are one message, marked as partial."""
    single = only(final(1, "Wait.", 10), partial(1, "I", 20), closed(50))
    assert (single["content"], single["metadata"].get("partial")) == ("Wait. I", True)


def test_close_does_not_mark_finished_speech() -> None:
    """Speech whose segments all have their finals is not partial."""
    assert only(final(1, "Wait.", 10), closed(50))["metadata"] == {"source": "asr"}


def test_close_cuts_even_when_a_resume_has_a_later_time() -> None:
    """A resume withdraws the user's interrupts, not the end of the session."""
    assert cut_texts(delta(1, "One ", 10), interrupt(1, 20), resume(1, 60), closed(50)) == ["One "]


def test_reopening_undoes_the_close() -> None:
    """After a reopening the reply goes on, and the partial is open again."""
    call: list[Given] = [delta(1, "One ", 10), partial(2, "Wa", 20), closed(50), reopened()]
    assert contents(*call) == []
    assert texts(*call, delta(1, "two.", 60), done(1, 70), final(2, "Wait.", 80)) == ["One two.", "Wait."]


def test_second_close_cuts_anew() -> None:
    """The close after a reopening cuts at its own `ts`."""
    assert only(delta(1, "One ", 10), closed(50), reopened(), closed(90))["metadata"]["interrupt_timestamp"] == 90


# Rule 9: failure, and rule 10: what is no message


def test_error_closes_the_open_reply_as_generated() -> None:
    """A failed call ends its reply, which is neither lost nor marked as interrupted."""
    assert only(delta(1, "One ", 10), failed(1, 20), closed(50)) == only(delta(1, "One ", 10), done(1, 20))


NAMES: list[JsonObject] = [{"turn": 1}, {"item": "a"}, {}]


@pytest.mark.parametrize("names", NAMES)
def test_error_finds_the_open_reply(names: JsonObject) -> None:
    """The error closes the reply that is open, whether it names its turn, its item or nothing."""
    assert cut_texts(delta(1, "One ", 10, item="a"), failed(ts=20, **names), closed(50)) == []


def test_error_text_is_a_message_of_its_own() -> None:
    """The failure message that was spoken stands after what was generated."""
    memory = contents(delta(1, "One ", 10), failed(1, 20, text="Sorry."))
    assert [(one["content"], one["metadata"]["source"]) for one in memory] == [
        ("One ", "llm"),
        ("Sorry.", "llm_failure"),
    ]


def test_error_without_reply_leaves_its_text() -> None:
    """A call that fails before its first word leaves the failure message alone."""
    expected = {"source": "llm_failure"}
    assert [(one["content"], one["metadata"]) for one in contents(failed(1, 20, text="Sorry."))] == [
        ("Sorry.", expected)
    ]


def test_metadata_of_an_error_goes_into_its_message() -> None:
    """An event's metadata goes into the message that it makes."""
    assert only(failed(1, 20, text="Sorry.", metadata={"attempt": 2}))["metadata"].get("attempt") == 2


def test_failure_message_can_be_interrupted() -> None:
    """The failure message is a reply as any other."""
    assert heard(failed(1, 20, text="Sorry, sorry."), interrupt(1, 30, heard_text="Sorry, ")) == ("Sorry, ", None)


def test_error_closes_at_its_own_time() -> None:
    """An error closes like a done at its `ts`, in whatever order they arrive."""
    call = [failed(1, 20), delta(1, "One ", 10)]
    assert contents(*call) == contents(*reversed(call))


def test_traces_and_metrics_are_no_messages() -> None:
    """Tool calls, results and metrics are told only to those who ask for them."""
    call = event("tool.call", 1, 10, call_id="c", name="weather", arguments={"in": "Ulm"})
    result = event("tool.result", 1, 20, call_id="c", result="sunny")
    state = folded(call, result, event("metric", 1, 30, name="llm_ttft", latency_ms=5), closed(50))
    assert shown(state) == []
    assert [(one.name, one.result, one.answered) for one in tool_uses(state)] == [("weather", "sunny", True)]


def test_tool_result_may_overtake_its_call() -> None:
    """A result waits for its call, and is in the call's turn."""
    result = event("tool.result", 1, 20, call_id="c", result="sunny")
    assert tool_uses(folded(result)) == []
    call = event("tool.call", 1, 10, call_id="c", name="weather", arguments="{}")
    assert [(one.timestamp, one.result) for one in tool_uses(folded(result, call))] == [(10, "sunny")]


@pytest.mark.parametrize(
    "other",
    [
        event("session.update", labels={"a": "b"}),
        event("session.end", seq=1, reason="bye"),
        SessionGap(from_seq=1, to_seq=2),
        RefusalMarker(code="invalid_field"),
    ],
)
def test_events_about_the_session_change_no_message(other: Given) -> None:
    """Updates, ends, gaps and refused events stand in the journal and leave the memory alone."""
    call = [delta(1, "One ", 10), partial(1, "Hi", 5)]
    assert contents(*call, other, unfinished=True) == contents(*call, unfinished=True)


def test_position_follows_the_journal() -> None:
    """The state knows up to which position it was folded, even over events that change nothing."""
    state = fold(State(), DecodedRow(7, 0, RefusalMarker(code="invalid_field")))
    assert state.position == 7


# What holds for any call

SOME = settings(max_examples=200, deadline=None)
FEW = settings(max_examples=60, deadline=None)


def seen(state: State) -> tuple[Any, ...]:
    """All that a reader can see of a state."""
    return shown(state), shown(state, unfinished=True), tool_uses(state)


@SOME
@given(JOURNALS)
def test_nothing_that_can_be_sent_makes_the_fold_raise(journal: list[Given]) -> None:
    """Any journal folds to messages that can be read at every position and written as JSON."""
    state = State()
    for entry in entries(journal):
        fold(state, entry)
        msgspec.json.encode(seen(state))


@FEW
@given(JOURNALS, st.integers(0, 25))
def test_folding_in_two_halves_is_folding_at_once(journal: list[Given], half: int) -> None:
    """Where a journal is parted, and what is read in between, does not matter."""
    whole = entries(journal)
    state = fold_all(State(), whole[:half])
    seen(state)
    assert seen(fold_all(State(), whole)) == seen(fold_all(state, whole[half:]))


@SOME
@given(JOURNALS, st.integers(0, 25))
def test_snapshot_and_restore_change_nothing(journal: list[Given], half: int) -> None:
    """A state that was kept as a snapshot gives the same messages, then and after all that follows."""
    whole = entries(journal)
    state = fold_all(State(), whole[:half])
    kept = decode_state(encode_state(state))
    assert seen(state) == seen(kept)
    assert seen(fold_all(state, whole[half:])) == seen(fold_all(kept, whole[half:]))


@SOME
@given(CALLS, st.integers(-100, 100))
def test_reopening_gives_the_messages_from_before_the_close(call: list[Given], ts: int) -> None:
    """A close that is undone leaves no trace in the messages."""
    before = seen(folded(*call))
    assert before == seen(folded(*call, closed(ts), reopened()))
    assert before == seen(folded(*call, closed(ts), reopened(), closed(ts), reopened()))


@FEW
@given(CALLS, st.lists(PRODUCED, max_size=3), st.integers(-100, 100))
def test_close_loses_nothing_that_was_in_the_history(call: list[Given], more: list[JsonObject], ts: int) -> None:
    """Each message that was in the history before the close, or in progress, is there after it."""
    state = folded(*call)
    before = [(one["role"], one["turn_id"], one["timestamp"]) for one in shown(state, unfinished=True)]
    after = [(one["role"], one["turn_id"], one["timestamp"]) for one in contents(*call, closed(ts))]
    assert before == after


@settings(max_examples=300, deadline=None)
@given(overtaking_calls())
def test_order_of_arrival_does_not_change_the_contents(call: tuple[list[JsonObject], list[JsonObject]]) -> None:
    """Interrupts that name their reply, dones, deltas, playback and late transcripts may overtake each other."""
    timed, arrived = call
    assert contents(*sorted(timed, key=lambda one: one["ts"])) == contents(*arrived)


@settings(max_examples=300, deadline=None)
@given(overtaking_calls())
def test_order_of_arrival_does_not_change_what_the_close_cuts(call: tuple[list[JsonObject], list[JsonObject]]) -> None:
    """The same holds when the call then ends in the middle of a reply."""
    timed, arrived = call
    assert contents(*sorted(timed, key=lambda one: one["ts"]), closed(10_000)) == contents(*arrived, closed(10_000))


@FEW
@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(TEXTS, min_size=1, max_size=4).filter(any), st.lists(TEXTS, min_size=1, max_size=4))
def test_no_later_delta_changes_the_content(kind: str, before: list[str], after: list[str]) -> None:
    """Whatever was generated before an interruption and after it, the content stays as it was cut.

    A count of more than was generated by then is about text that had not arrived with its right time.
    """
    assume(kind != "heard_chars" or len("".join(before)) >= 7)
    call = [*(delta(1, text, 10) for text in before), *KINDS[kind]]
    assert heard(*call, *(delta(1, text, 60) for text in after)) == heard(*call)
