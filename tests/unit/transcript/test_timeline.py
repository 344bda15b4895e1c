"""Values over time."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from voicemem.transcript import timeline
from voicemem.transcript.packing import ENCODER, decoder_of
from voicemem.transcript.timeline import AFTER_ALL, BEFORE_ALL, Entry, TextTimeline, TimedText, Timeline

FAR = 2**53
"""Further than 4 bytes reach."""
TIMES = st.integers(0, 20) | st.sampled_from([-FAR, 2**31, FAR])
NUMBERS = st.lists(st.tuples(TIMES, st.integers(0, 9) | st.just(FAR)), max_size=30)
WORDS = st.sampled_from(["", "One", "One two", " One  two.", "One two.", "Two", "O"])
TEXTS = st.lists(st.tuples(TIMES, WORDS), max_size=12)
pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that are full after a few entries."""
    monkeypatch.setattr(timeline, "FULL", 3 * timeline.WIDTH)


def numbers(*said: tuple[int, int]) -> Timeline:
    """A series to which these were said, in this order."""
    series = Timeline()
    for order, (ts, value) in enumerate(said):
        series.add(ts, order, value)
    return series


def by_time(said: list[tuple[int, int]], until: int, since: int) -> list[Entry]:
    """What a search through everything that was said finds, in the order of time."""
    entries = [Entry(ts, order, value) for order, (ts, value) in enumerate(said) if since <= ts < until]
    return sorted(entries, key=lambda entry: (entry.ts, entry.order))


def test_empty_series_says_nothing() -> None:
    """Nothing was said yet."""
    assert Timeline().last() is Timeline().first() is Timeline().highest_entry() is Timeline().first_at_least(0) is None
    assert TextTimeline(Timeline()).last() is None


def test_bounds_are_from_and_before() -> None:
    """What was said exactly at the first bound counts, at the second it does not."""
    series = numbers((10, 1), (20, 2))
    assert series.last(20, 10) == Entry(10, 0, 1)
    assert series.last(21, 20) == Entry(20, 1, 2)
    assert series.last(10) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NUMBERS, TIMES, TIMES, st.integers(0, 9))
def test_numbers_are_found_as_by_a_search(said: list[tuple[int, int]], until: int, since: int, value: int) -> None:
    """The answers are those of looking through everything that was said."""
    series, expected = numbers(*said), by_time(said, until, since)
    assert list(series.entries(until, since)) == expected
    assert list(series.backwards(until, since)) == expected[::-1]
    assert series.last(until, since) == (expected[-1] if expected else None)
    assert series.first(until, since) == (expected[0] if expected else None)
    high = [entry for entry in expected if entry.value >= value]
    assert series.first_at_least(value, until, since) == (high[0] if high else None)
    highest = max(expected, key=lambda entry: (entry.value, expected.index(entry)), default=None)
    assert series.highest_entry(until, since) == highest
    assert decoder_of(Timeline).decode(ENCODER.encode(series)) == series


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS, TIMES, TIMES)
def test_texts_are_found_as_by_a_search(said: list[tuple[int, str]], until: int, since: int) -> None:
    """Texts come out as they were said, whether or not they extend each other."""
    series = TextTimeline(Timeline())
    for order, (ts, text) in enumerate(said):
        series.add(ts, order, text)
    within = sorted((ts, order, text) for order, (ts, text) in enumerate(said) if since <= ts < until)
    assert list(series.backwards(until, since)) == [TimedText(*one) for one in reversed(within)]
    assert series.last(until, since) == (TimedText(*within[-1]) if within else None)


def test_growing_texts_are_kept_once() -> None:
    """Only the longest of texts that extend each other is kept."""
    series = TextTimeline(Timeline())
    for place, text in enumerate(["One", "One two", "O", "One two three"]):
        series.add(place, place, text)
    assert (series.texts.longest, series.texts.others) == ("One two three", None)


def test_bounds_enclose_every_time_of_an_event() -> None:
    """An event's time lies between the bounds."""
    assert BEFORE_ALL < -(2**53)
    assert 2**53 < AFTER_ALL < 2**64
