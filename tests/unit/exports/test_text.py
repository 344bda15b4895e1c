"""Texts and times as exports write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.samples.exported_calls import TEXTS
from voicemem.exports.call import (
    FIRST_MS,
    LAST_MS,
    PART,
    cue_time,
    date_and_clock,
    date_time,
    length,
    one_line,
    strip_invisible,
)

# ruff: noqa: SIM300 (asserts read `expected == actual`)


@given(TEXTS)
def test_a_text_is_on_one_line(text: str) -> None:
    """Whatever counts as a line break anywhere."""
    assert 1 >= len(one_line(text).splitlines())


@given(TEXTS, st.integers(1, 3 * PART))
def test_one_line_has_the_words_of_the_text(text: str, repeated: int) -> None:
    """They have one space between each other, wherever a long text is divided."""
    long = (text * (repeated // max(1, len(text))))[:repeated]
    assert strip_invisible(long).split() == one_line(long).split()
    assert "  " not in one_line(long)


def test_what_reorders_text_goes_and_what_is_written_from_right_to_left_stays() -> None:
    """Overrides, embeddings and isolates are left out; letters, marks and joined emoji are not."""
    assert "abc" == one_line("a\u202eb\u2067c\u2069")
    assert "שלום\u200e 👩\u200d👧" == one_line("שלום\u200e 👩\u200d👧")


def test_control_characters_go_and_white_space_stays() -> None:
    """A terminal that shows the file is not controlled by it."""
    assert "[31mred\tx\ny" == strip_invisible("\x1b[31m\x00red\tx\ny\ufeff")


# ruff: noqa: SIM300 (asserts read `expected == actual`)


@given(st.integers(FIRST_MS, LAST_MS))
def test_dates_are_those_of_the_calendar(ms: int) -> None:
    """Python's own calendar agrees, from the year 1 to 9999."""
    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    assert expected == datetime.fromisoformat(date_time(ms))
    assert tuple(expected.strftime("%H:%M:%S").split()) == date_and_clock(ms)[1:]


@pytest.mark.parametrize(("ms", "shown"), [(-(2**53), "0001-01-01T00:00:00.000Z"), (2**53, "9999-12-31T23:59:59.999Z")])
def test_what_no_date_can_name_is_the_nearest_that_can(ms: int, shown: str) -> None:
    """A producer's numbers are not always Unix ms."""
    assert shown == date_time(ms)


def test_cue_times_have_as_many_hours_as_it_takes() -> None:
    """Two digits at least."""
    assert ["00:00:00.000", "01:02:03.004", "1000:00:00.000"] == [
        cue_time(ms, ".") for ms in (0, 3_723_004, 3_600_000_000)
    ]


def test_lengths_are_short() -> None:
    """Hours only where there are any."""
    assert ["0:00", "0:48", "12:05", "1:02:03"] == [length(ms) for ms in (999, 48_000, 725_000, 3_723_000)]
