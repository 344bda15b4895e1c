"""What the end of a session cuts short."""

from __future__ import annotations

from itertools import permutations

import pytest

from tests.support.events import EventLike, delta, done, event, final, interrupt, message, partial, resume, tts
from tests.support.rows import every_row
from tests.support.samples.folds import ENDS, cut_texts
from tests.support.transcripts import closed, heard_text_of, messages_after, only_message, reopened, texts
from voicemem.protocol.types import JsonObject


def orders(call: list[JsonObject]) -> list[tuple[JsonObject, ...]]:
    """All orders in which some events can arrive."""
    return list(permutations(call))


def kinds(call: tuple[JsonObject, ...]) -> str:
    """The types of some events, as the name of a test."""
    return " ".join(one["type"] for one in call)


def test_close_cuts_the_reply_that_is_generated() -> None:
    """A reply without done is cut to what can have been spoken by then, and marked at the close's `ts`."""
    single = only_message(delta(1, "One ", 10), event("session.end", ts=1010), closed(2000))
    expected = {
        "interrupted": True,
        "interrupt_timestamp": 2000,
        "original": "One ",
        "source": "llm",
        "heard": "estimated",
    }
    assert (single["content"], single["metadata"]) == ("One ", expected)


def test_close_cuts_the_reply_that_plays_to_what_was_heard() -> None:
    """A finished reply whose playback has not reached its end is cut to what playback reported."""
    assert heard_text_of(message(1, "One one.", 10), tts(1, 20, heard_text="One "), closed(50)) == ("One ", None)


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


@every_row("call", orders([delta(1, "One two.", 10), done(1, 20), tts(1, 30, heard_text="One ")]), ids=kinds)
def test_close_cuts_the_reply_that_plays_however_its_events_arrived(call: tuple[JsonObject, ...]) -> None:
    """Done, deltas and playback may overtake each other, and the reply is still known to be playing."""
    assert heard_text_of(*call, closed(50)) == ("One ", None)


@every_row("call", orders([delta(2, "Two two.", 30), done(2, 35), tts(2, 40, heard_text="Two ")]), ids=kinds)
def test_close_leaves_earlier_replies_however_the_later_one_arrived(call: tuple[JsonObject, ...]) -> None:
    """Playback of a later reply ends the playing of earlier ones, even when it overtakes that reply."""
    earlier = [message(1, "One one.", 10), tts(1, 20, heard_text="One ")]
    assert cut_texts(*earlier, *call, closed(50)) == ["Two two."]


def test_playback_of_a_turn_is_about_a_reply_with_text() -> None:
    """A reply that never had text, as a failed call leaves it, does not take playback from its turn's reply."""
    call = [message(1, "One two.", 10), done(1, 20, item="silent"), tts(1, 30, heard_text="One ")]
    assert heard_text_of(*call, closed(50)) == ("One ", None)


def test_close_leaves_replies_of_turns_before_the_newest_final() -> None:
    """Once the user has answered in a later turn, the reply before no longer plays."""
    call = [message(1, "One one.", 10), tts(1, 20, heard_text="One "), final(2, "Well.", 30)]
    assert cut_texts(*call, closed(50)) == []


def test_close_leaves_interrupted_replies_as_they_are() -> None:
    """What an interrupt has cut is not cut again."""
    call = [delta(1, "One one.", 10), interrupt(1, 20, heard_text="One ")]
    assert messages_after(*call, closed(50)) == messages_after(*call)


def test_close_keeps_an_unfinished_partial() -> None:
    """The last words of a call are never lost, and are marked as partial."""
    single = only_message(partial(1, "Wait, I", 10), closed(50))
    assert (single["content"], single["metadata"]) == ("Wait, I", {"source": "asr", "partial": True})


def test_close_joins_an_unfinished_partial_to_finals() -> None:
    """Finals and the partial after them are one message, marked as partial."""
    single = only_message(final(1, "Wait.", 10), partial(1, "I", 20), closed(50))
    assert (single["content"], single["metadata"].get("partial")) == ("Wait. I", True)


def test_close_does_not_mark_finished_speech() -> None:
    """Speech whose segments all have their finals is not partial."""
    assert only_message(final(1, "Wait.", 10), closed(50))["metadata"] == {"source": "asr"}


def test_close_cuts_even_when_a_resume_has_a_later_time() -> None:
    """A resume withdraws the user's interrupts, not the end of the session."""
    assert cut_texts(delta(1, "One ", 10), interrupt(1, 20), resume(1, 60), closed(50)) == ["One "]


def test_reopening_undoes_the_close() -> None:
    """After a reopening the reply goes on, and the partial is open again."""
    call: list[EventLike] = [delta(1, "One ", 10), partial(2, "Wa", 20), closed(50), reopened()]
    assert messages_after(*call) == []
    assert texts(*call, delta(1, "two.", 60), done(1, 70), final(2, "Wait.", 80)) == ["One two.", "Wait."]


def test_second_close_cuts_anew() -> None:
    """The close after a reopening cuts at its own `ts`."""
    assert (
        only_message(delta(1, "One ", 10), closed(50), reopened(), closed(90))["metadata"]["interrupt_timestamp"] == 90
    )
