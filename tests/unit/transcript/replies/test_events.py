"""Which reply an event is about, and what it does to it: generation, playback, interruptions."""

from __future__ import annotations

import pytest

from tests.support.events import EventLike, delta, done, failed, final, interrupt, message, partial, resume, tts, words
from tests.support.samples.folds import ENDS, cut_texts
from tests.support.transcripts import closed, heard_text_of, messages_after, only_message, texts
from voicemem.protocol.types import JsonObject


def replies(*given: EventLike, unfinished: bool = False) -> list[tuple[int, str]]:
    """Turn and text of each assistant message."""
    memory = messages_after(*given, unfinished=unfinished)
    return [(one["turn_id"], one["content"]) for one in memory if one["role"] == "assistant"]


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
        messages_after(final(1, "Hi.", item="secret-item"), message(1, "Hi!", item="secret-item"))
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
    assert only_message(delta(1, "One ", 30), delta(1, "two.", 20), done(1, 40))["timestamp"] == 20


def test_event_without_ts_happened_when_it_was_received() -> None:
    """The time of receipt stands in for a missing `ts`."""
    assert only_message(message(1, "Hi."))["timestamp"] == 1000


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
    assert heard_text_of(greeting, interrupt(0, 20, heard_text="Hello ")) == ("Hello ", None)


def test_assistant_message_is_not_the_reply_of_its_turn() -> None:
    """Later `llm.*` events of the turn make a reply of their own."""
    assert replies(message(1, "Hello.", 10), delta(1, "Hi.", 20), done(1, 30)) == [(1, "Hello."), (1, "Hi.")]


@pytest.mark.parametrize("call", [[done(1)], [delta(1, ""), done(1)], [interrupt(1)], [tts(1, done=True)], [failed(1)]])
def test_reply_that_never_had_text_is_no_message(call: list[JsonObject]) -> None:
    """An end, an interruption or playback alone makes no message, even at the close."""
    assert messages_after(*call, closed(9000)) == []


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


def test_unnamed_interrupt_is_about_the_reply_that_plays() -> None:
    """An interrupt that names nothing cuts the reply whose playback has not reached its end."""
    call = [message(1, "One one.", 10), tts(1, 20, heard_text="One ")]
    assert cut_texts(*call, interrupt(ts=30)) == ["One one."]


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
    """While the LLM goes on, no one can have heard the reply to its end."""
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
    memory = messages_after(message(1, "One.", 10))
    for stray in (interrupt(7, 20), interrupt(None, 20, item="x"), interrupt(ts=20)):
        assert messages_after(message(1, "One.", 10), stray) == memory


def test_tts_by_item_is_about_its_reply() -> None:
    """Playback with an item is about that reply, even before the reply arrives."""
    call = [tts(None, 25, item="b", heard_text="Two "), message(1, "One one.", 10, item="a")]
    call += [message(1, "Two two.", 20, item="b"), interrupt(None, 30, item="a", heard_chars=4)]
    call += [interrupt(None, 30, item="b")]
    assert texts(*call) == ["One ", "Two "]


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
    assert messages_after(message(1, "One.", 10), interrupt(1, 20), resume(1, 30)) == messages_after(
        message(1, "One.", 10)
    )


def test_resume_may_overtake_its_interrupt() -> None:
    """A resume withdraws by `ts`, not by arrival."""
    assert cut_texts(message(1, "One.", 10), resume(1, 30), interrupt(1, 20)) == []
    assert cut_texts(resume(None, 30, item="a"), interrupt(None, 20, item="a"), message(1, "One.", 10, item="a")) == []


def test_resume_withdraws_interrupts_up_to_its_own_time() -> None:
    """An interrupt at the resume's `ts` is withdrawn, a later one counts."""
    call = [message(1, "One one.", 10), interrupt(1, 20, heard_text=""), interrupt(1, 30), resume(1, 30)]
    assert cut_texts(*call) == []
    assert only_message(*call, interrupt(1, 31, heard_text="One "))["metadata"]["interrupt_timestamp"] == 31


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
