"""Times as an LLM writes and reads them, and lines about calls."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from voicemem.mcp.tools import line_about, parse_time_ms, shown_time

DAY_MS = 86_400_000


def test_days_and_moments_are_read() -> None:
    """In UTC unless they say otherwise; a day ends where the next begins, a moment where it is."""
    assert 1_777_766_400_000 == parse_time_ms("2026-05-03")
    assert 1_777_766_400_000 + DAY_MS == parse_time_ms("2026-05-03", end=True)
    assert 1_777_816_800_000 == parse_time_ms("2026-05-03T14:00:00Z") == parse_time_ms(" 2026-05-03T16:00:00+02:00 ")
    assert parse_time_ms("2026-05-03T14:00:00") == parse_time_ms("2026-05-03T14:00:00", end=True)


@every_row("text", ["2026-02-30", "yesterday", "2026", "03.05.2026", "", "2026-05-03T25:00"])
def test_what_is_no_date_is_refused(text: str) -> None:
    """Rather than guessed at."""
    with pytest.raises(ValueError, match=r".*"):
        parse_time_ms(text)


def test_the_last_day_of_all_has_no_end() -> None:
    """It is refused like any date that cannot be."""
    with pytest.raises(OverflowError):
        parse_time_ms("9999-12-31", end=True)


@given(st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC)).map(lambda at: at.replace(microsecond=0)))
def test_what_is_shown_is_read_again(moment: datetime) -> None:
    """Every second of a calendar comes back as it was."""
    at = int(moment.timestamp() * 1000)
    assert parse_time_ms(str(shown_time(at))) == at


@pytest.mark.parametrize("value", [None, 2**60, -(2**60), "2026", True])
def test_what_is_no_time_of_a_calendar_is_not_shown(value: object) -> None:
    """Producers may give any number."""
    assert shown_time(value) in (None, "1970-01-01T00:00:00Z")


@pytest.mark.parametrize(("turns", "line"), [(0, "0 turns"), (1, "1 turn"), (2, "2 turns")])
def test_a_call_of_one_turn_has_one_turn(turns: int, line: str) -> None:
    """Numbers are said as people say them."""
    assert line == line_about({"name": None, "figures": {"turns": turns, "last": None}})
