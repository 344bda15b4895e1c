"""When words sound in their audio."""

from __future__ import annotations

import pytest

from voicemem.integrations.pipecat.audio import NS_PER_MS, TimedWord, WordClock

SECOND = 1000 * NS_PER_MS
BEGIN = 50 * SECOND


def starts(found: list[TimedWord]) -> list[int]:
    return [round(start) for _, start in found]


def test_the_time_at_which_the_audio_passed_is_taken_off() -> None:
    """What is left is the word's own time."""
    clock = WordClock()
    assert clock.audio(1000, BEGIN, 0) == []
    assert starts(clock.word("hello", BEGIN + SECOND // 2, BEGIN, 0)) == [500]


def test_words_wait_for_their_audio() -> None:
    """A word that comes before the first audio has a time that counts from that audio."""
    clock = WordClock()
    assert clock.word("hello", BEGIN, BEGIN - 5, 0) == []
    assert clock.word("there", BEGIN + SECOND, BEGIN - 5, BEGIN) == []
    assert starts(clock.audio(1000, BEGIN, BEGIN + SECOND)) == [0, 1000]


def test_words_follow_the_last_word_of_the_context_before() -> None:
    """Pipecat's clock begins at that word, if it is later than the audio."""
    clock = WordClock()
    clock.audio(1000, BEGIN, BEGIN + 3 * SECOND)
    assert starts(clock.word("hello", BEGIN + 4 * SECOND, BEGIN, BEGIN + 3 * SECOND)) == [1000]


@pytest.mark.parametrize(
    ("base", "own_ms"),
    [(BEGIN, 2100), (BEGIN + 9 * SECOND, 100), (BEGIN + 9 * SECOND, 2100)],
    ids=["clock goes on", "times begin again", "times go on"],
)
def test_a_gap_in_the_audio_moves_no_word(base: int, own_ms: int) -> None:
    """After a long gap the next word sounds where the audio before it ended, whatever the TTS counts from."""
    clock = WordClock()
    clock.audio(2000, BEGIN, 0)
    pts = base + own_ms * NS_PER_MS
    assert clock.word("hello", pts, BEGIN + 9 * SECOND - 1, 0) == []
    assert starts(clock.audio(1000, BEGIN + 9 * SECOND, pts)) == [2100]
    assert starts(clock.word("there", pts + SECOND, BEGIN + 9 * SECOND, pts)) == [3100]


def test_words_whose_audio_never_comes_are_placed_at_the_end() -> None:
    """They are not lost, if there was any audio; without any they have no place."""
    clock = WordClock()
    clock.audio(2000, BEGIN, 0)
    clock.word("hello", BEGIN + SECOND, BEGIN + 5 * SECOND, 0)
    assert starts(clock.flush()) == [1000]
    assert WordClock().flush() == []
