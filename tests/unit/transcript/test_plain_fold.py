"""The plain fold against examples that were worked out by hand from the rules."""

from __future__ import annotations

import json

import pytest
from hypothesis import given as drawn

from tests.support.events import delta, done, event, failed, final, interrupt, message, partial, resume, tts, typed
from tests.support.events import word as timed
from tests.support.events import words as timed_words
from tests.support.plain_fold.calls import call_closed, call_reopened, plain, plain_heard, plain_texts, said
from tests.support.plain_fold.rows import Json
from tests.support.plain_fold.text import cut, find_words
from tests.support.rows import every_row
from tests.support.strategies import overtaking_calls

FOUR = "One two three four."
"""19 code points."""


def cancel(turn: int | None = None, ts: int | None = None, **more: str) -> Json:
    """A reply that never existed."""
    return event("llm.cancel", turn, ts, **more)


def test_a_message_has_its_keys_in_order() -> None:
    (one,) = plain(*said(FOUR), interrupt(1, 1500, heard_text="One", estimated=True, metadata={"z": 1}))
    own = {"interrupted": True, "interrupt_timestamp": 1500, "original": FOUR, "source": "llm", "heard": "estimated"}
    expected = {"role": "assistant", "content": "One", "turn_id": 1, "timestamp": 1000, "metadata": own | {"z": 1}}
    assert json.dumps(one) == json.dumps(expected)


def test_null_fields_and_repeated_ids_change_nothing() -> None:
    first = {"type": "asr", "turn_id": 1, "text": "Hi", "final": True, "user": None, "id": "a", "ts": None}
    (one,) = plain(first, final(1, "Ho", id="a"))
    assert (one["content"], one["timestamp"], one["metadata"]) == ("Hi", 1000, {"source": "asr"})


def test_a_restored_message_carries_its_metadata_whole() -> None:
    own = {"heard": "aligned", "original": FOUR, "interrupted": True, "interrupt_timestamp": 7}
    (one,) = plain(message(1, "One ", 5, source="llm", metadata=own | {"k": 0}))
    assert list(one["metadata"]) == ["interrupted", "interrupt_timestamp", "original", "source", "heard", "k"]


# Rule 1


def test_a_final_replaces_what_its_segment_said() -> None:
    assert plain_texts(final(1, "Hi", segment=0), final(1, "you", segment=1), final(1, "Hey", segment=0)) == ["Hey you"]


def test_a_final_without_text_withdraws_its_segment_but_not_its_place() -> None:
    withdrawn = [final(1, "Um", 1, item="a", user="ann", metadata={"x": 1}), final(1, "there", 5, item="b")]
    back = [final(1, "", 6, item="a"), final(1, "Hi", 7, item="a")]
    assert plain(*withdrawn, *back) == [
        {"role": "user", "content": "Hi there", "turn_id": 1, "timestamp": 5, "metadata": {"source": "asr"}}
    ]


def test_segments_of_cjk_text_are_joined_without_a_space() -> None:
    assert plain_texts(final(1, "你好"), final(1, "世界"), final(1, "ok")) == ["你好世界 ok"]


def test_a_late_partial_that_begins_the_final_is_dropped() -> None:
    given = [final(1, "Hello you", 1000), partial(1, "Hello", 1499)]
    assert plain_texts(*given, call_closed(9000)) == ["Hello you"]
    later = [final(1, "Hello you", 1000), partial(1, "Hello", 1500)]
    assert plain_texts(*later, call_closed(9000)) == ["Hello you Hello"]


def test_the_first_event_to_name_a_user_gives_them_the_segment_with_its_metadata() -> None:
    # A6
    given = [partial(1, "Hi there"), partial(1, "no", item="u", metadata={"y": 1}), final(1, "no", item="u", user="a")]
    assert plain(*given)[0]["metadata"] == {"source": "asr", "user": "a", "y": 1}
    same = [partial(1, "Hi", metadata={"x": 2}), final(1, "Hi you", user="a")]
    assert plain(*same)[0]["metadata"] == {"source": "asr", "user": "a", "x": 2}


def test_an_event_without_user_updates_its_segment_whoever_spoke() -> None:
    given = [partial(1, "Yes", 10, user="ann"), final(1, "Yes.", 20), final(1, "No.", 30, user="ben")]
    assert [(one["content"], one["metadata"]["user"]) for one in plain(*given)] == [("Yes.", "ann"), ("No.", "ben")]


def test_a_message_begins_at_the_earliest_ts_of_the_segments_that_show() -> None:
    given = [partial(1, "", 100, item="a"), partial(1, "open", 50, item="b"), final(1, "late", 300, item="a")]
    assert plain(*given)[0]["timestamp"] == 100
    assert plain(*given, call_closed(900))[0]["timestamp"] == 50


# Rule 2


def test_a_text_that_is_quite_another_begins_its_segment_again_after_noise_or_five_seconds() -> None:
    """Rule 1: a partial that caused a false alarm, or was abandoned, is no begin of other words."""
    noise: list[Json] = [
        *said("Line four.", ts=100),
        {"type": "asr", "turn_id": 2, "ts": 500, "text": "mhm"},
        {"type": "interrupt", "turn_id": 1, "ts": 600, "audio_end_ms": 300},
        {"type": "resume", "turn_id": 1, "ts": 900},
    ]
    other: Json = {"type": "asr", "turn_id": 2, "ts": 1200, "text": "Book me.", "final": True}
    assert plain(*noise, other)[-1]["timestamp"] == 1200
    assert plain(*noise, other | {"text": "Mhm, book me."})[-1]["timestamp"] == 500
    abandoned: Json = {"type": "asr", "turn_id": 2, "ts": 500, "text": "uh"}
    assert [plain(abandoned, other | {"ts": ts})[0]["timestamp"] for ts in (5500, 5501)] == [500, 5501]


def test_replies_are_made_by_item_by_turn_or_until_a_done() -> None:
    named = [delta(1, "A", item="x"), delta(1, "B"), delta(1, "C", item="x"), done(1), done(1, item="x")]
    assert plain_texts(*named) == ["AC", "B"]
    assert plain_texts(delta(None, "A"), delta(None, "B"), done(), delta(None, "C"), done()) == ["AB", "C"]


def test_an_item_stays_in_the_turn_where_it_began() -> None:
    assert [one["turn_id"] for one in plain(delta(1, "A", item="x"), delta(4, "B", item="x"), done(item="x"))] == [1]


def test_a_reply_enters_with_its_done_or_an_interruption_or_the_end() -> None:
    assert plain_texts(delta(1, "A")) == []
    assert plain_texts(delta(1, "A"), unfinished=True) == ["A"]
    assert plain_texts(delta(1, "A"), interrupt(1, heard_text="")) == [""]
    assert plain_texts(delta(1, "A"), call_closed(5000), call_reopened()) == []
    assert plain_texts(done(1), call_closed(5000)) == []


def test_the_newest_text_of_a_done_is_the_generated_text() -> None:
    given = [delta(1, "A"), done(1, 500, text="Newer"), done(1, 400, text="Older"), delta(1, "B", 600)]
    assert plain_texts(*given) == ["Newer"]


# Rule 3


@pytest.mark.parametrize("whole_last", [False, True])
def test_a_plain_delta_belongs_behind_a_whole_that_is_not_later(whole_last: bool) -> None:
    # A1, A8
    assert plain_texts(delta(1, "One ", 5000, whole=True), delta(1, "two", 5000), done(1)) == ["One two"]
    whole = delta(1, "Yes, of course! Let ", 2300, whole=True)
    rest = [delta(1, "me see.", 2800), delta(1, "t", 1800)]
    given = [*rest, whole] if whole_last else [whole, *rest]
    assert plain_texts(*given, done(1)) == ["Yes, of course! Let me see."]


def test_late_text_grows_the_original_only() -> None:
    cut_first = [interrupt(1, 2000, heard_chars=8), delta(1, "One two ", 1000), delta(1, "three", 3000), done(1, 3100)]
    for given in (cut_first, cut_first[1:] + cut_first[:1]):
        (one,) = plain(*given)
        assert (one["content"], one["metadata"]["original"]) == ("One two ", "One two three")


@drawn(both=overtaking_calls())
def test_what_names_its_turn_or_item_may_arrive_in_any_order(both: tuple[list[Json], list[Json]]) -> None:
    happened, arrived = both
    assert plain(*happened) == plain(*arrived)


def test_metadata_is_that_of_the_text_then_of_playback_then_of_interrupts_that_mark() -> None:
    # A3, kin
    given = [tts(1, 1200, audio_ms=10, metadata={"x": 1, "y": 1}), *said(FOUR, metadata={"y": 0, "z": 0})]
    more = [tts(None, 1300, audio_ms=20, metadata={"x": 2}), interrupt(1, 1400, heard_text="One", metadata={"z": 3})]
    metadata = plain(*given, *more)[0]["metadata"]
    assert [(name, metadata[name]) for name in "xyz"] == [("x", 2), ("y", 1), ("z", 3)]
    assert list(metadata)[-3:] == ["x", "y", "z"]


# Rule 4


def test_the_earliest_interrupt_gives_the_time_and_the_latest_of_the_best_kind_the_text() -> None:
    later = interrupt(1, 3000, heard_text="One two ")
    given = [*said(FOUR), interrupt(1, 2000, heard_chars=3), later, interrupt(1, 2500, heard_text="One ")]
    assert plain_heard(*given) == ("One two ", None)
    assert plain(*given)[0]["metadata"]["interrupt_timestamp"] == 2000


def test_heard_text_that_begins_otherwise_is_unmatched_even_if_estimated() -> None:
    assert plain_heard(*said("One  two three"), interrupt(1, 2000, heard_text="One two")) == ("One two", None)
    assert plain_heard(*said(FOUR), interrupt(1, 2000, heard_text="Uno", estimated=True)) == ("Uno", "unmatched")


def test_characters_are_rounded_down_to_a_word() -> None:
    assert plain_heard(*said(FOUR), interrupt(1, 2000, heard_chars=9)) == ("One two ", "aligned")
    quoted = 'He said "Hello there" now'  # A9
    assert plain_heard(*said(quoted), interrupt(1, 2000, heard_chars=12)) == ("He said ", "aligned")


@every_row(
    ("text", "count", "heard"),
    [
        ("Hello there. Bye", 11, "Hello there. "),
        ("I don't know", 4, "I "),
        ("About 3.14 now", 8, "About "),
        ("你好世界。", 3, "你好世"),
        ("你好世界。", 4, "你好世界。"),
        ("cafe\u0301 ok", 4, ""),
        ('Wait." "No', 4, 'Wait." '),
        ("One two", 7, "One two"),
    ],
)
def test_cuts(text: str, count: int, heard: str) -> None:
    assert cut(text, count) == heard


def test_words_are_looked_for_one_after_the_other() -> None:
    words = [timed("ONE", 0, 1), timed("nine", 1, 2), timed('"two"', 2, 3), timed("four", 3, 4)]
    assert [one.end for one in find_words(FOUR, words)] == [3, 7, 18]
    far = "One " + "x" * 60 + " two"
    assert [one.end for one in find_words(far, [timed("One", 0, 1), timed("two", 1, 2)])] == [3]


@pytest.mark.parametrize("swapped", [False, True])
def test_of_words_at_one_start_the_later_ts_counts(swapped: bool) -> None:
    # A3
    short, long = ([timed(one, at * 100, at * 100 + ms) for at, one in enumerate(FOUR.split())] for ms in (40, 90))
    reported = [tts(1, 2600, words=short), tts(None, 2400, words=long)]
    given = [*said(FOUR), *(reversed(reported) if swapped else reported), interrupt(1, 3000, audio_end_ms=250)]
    assert plain_heard(*given) == ("One two three ", "aligned")


def test_words_of_which_none_is_found_are_no_evidence() -> None:
    given = [*said(FOUR), tts(1, 1100, words=[timed("Uno", 0, 100)]), tts(1, 1200, total_audio_ms=1900)]
    assert plain_heard(*given, interrupt(1, 2000, audio_end_ms=900)) == ("One two ", "estimated")


def test_marked_words_or_positions_give_an_estimate() -> None:
    # A4
    words = tts(1, 1100, words=timed_words(FOUR), estimated=True)
    assert plain_heard(*said(FOUR), words, interrupt(1, 2000, audio_end_ms=250)) == ("One two ", "estimated")
    sure = [tts(1, 1100, words=timed_words(FOUR)), tts(1, 1200, audio_ms=350, estimated=True)]
    assert plain_heard(*said(FOUR), *sure, interrupt(1, 2000)) == ("One two three ", "estimated")


def test_a_stated_position_counts_over_a_later_interrupt_without_one() -> None:
    # A5
    given = [*said(FOUR), tts(1, 1100, total_audio_ms=1900), tts(1, 1500, audio_ms=400)]
    cuts = [interrupt(1, 2000, audio_end_ms=900), interrupt(1, 2500)]
    assert plain_heard(*given, *cuts) == ("One two ", "estimated")


def test_the_last_audio_position_up_to_the_time_counts() -> None:
    words = tts(1, 1100, words=timed_words(FOUR))
    played = [tts(1, 1500, audio_ms=200), tts(1, 1800, audio_ms=0), tts(1, 2100, audio_ms=400)]
    assert plain_heard(*said(FOUR), words, *played, interrupt(1, 2000)) == ("One two ", "aligned")


def test_played_text_is_the_last_stated_one_unless_a_later_guess_begins_with_it() -> None:
    played = [tts(1, 1100, heard_text="One "), tts(1, 1200, heard_text="On", estimated=True)]
    assert plain_heard(*said(FOUR), *played, interrupt(1, 2000)) == ("One ", None)
    longer = tts(1, 1300, heard_text="One two ", estimated=True)
    assert plain_heard(*said(FOUR), *played, longer, interrupt(1, 2000)) == ("One two ", "estimated")


def test_a_total_measures_what_was_generated_by_its_ts_or_was_synthesised() -> None:
    begun = [delta(1, "One two ", 1000), tts(1, 1100, total_audio_ms=800), delta(1, "three four.", 1200), done(1, 1210)]
    at_half = interrupt(1, 2000, audio_end_ms=400)
    assert plain_heard(*begun, at_half) == ("One ", "estimated")  # half of 8 code points
    synthesised = tts(1, 1900, total_audio_ms=800, synthesised_text=FOUR)
    assert plain_heard(*begun, synthesised, at_half) == ("One two ", "estimated")  # half of 19 is 9
    assert plain_heard(*begun, tts(1, 3000, total_audio_ms=1900), at_half) == ("One ", "estimated")  # 4 of 19


def test_a_position_without_total_counts_at_the_rate_of_speech() -> None:
    assert plain_heard(*said(FOUR), interrupt(1, 2000, audio_end_ms=500)) == ("One two ", "estimated")  # 7.5 units
    measured = [*said("Ten units.", 1, 100), tts(1, 200, total_audio_ms=1000), tts(1, 1300, done=True)]
    later = [*said(FOUR, 2, 2000), interrupt(2, 3000, audio_end_ms=800)]  # 8 units at 10 a second
    assert plain_heard(*measured, *later) == ("One two ", "estimated")
    chinese = [*said("你好世界。", 1), interrupt(1, 2000, audio_end_ms=400)]  # 6 units, 3 for each
    assert plain_heard(*chinese) == ("你好", "estimated")


def test_without_a_position_time_counts_at_the_rate_of_speech() -> None:
    assert plain_heard(*said(FOUR), interrupt(1, 1500)) == ("One two ", "estimated")  # from its first text: 7.5 units
    started = tts(1, 1300, audio_ms=0)
    assert plain_heard(*said(FOUR), started, interrupt(1, 1500)) == ("One ", "estimated")  # from its first playback: 3
    paused = [interrupt(1, 1200), resume(1, 1400)]
    assert plain_heard(*said(FOUR), *paused, interrupt(1, 1600)) == ("One ", "estimated")  # 400 ms: 6 units
    before = [*said("A.", 1, 900), tts(1, 1400, done=True), *said(FOUR, 2)]
    assert plain_heard(*before, interrupt(2, 1700)) == ("One ", "estimated")  # from 1400: 4.5 units


def test_where_nothing_states_a_time_all_that_was_generated_counts() -> None:
    given = [delta(1, "One two "), delta(1, "three "), interrupt(1), delta(1, "four.")]
    assert plain_heard(*given) == ("One two three ", "estimated")


def test_an_interrupt_without_ts_counts_at_the_newest_that_its_producer_stated() -> None:
    given = [*said(FOUR), {**interrupt(1, heard_text="One"), "producer": "main"}]
    assert plain(*given)[0]["metadata"]["interrupt_timestamp"] == 1010
    other = {**interrupt(1, heard_text="One"), "producer": "other"}
    assert plain(*said(FOUR), other)[0]["metadata"]["interrupt_timestamp"] == 3000


def test_a_position_takes_a_done_back() -> None:
    given = [*said(FOUR), tts(1, 1100, total_audio_ms=1900), tts(1, 1500, done=True)]
    assert plain_heard(*given, interrupt(1, 2000, audio_end_ms=900)) == ("One two ", "estimated")
    assert plain_texts(*given, interrupt(1, 2000, audio_end_ms=1650)) == [FOUR]
    assert plain_texts(*given[:2], given[3], interrupt(1, 2000, audio_end_ms=900)) == [FOUR]
    assert plain_heard(*given, tts(1, 1600, audio_ms=900), interrupt(1, 1700)) == ("One two ", "estimated")


# Rule 5


@pytest.mark.parametrize(
    "reached",
    [
        [tts(1, 1200, heard_text="One  two three four.")],
        [tts(1, 1200, heard_text=FOUR), tts(1, 1300, heard_text="One ")],  # A7
        [tts(1, 1200, total_audio_ms=900), tts(1, 1300, audio_ms=900), tts(1, 1400, audio_ms=100)],
        [tts(1, 1200, words=timed_words(FOUR)), tts(1, 1300, audio_ms=400)],
        [tts(1, 1200, done=True)],
    ],
)
def test_an_interrupt_marks_nothing_that_was_heard_to_its_end(reached: list[Json]) -> None:
    assert plain_texts(*said(FOUR), *reached, interrupt(1, 2000)) == [FOUR]
    assert "interrupted" not in plain(*said(FOUR), *reached, interrupt(1, 2000))[0]["metadata"]
    assert plain(*said(FOUR), *reached, interrupt(1, 1100))[0]["metadata"]["interrupted"] is True


def test_an_interrupt_that_heard_all_marks_nothing_unless_there_is_more() -> None:
    assert plain_texts(*said(FOUR), interrupt(1, 2000, heard_text=FOUR)) == [FOUR]
    assert plain_heard(*said(FOUR), interrupt(1, 2000, heard_text=FOUR, more=True)) == (FOUR, None)
    assert plain_heard(delta(1, FOUR, 1000), interrupt(1, 2000, heard_text=FOUR)) == (FOUR, None)


def test_an_interrupt_with_more_makes_a_message_where_no_reply_is_known() -> None:
    (_, one) = plain(final(2, "Hi", 10), interrupt(None, 2000, heard_text="So", more=True))
    own = {"interrupted": True, "interrupt_timestamp": 2000, "original": "So", "source": "llm"}
    assert one == {"role": "assistant", "content": "So", "turn_id": 2, "timestamp": 2000, "metadata": own}


def test_an_interrupt_is_about_its_turns_newest_reply_begun_by_then_else_the_first_to_come() -> None:
    replies = [*said("First one.", 1, 1000, item="a"), *said("Second one.", 1, 3000, item="b")]
    assert plain_texts(*replies, interrupt(1, 3000, heard_text="")) == ["First one.", ""]
    assert plain_texts(*replies, interrupt(1, 2999, heard_text="")) == ["", "Second one."]
    assert plain_texts(interrupt(1, 500, heard_text=""), *replies) == ["", "Second one."]


def test_an_unnamed_interrupt_is_about_the_oldest_reply_still_playing_at_its_arrival() -> None:
    both = [*said("First one.", 1, 1000), tts(1, 1100, audio_ms=10), *said("Second one.", 2, 1200)]
    assert plain_texts(*both, interrupt(None, 1300, heard_text="")) == ["", "Second one."]
    later = tts(2, 1300, audio_ms=10)
    assert plain_texts(*both, later, interrupt(None, 1400, heard_text="")) == ["First one.", ""]
    quiet = [*said("First one.", 1, 1000), interrupt(None, 1300, heard_text=""), tts(1, 1100, audio_ms=10)]
    assert plain_texts(*quiet) == ["First one."]
    stopped = [*both[:3], final(2, "Yes", 1150), interrupt(None, 1300, heard_text="")]
    assert plain_texts(*stopped) == ["First one.", "Yes"]


def test_unnamed_playback_is_about_the_oldest_reply_neither_heard_to_its_end_nor_interrupted() -> None:
    both = [*said("First one.", 1, 1000), *said("Second one.", 2, 1200)]
    dones = [tts(None, 1300, done=True), tts(None, 1400, heard_text="Second "), interrupt(None, 1500)]
    assert plain_texts(*both, *dones) == ["First one.", "Second "]


def test_a_resume_withdraws_the_interrupts_up_to_its_own_ts() -> None:
    cut_twice = [*said(FOUR), interrupt(1, 2000, heard_text="One"), interrupt(1, 3000, heard_text="One two ")]
    assert plain(*cut_twice, resume(1, 2000))[0]["metadata"]["interrupt_timestamp"] == 3000
    assert plain_texts(resume(1, 3000), *cut_twice) == [FOUR]
    assert plain_texts(*cut_twice, resume(None, 3000)) == [FOUR]


def test_a_closes_cut_is_no_interrupt_for_a_resume() -> None:
    # A12
    first = [*said("First one.", 1, 1000, item="a"), interrupt(1, 1500, heard_text="First ")]
    given = [*first, delta(1, "Second one.", 2000, item="b"), resume(1, 3000), call_closed(3000)]
    assert [one["metadata"].get("interrupted") for one in plain(*given)] == [None, True]


def test_after_an_error_with_text_its_item_means_the_failure_message() -> None:
    given = [delta(1, "On the corner", 1000, item="a"), failed(1, 2000, item="a", text="Sorry, again please.")]
    late = interrupt(None, 2000, item="a", heard_text="Sorry, ")
    assert plain_texts(*given, late) == ["On the corner", "Sorry, "]
    early = interrupt(None, 1999, item="a", heard_text="On ")
    assert plain_texts(*given, early) == ["On ", "Sorry, again please."]


# llm.cancel


def test_a_cancelled_reply_never_existed() -> None:
    both = [*said("First.", 1, 1000, item="a"), *said("Second.", 1, 2000, item="b")]
    assert plain_texts(cancel(item="a"), *both) == ["Second."]
    assert plain_texts(*both, cancel(1, 1999)) == ["Second."]
    assert plain_texts(*both, cancel(1, 999)) == ["First.", "Second."]
    assert plain_texts(*both, cancel(item="a"), tts(None, 3000, heard_text="Sec"), interrupt(1, 4000)) == ["Sec"]


@pytest.mark.parametrize(
    "played",
    [tts(item="a", audio_ms=1), tts(item="a", done=True), interrupt(item="a", ts=9000, heard_text="F")],
)
def test_a_cancel_is_void_for_a_reply_that_was_played(played: Json) -> None:
    reply = said("First.", 1, 1000, item="a")
    assert len(plain(*reply, cancel(item="a"), played)) == 1
    assert len(plain(played, *reply, cancel(1, 5000))) == 1
    assert plain(*reply, cancel(item="a"), tts(item="a", audio_ms=0), interrupt(item="a", heard_text="")) == []


def test_a_cancel_ends_an_unnamed_reply_and_no_utterance() -> None:
    given = [
        final(None, "Hi", 1),
        delta(None, "Wel", 2),
        cancel(1, 3),
        final(None, "there", 4),
        delta(None, "Hello", 5),
    ]
    assert [(one["turn_id"], one["content"]) for one in plain(*given, done())] == [(1, "Hi there"), (1, "Hello")]


# Rules 6 to 9


def test_what_was_not_heard_at_all_stays_with_its_original() -> None:
    (one,) = plain(*said(FOUR), interrupt(1, 2000, heard_text=""))
    assert (one["content"], one["metadata"]["original"]) == ("", FOUR)


def test_messages_stand_by_turn_then_the_user_first_then_by_begin_then_by_arrival() -> None:
    given = [*said("B", 2, 50), *said("A2", 1, 90, item="y"), *said("A1", 1, 10, item="x"), final(1, "Late", 99)]
    assert plain_texts(*given, *said("A3", 1, 90, item="z")) == ["Late", "A1", "A2", "A3", "B"]


def test_the_close_cuts_what_is_generated_or_known_to_play() -> None:
    generating = [delta(1, FOUR, 1000), {"type": "session.end", "ts": 1500}, call_closed(3500)]
    (one,) = plain(*generating)
    assert (one["content"], one["metadata"]["interrupt_timestamp"]) == ("One two ", 3500)
    playing = [*said(FOUR), tts(1, 9000, heard_text="One ")]
    assert plain_texts(*playing, call_closed(2000)) == ["One "]
    assert plain_texts(*said(FOUR), call_closed(2000)) == [FOUR]
    assert plain_texts(delta(1, FOUR, 1000), tts(1, 1100, done=True), call_closed(2000)) == [FOUR]
    assert plain_texts(delta(1, FOUR, 1000), partial(2, "", 1500), call_closed(9000)) == ["One two "]


def test_the_last_words_of_a_call_are_never_lost() -> None:
    # A2
    withdrawn = [final(1, "", item="u"), partial(1, "And my", item="u"), call_closed(9000)]
    kept = plain(*withdrawn)
    assert [(one["content"], one["metadata"]["partial"]) for one in kept] == [("And my", True)]
    longer = [final(1, "Yes.", item="u"), partial(1, "Yes. And my", item="u")]
    assert plain_texts(*longer) == ["Yes."]
    assert plain_texts(*longer, call_closed(9000)) == ["Yes. And my"]
    assert plain_texts(final(1, "Yes.", item="u"), partial(1, "Ye", item="u"), call_closed(9000)) == ["Yes."]


def test_an_error_closes_the_open_reply_and_its_text_is_a_message() -> None:
    given = [delta(1, "On the", 1000), failed(1, 2000, text="Sorry."), done(2)]
    assert [(one["content"], one["metadata"]["source"]) for one in plain(*given)] == [
        ("On the", "llm"),
        ("Sorry.", "llm_failure"),
    ]
    assert plain_texts(delta(1, "A", 1, item="a"), delta(1, "B", 2, item="b"), failed(1)) == ["B"]


# Without turn numbers


def turns(*events: Json) -> list[tuple[int, str]]:
    """The turns and texts of a call's messages, at its close."""
    return [(one["turn_id"], one["content"]) for one in plain(*events, call_closed(90_000))]


def test_an_utterance_is_new_once_the_one_before_has_a_final_and_a_reply() -> None:
    first = [message(None, "Hello!"), final(None, "Hi."), final(None, "You?"), *said("Fine.", None)]
    assert turns(*first, final(None, "Good.")) == [(0, "Hello!"), (1, "Hi. You?"), (1, "Fine."), (2, "Good.")]
    assert turns(final(None, "Hi."), typed(None, "Typed.")) == [(1, "Hi."), (2, "Typed.")]
    assert turns(partial(None, "Hi"), partial(None, "no", item="u2")) == [(1, "Hi no")]  # A10


def test_a_final_without_text_withdraws_without_turn_numbers_too() -> None:
    # A11
    assert turns(final(None, "x", segment=0), final(None, "", segment=0)) == []


def test_a_tool_call_registers_the_turn_of_its_item() -> None:
    tool = event("tool.call", 3, call_id="c", name="n", arguments={}, item="r")
    assert turns(tool, *said("A", None, item="r"), final(None, "Hi.")) == [(3, "A"), (4, "Hi.")]
