"""Deltas become replies: turns, items, and the text that counts."""

from __future__ import annotations

import pytest

from tests.support.events import EventLike, delta, done, failed, final, interrupt, message, resume, tts
from tests.support.transcripts import closed, heard_text_of, messages_after, only_message
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
