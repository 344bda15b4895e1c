"""Heard text: rule 4 of the fold, on its own terms and with its building blocks."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.events import JOKE, delta, done, interrupt, message, resume, tts, word, words
from tests.support.rows import every_row
from tests.support.transcripts import entries, folded, heard_text_of, message_dicts, messages_after, only_message, texts
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import fold_all
from voicemem.transcript.replies.matching import find_word
from voicemem.transcript.whole_words import whole_word_prefix

REPLY = [delta(1, JOKE[:21], 10), delta(1, JOKE[21:35], 100), done(1, 200, text=JOKE)]
"""Generated until 10: "Why did the scarecrow"; until 100: " win an award?" as well; until 200: all of it."""
CHINESE = "从前有一位勇敢的骑士。"


# All interrupts count


def test_earliest_interrupt_is_the_time() -> None:
    """Of two interrupts the earlier `ts` is when the reply was cut, whatever evidence they bring."""
    single = only_message(*REPLY, interrupt(1, 90, heard_text="Why "), interrupt(1, 80))
    assert single["metadata"]["interrupt_timestamp"] == 80


def test_exact_evidence_comes_before_estimated() -> None:
    """A better kind of evidence that is marked as an estimate gives way to any that is exact."""
    call = [interrupt(1, 80, heard_text="Why ", estimated=True), interrupt(1, 70, heard_chars=11)]
    assert heard_text_of(*REPLY, *call) == ("Why did the ", "aligned")


RANKED: list[tuple[list[JsonObject], tuple[str, str | None]]] = [
    ([interrupt(1, 300, heard_text="Why ")], ("Why ", None)),
    ([interrupt(1, 310, heard_chars=8)], ("Why did ", "aligned")),
    ([interrupt(1, 320, audio_end_ms=300), tts(1, 30, words=words(JOKE))], ("Why did the ", "aligned")),
    ([tts(1, 290, heard_text="Why did the scare"), interrupt(1, 330)], ("Why did the scare", None)),
]
"""Kinds of exact evidence, from the best to the least; each later one is also newer."""


@pytest.mark.parametrize("place", range(len(RANKED)))
def test_exact_evidence_counts_by_its_place(place: int) -> None:
    """Of several exact kinds the first in the list gives the text, not the newest."""
    call = [one for evidence, _ in RANKED[place:] for one in evidence]
    assert heard_text_of(*REPLY, *call) == RANKED[place][1]
    assert heard_text_of(*REPLY, *reversed(call)) == RANKED[place][1]


def test_newest_evidence_of_a_kind_gives_the_text() -> None:
    """Of two interrupts with heard text the later `ts` counts, then the later arrival."""
    two = [interrupt(1, 90, heard_text="Why did "), interrupt(1, 80, heard_text="Why ")]
    assert heard_text_of(*REPLY, *two) == ("Why did ", None)
    assert heard_text_of(*REPLY, *two, interrupt(1, 90, heard_text="Why did the ")) == ("Why did the ", None)


def test_estimated_heard_text_comes_before_other_estimates() -> None:
    """Among estimates, too, the kind decides first."""
    call = [interrupt(1, 80, heard_text="Why ", estimated=True), interrupt(1, 90)]
    assert heard_text_of(*REPLY, *call) == ("Why ", "estimated")


# Heard text and counts


@every_row("text", ["Why did the scarecrow ", "Why di", "why DID", "Something else!", " ", "", "a\n\0👩‍🚀"])
def test_heard_text_is_taken_character_for_character(text: str) -> None:
    """Exact heard text is the content, whether or not the reply begins with it; no database takes U+0000."""
    kept = text.replace("\0", "\ufffd")
    method = None if " ".join(JOKE.split()).startswith(" ".join(text.split())) else "unmatched"
    assert heard_text_of(*REPLY, interrupt(1, 80, heard_text=text)) == (kept, method)
    assert heard_text_of(*REPLY, tts(1, 70, heard_text=text), interrupt(1, 80)) == (kept, method)


def test_nothing_heard_leaves_an_empty_message() -> None:
    """The message stays, with content "" and its original."""
    single = only_message(*REPLY, interrupt(1, 80, heard_text=""))
    assert (single["content"], single["metadata"]["original"]) == ("", JOKE)


@every_row(
    ("count", "text"),
    [(0, ""), (2, ""), (3, "Why "), (4, "Why "), (5, "Why "), (7, "Why did "), (20, "Why did the "), (999, JOKE)],
)
def test_counts_cut_through_the_last_heard_word(count: int, text: str) -> None:
    """A word that was heard in part only is left out, and the white space after the last one is kept."""
    assert heard_text_of(*REPLY, interrupt(1, 300, heard_chars=count)) == (text, "aligned")


@every_row(
    ("text", "count", "expected"),
    [
        ("😀😀 you and me", 6, "😀😀 you "),
        ("Hello, world.", 5, "Hello, "),
        ("don't go", 4, ""),
        ("don't go", 5, "don't "),
        ("pi is 3.14 or so", 8, "pi is "),
        ("cafe\u0301 noir", 4, ""),
        ("cafe\u0301 noir", 5, "cafe\u0301 "),
        ("One  \n two", 3, "One  \n "),
        (CHINESE, 4, "从前有一"),
        (CHINESE, 10, CHINESE),
        ("我爱 Berlin 啊", 5, "我爱 "),
        ("สวัสดีครับ", 4, "สวัส"),
    ],
)
def test_counts_are_of_code_points(text: str, count: int, expected: str) -> None:
    """Characters are counted as code points, words end at letters, and scripts without spaces end anywhere."""
    assert heard_text_of(message(1, text, 10), interrupt(1, 30, heard_chars=count)) == (expected, "aligned")


# Audio positions


def test_position_counts_words_that_had_ended() -> None:
    """A word that was still sounding at the position was not heard."""
    call = [*REPLY, tts(1, 30, words=words(JOKE))]
    assert heard_text_of(*call, interrupt(1, 300, audio_end_ms=299)) == ("Why did ", "aligned")
    assert heard_text_of(*call, interrupt(1, 300, audio_end_ms=300)) == ("Why did the ", "aligned")


def test_position_before_the_first_word_is_nothing() -> None:
    """Audio that stopped before the first word ended leaves nothing heard."""
    assert heard_text_of(*REPLY, tts(1, 30, words=words(JOKE)), interrupt(1, 300, audio_end_ms=99)) == ("", "aligned")


def test_last_reported_position_stands_in() -> None:
    """Without a position of its own, an interrupt has the last that playback reported up to its `ts`."""
    call = [tts(1, 30, words=words(JOKE)), tts(1, 60, audio_ms=200), tts(1, 50, audio_ms=100), tts(1, 90, audio_ms=400)]
    assert heard_text_of(*REPLY, *call, interrupt(1, 80)) == ("Why did ", "aligned")


def test_own_position_comes_before_the_reported_one() -> None:
    """The interrupt's own position is used where it has one."""
    call = [tts(1, 30, words=words(JOKE), audio_ms=100)]
    assert heard_text_of(*REPLY, *call, interrupt(1, 80, audio_end_ms=300)) == ("Why did the ", "aligned")


def test_words_may_come_in_parts_and_late() -> None:
    """Word times are merged by their starts, whenever they arrive; a newer word replaces one of the same start."""
    one, two = word("Why", 0, 100), word("did", 100, 900)
    call = [interrupt(1, 80, audio_end_ms=200), tts(1, 30, words=[two, one]), tts(1, 99, words=[word("did", 100, 200)])]
    assert heard_text_of(*REPLY, *call) == ("Why did ", "aligned")


def test_of_two_words_at_one_start_the_later_counts() -> None:
    """By their `ts`, in whatever order they arrive."""
    early, late = tts(1, 30, words=[word("Why", 0, 100)]), tts(1, 60, words=[word("Why", 0, 900)])
    for order in ([early, late], [late, early]):
        assert heard_text_of(*REPLY, *order, interrupt(1, 80, audio_end_ms=200)) == ("", "aligned")


def test_words_follow_the_reply_that_they_are_about() -> None:
    """Words that name only the turn are matched again when a reply's share of the turn's time changes."""
    begin = [delta(1, "One.", 100, item="a"), delta(1, "x two", 300, item="b"), done(None, 310, item="b")]
    begin += [tts(1, 250, words=[word("x", 0, 90)]), tts(1, 360, words=[word("two", 100, 190)])]
    begin += [interrupt(None, 900, item="b", audio_end_ms=500)]
    later = [delta(1, "", 200, item="b"), delta(1, "Three.", 350, item="c")]
    state = folded(*begin)
    assert [one["content"] for one in message_dicts(state)] == ["x two"]
    fold_all(state, [row._replace(position=row.position + len(begin)) for row in entries(later)])
    assert message_dicts(state) == messages_after(*begin, *later)
    assert message_dicts(state)[0]["content"] == "x "


def test_words_may_be_spelled_without_punctuation() -> None:
    """The recogniser's spelling of words finds those of the text, with the punctuation that follows them."""
    spoken = "why did the scarecrow win an award because"
    call = [tts(1, 30, words=words(spoken)), interrupt(1, 300, audio_end_ms=700)]
    assert heard_text_of(*REPLY, *call) == ("Why did the scarecrow win an award? ", "aligned")


def test_repeated_words_are_counted_one_by_one() -> None:
    """Each word time takes the next occurrence of its word."""
    text = "no no no, never"
    assert heard_text_of(message(1, text, 10), tts(1, 20, words=words(text)), interrupt(1, 30, audio_end_ms=200)) == (
        "no no ",
        "aligned",
    )


def test_estimated_positions_give_estimates() -> None:
    """Words against an estimated position are an estimate."""
    call = [tts(1, 30, words=words(JOKE))]
    assert heard_text_of(*REPLY, *call, interrupt(1, 80, audio_end_ms=200, estimated=True)) == ("Why did ", "estimated")
    assert heard_text_of(*REPLY, *call, tts(1, 70, audio_ms=200, estimated=True), interrupt(1, 80)) == (
        "Why did ",
        "estimated",
    )


# Playback and generated text


def test_last_playback_text_up_to_the_interrupt() -> None:
    """Of the texts that playback reported, the last up to the interrupt's `ts` counts."""
    call = [tts(1, 60, heard_text="Why did "), tts(1, 50, heard_text="Why "), tts(1, 90, heard_text="Why did the ")]
    assert heard_text_of(*REPLY, *call, interrupt(1, 80)) == ("Why did ", None)


def test_estimated_playback_text_is_an_estimate() -> None:
    """Playback text that is marked as an estimate gives one."""
    assert heard_text_of(*REPLY, tts(1, 60, heard_text="Why di", estimated=True), interrupt(1, 80)) == (
        "Why di",
        "estimated",
    )


def test_share_of_the_audio_is_the_share_of_the_text() -> None:
    """Without words, the position's share of the total is the share of the text that it measures, back to a word."""
    said_by_then = [*REPLY, tts(1, 80, total_audio_ms=1000)]
    assert heard_text_of(*said_by_then, interrupt(1, 150, audio_end_ms=500)) == ("Why did ", "estimated")
    of_all = [*REPLY, tts(1, 900, total_audio_ms=1000)]
    assert heard_text_of(*of_all, interrupt(1, 310, audio_end_ms=500)) == (JOKE[:36], "estimated")


def test_share_is_of_the_text_that_was_synthesised() -> None:
    """A total may say which text it measures."""
    call = [*REPLY, tts(1, 20, total_audio_ms=1000, synthesised_text="Why did the scarecrow ")]
    assert heard_text_of(*call, interrupt(1, 310, audio_end_ms=500)) == ("Why did the ", "estimated")


def test_share_is_of_the_largest_total() -> None:
    """A smaller total does not replace a larger one, and the largest counts whenever it comes."""
    totals = [tts(1, 80, total_audio_ms=1000), tts(1, 85, total_audio_ms=100)]
    assert heard_text_of(*REPLY, *totals, interrupt(1, 90, audio_end_ms=500)) == ("Why did ", "estimated")
    late = tts(1, 900, total_audio_ms=9000)
    assert heard_text_of(*REPLY, *totals, interrupt(1, 90, audio_end_ms=500), late) == ("Why ", "estimated")


def test_share_of_a_script_without_spaces_is_cut_at_a_character() -> None:
    """Scripts without spaces are snapped back to a character."""
    call = [message(1, CHINESE, 10), tts(1, 20, total_audio_ms=1100)]
    assert heard_text_of(*call, interrupt(1, 30, audio_end_ms=550)) == ("从前有一位", "estimated")


def test_position_beyond_the_total_is_all_that_was_generated() -> None:
    """More than all cannot have been heard."""
    call = [*REPLY, tts(1, 20, total_audio_ms=100)]
    assert heard_text_of(*call, interrupt(1, 80, audio_end_ms=500)) == ("Why did the scarecrow", "estimated")


def test_position_without_total_is_taken_at_the_usual_rate() -> None:
    """A voice says 15 characters a second, but never more than was generated."""
    assert heard_text_of(*REPLY, interrupt(1, 310, audio_end_ms=0)) == ("", "estimated")
    assert heard_text_of(*REPLY, interrupt(1, 310, audio_end_ms=800)) == ("Why did the ", "estimated")
    assert heard_text_of(*REPLY, interrupt(1, 80, audio_end_ms=60_000)) == ("Why did the scarecrow", "estimated")


def test_rate_of_speech_is_that_of_the_replies_before() -> None:
    """The median of the complete replies that have a total."""
    known = [message(1, "x" * 30, 1), tts(1, 2, total_audio_ms=1000), tts(1, 5, done=True)]
    reply = [delta(2, JOKE, 10), done(2, 20), interrupt(2, 2000, audio_end_ms=400)]
    assert texts(*known, *reply)[-1] == "Why did the "


def test_without_position_the_clock_says_how_far_the_voice_got() -> None:
    """From the first playback, else from the first text, at the rate of speech."""
    assert heard_text_of(*REPLY, interrupt(1, 9)) == ("", "estimated")
    assert heard_text_of(*REPLY, interrupt(1, 810)) == ("Why did the ", "estimated")
    assert heard_text_of(*REPLY, tts(1, 510, audio_ms=0), interrupt(1, 810)) == ("Why ", "estimated")


def test_pauses_of_false_alarms_are_no_time() -> None:
    """Between a withdrawn interruption and its resume nothing was spoken."""
    call = [*REPLY, interrupt(1, 400), resume(1, 5000)]
    assert heard_text_of(*call, interrupt(1, 5410)) == ("Why did the ", "estimated")


def test_reply_behind_another_begins_when_that_has_ended() -> None:
    """The clock of a reply that was generated ahead starts when the reply before it ended."""
    call = [message(1, "One.", 10), delta(1, JOKE, 20, item="b"), done(None, 30, item="b"), tts(1, 15, done=True)]
    assert texts(*call, tts(1, 12, audio_ms=0), interrupt(None, 820, item="b")) == ["One.", "Why did the "]


def test_without_any_time_it_is_the_text_generated_until_then() -> None:
    """Where the LLM's events state no `ts`, the clock says nothing."""
    assert heard_text_of(delta(1, "Why did "), interrupt(1), delta(1, "the")) == ("Why did ", "estimated")


# Building blocks

TEXT = st.text(alphabet="ab '-.,!?好。é\u0301😀\u200d\n") | st.text()


@given(TEXT, st.integers(0, 40))
@example("a\u200d", 1)
def test_prefix_is_a_prefix(text: str, length: int) -> None:
    """A cut never invents text, and only adds what trails the last word."""
    cut = whole_word_prefix(text, length)
    assert text.startswith(cut)
    assert not any(character.isalnum() for character in cut[length:])


@given(TEXT, st.integers(0, 40), st.integers(0, 40))
def test_prefix_grows_with_its_length(text: str, one: int, other: int) -> None:
    """More characters heard is never less text."""
    assert len(whole_word_prefix(text, min(one, other))) <= len(whole_word_prefix(text, max(one, other)))


@given(TEXT)
def test_whole_prefix_is_the_text(text: str) -> None:
    """Who heard all characters heard all of the text."""
    assert whole_word_prefix(text, len(text)) == text


def test_words_are_not_looked_for_far_away() -> None:
    """A word that stands again much later in the text is not the next one."""
    assert find_word("one two", "two", 3) == (4, 7)
    assert find_word("one " + "x" * 100 + " two", "two", 3) is None
