"""Positions against timed words (rule 4c): whole words, times that begin again, and entries of several words."""

from __future__ import annotations

import pytest

from tests.support.events import done, interrupt, tts, word, words
from tests.support.transcripts import heard_text_of
from voicemem.protocol.types import JsonObject


def heard_at(position: int, text: str, *reported: list[JsonObject]) -> tuple[str, str | None]:
    """What was heard of a reply at a position, whose words were reported in these events."""
    timed = [tts(1, 10 + at, words=one) for at, one in enumerate(reported)]
    return heard_text_of(done(1, 0, text=text), *timed, interrupt(1, 5000, audio_end_ms=position))


def evenly(*texts: str, from_ms: int = 0, each_ms: int = 100) -> list[JsonObject]:
    """Entries one after the other, each of the same length."""
    return [word(one, from_ms + at * each_ms, from_ms + (at + 1) * each_ms) for at, one in enumerate(texts)]


NOT_INSIDE = [
    ("We have salt & sandwiches in here.", ["We", "have", "salt", "and", "sandwiches"], 450, "We have salt & "),
    ("Call my phone, one day.", ["Call", "my", "one"], 300, "Call my phone, one "),
    ("Call my phone.", ["Call", "my", "one"], 300, "Call my "),
    ("It is depending on it.", ["It", "is", "in"], 300, "It is "),
    ("Das Eis ist da.", ["Das", "is"], 200, "Das "),
    ("Ella es la estrella.", ["Ella", "es", "la", "tre"], 400, "Ella es la "),
    ("I don't, no, I do not.", ["I", "don"], 200, "I "),
    ("It costs 3.14 or 3 more.", ["It", "costs", "3"], 300, "It costs 3.14 or 3 "),
    ("네, 하나입니다. 하나 더요.", ["네", "하나"], 200, "네, 하나입니다. 하나 "),
    ("نعم والكتاب كتاب جيد.", ["نعم", "كتاب"], 200, "نعم والكتاب كتاب "),
    ("Ça va — très bien !", ["Ça", "va", "—", "très"], 200, "Ça va — "),
    ("Oui « bien » dit-il.", ["Oui"], 100, "Oui "),
    ("One two.", ["One", "...", "two."], 300, "One two."),
]


@pytest.mark.parametrize(("text", "entries", "position", "heard"), NOT_INSIDE)
def test_a_word_is_found_whole_or_not_at_all(text: str, entries: list[str], position: int, heard: str) -> None:
    """A word never stands inside another; one that the text does not have is passed over, and marks belong to it."""
    if heard == text:  # nothing cuts a reply that was heard whole
        position -= 1
        heard = "One "
    assert heard_at(position, text, evenly(*entries)) == (heard, "aligned")


GREETING = "Hello! How are you? I am fine. I am here."


def test_times_that_begin_again_with_each_sentence_count_from_the_end_of_all_before() -> None:
    """A sentence of one word, and two sentences that begin with the same words, are told apart as well."""
    sentences = [
        evenly("Hello!"),
        evenly("How", "are", "you?", each_ms=110),
        evenly("I", "am", "fine."),
        evenly("I", "am", "here."),
    ]
    for reported in (
        sentences,
        [[one] for sentence in sentences for one in sentence],
        [[one for sentence in sentences for one in sentence]],
    ):
        assert heard_at(100, GREETING, *reported) == ("Hello! ", "aligned")
        assert heard_at(320, GREETING, *reported) == ("Hello! How are ", "aligned")
        assert heard_at(630, GREETING, *reported) == ("Hello! How are you? I am ", "aligned")
        assert heard_at(850, GREETING, *reported) == ("Hello! How are you? I am fine. I ", "aligned")


def test_words_sent_again_or_corrected_begin_nothing() -> None:
    """Words that go backwards without continuing the text are those of before: of two at one start the later counts."""
    first = evenly("One", "tow", "three")
    again = [*evenly("One", "two", "three"), *evenly("four.", from_ms=300)]
    assert heard_at(250, "One two three four.", first, again) == ("One two ", "aligned")
    assert heard_at(250, "One two three four.", first, [word("two", 100, 200)]) == ("One two ", "aligned")
    assert heard_at(350, "One two three four.", again, again) == ("One two three ", "aligned")


def test_words_that_overtake_each_other_are_one_stretch() -> None:
    """A word that comes late stands where it starts."""
    late = [evenly("three", "four", from_ms=200), evenly("One", "two")]
    assert heard_at(250, "One two three four five.", *late) == ("One two ", "aligned")


@pytest.mark.parametrize(
    ("text", "clauses", "position", "heard"),
    [
        ("Hello there my friend, how are you?", ["Hello there my friend,", "how are you?"], 500, "Hello there "),
        ("Hello there my friend, how are you?", ["Hello there my friend,", "how are you?"], 1400, None),
        ("我们今天去公园，好吗？", ["我们今天去公园，", "好吗？"], 500, "我们今天"),
        ("วันนี้อากาศดีมาก", ["วันนี้อากาศดีมาก"], 500, "วันนี้อา"),
        ("저는 오늘 학교에 갑니다.", ["저는 오늘 학교에 갑니다."], 500, "저는 오늘 "),
        ("Hello,  there my\nfriend.", ["hello there my friend"], 500, "Hello,  "),
    ],
)
def test_of_an_entry_of_several_words_its_share_by_time_was_heard(
    text: str, clauses: list[str], position: int, heard: str | None
) -> None:
    """Inside it the cut is an estimate, and never in mid-word."""
    expected = "Hello there my friend, how " if heard is None else heard
    assert heard_at(position, text, evenly(*clauses, each_ms=1000)) == (expected, "estimated")


def test_between_entries_of_several_words_nothing_is_estimated() -> None:
    """What had ended was heard, and the next had not begun."""
    clauses = [word("Hello there,", 0, 900), word("my friend.", 1000, 1900)]
    assert heard_at(950, "Hello there, my friend.", clauses) == ("Hello there, ", "aligned")


def test_huge_times_and_very_many_stretches_stay_numbers() -> None:
    """Times up to 2^53 that begin again and again raise nothing."""
    text = " ".join(f"a{at} b{at}" for at in range(3000))
    reported = [[word(f"a{at}", 5, 2**53), word(f"b{at}", 6, 2**53)] for at in range(3000)]
    assert heard_at(4, text, *reported) == ("", "aligned")


def test_words_cost_the_same_whether_their_times_begin_again() -> None:
    """A reply of many sentences, each with times from 0."""
    sentences = [words(f"This is sentence {at}.") for at in range(500)]
    text = " ".join(f"This is sentence {at}." for at in range(500))
    assert heard_at(1050, text, *sentences)[0] == "This is sentence 0. This is sentence 1. This is "
