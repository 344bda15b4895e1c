"""Values over time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from voicemem.transcript.timeline import AFTER_ALL, BEFORE_ALL, TextTimeline, TimedText, TimedValue, Timeline

TIMES = st.integers(0, 20)
NUMBERS = st.lists(st.tuples(TIMES, st.integers(0, 9), st.booleans()), max_size=12)
WORDS = st.sampled_from(["", "One", "One two", "One two.", "Two", "O"])
TEXTS = st.lists(st.tuples(TIMES, WORDS, st.booleans()), max_size=12)


def numbers(*said: tuple[int, int, bool]) -> Timeline:
    """A series to which these were said, in this order."""
    series = Timeline()
    for one in said:
        series.add(*one)
    return series


def test_empty_series_says_nothing() -> None:
    """Nothing was said yet."""
    assert Timeline().last(AFTER_ALL) is None
    assert Timeline().largest(AFTER_ALL) is None
    assert TextTimeline().last(AFTER_ALL) is None


def test_last_is_by_time_then_by_arrival() -> None:
    """The later time is the newer, and at one time the later arrival."""
    series = numbers((20, 1, False), (10, 2, True), (20, 3, True))
    assert series.last(AFTER_ALL) == TimedValue(20, 3, True)
    assert series.last(19) == TimedValue(10, 2, True)


def test_bounds_are_included() -> None:
    """What was said exactly at a bound counts."""
    series = numbers((10, 1, False), (20, 2, False))
    assert series.last(20, 20) == TimedValue(20, 2, False)
    assert series.last(9) is None
    assert series.last(15, 11) is None
    assert (series.largest(10), series.largest(9), series.largest(15, 11)) == (1, None, None)


def test_largest_is_of_the_time_only() -> None:
    """The largest value need not be the last."""
    assert numbers((10, 5, False), (20, 3, False), (30, 9, False)).largest(25) == 5


@given(NUMBERS, TIMES, TIMES)
def test_numbers_are_found_as_by_a_search(said: list[tuple[int, int, bool]], until: int, since: int) -> None:
    """The answers are those of looking through everything that was said."""
    within = [one for one in said if since <= one[0] <= until]
    series = numbers(*said)
    newest = max(enumerate(within), key=lambda one: (one[1][0], one[0]), default=None)
    assert series.last(until, since) == (None if newest is None else TimedValue(*newest[1]))
    assert series.largest(until, since) == max((value for _, value, _ in within), default=None)


@given(TEXTS, TIMES, TIMES)
def test_texts_are_found_as_by_a_search(said: list[tuple[int, str, bool]], until: int, since: int) -> None:
    """Texts come out as they were said, whether or not they extend each other."""
    series = TextTimeline()
    for one in said:
        series.add(*one)
    within = [one for one in said if since <= one[0] <= until]
    newest = max(enumerate(within), key=lambda one: (one[1][0], one[0]), default=None)
    assert series.last(until, since) == (None if newest is None else TimedText(*newest[1]))


def test_growing_texts_are_kept_once() -> None:
    """Only the longest of texts that extend each other is kept."""
    series = TextTimeline()
    for place, text in enumerate(["One", "One two", "O", "One two three"]):
        series.add(place, text)
    assert (series.longest, series.others) == ("One two three", ())


def test_bounds_enclose_every_time_of_an_event() -> None:
    """An event's time lies between ALWAYS and NEVER, and both fit into a snapshot."""
    assert BEFORE_ALL < -(2**53)
    assert 2**53 < AFTER_ALL < 2**64
