"""Times that questions name, as spans of days."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from voicemem.search.times import DAY_MS, span_in

NOW = int(datetime(2026, 3, 4, 12, tzinfo=UTC).timestamp() * 1000)


@every_row(
    ("question", "first", "last"),
    [
        ("Where was she last summer?", "2025-06-01", "2025-08-31"),
        ("What did I order yesterday?", "2026-03-03", "2026-03-03"),
        ("the week three weeks ago", "2026-02-08", "2026-02-14"),
        ("two months ago", "2026-01-01", "2026-01-31"),
        ("in May 2024", "2024-05-01", "2024-05-31"),
        ("in February", "2026-02-01", "2026-02-28"),
        ("last March", "2025-03-01", "2025-03-31"),
        ("last winter", "2025-12-01", "2026-02-28"),
        ("in 2023?", "2023-01-01", "2023-12-31"),
        ("last week", "2026-02-23", "2026-03-01"),
        ("Wo war sie letzten Sommer?", "2025-06-01", "2025-08-31"),
        ("vor zwölf Monaten", "2025-03-01", "2025-03-31"),
        ("letztes Jahr im März", "2025-03-01", "2025-03-31"),
        ("她去年夏天去了哪里？", "2025-06-01", "2025-08-31"),
        ("两个月前的订单", "2026-01-01", "2026-01-31"),
        ("去年十二月", "2025-12-01", "2025-12-31"),
        ("上个月", "2026-02-01", "2026-02-28"),
        ("3日前に", "2026-03-01", "2026-03-01"),
        ("昨年の夏に", "2025-06-01", "2025-08-31"),
        ("지난달에", "2026-02-01", "2026-02-28"),
    ],
)
def test_a_question_names_a_time(question: str, first: str, last: str) -> None:
    """In the calendar, as seen from the day it is asked."""
    span = span_in(question, NOW)
    assert span is not None
    assert [first, last] == [f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d}" for ms in span]
    assert 0 == (span[1] + 1 - span[0]) % DAY_MS


@every_row(
    "question", ["What may she eat?", "a march to the sea", "夏威夷", "何月ですか", "room 2031 1", "no fall", ""]
)
def test_other_words_are_no_time(question: str) -> None:
    """A word that means a month or a season too is none without another word for a time."""
    assert None is span_in(question.replace("2031", "31"), NOW)


@given(
    st.text(max_size=60) | st.from_regex(r"(vor |last )?[0-9]{1,9} (years|months|Tagen) ago"),
    st.integers(-(2**62), 2**62),
)
def test_whatever_is_asked_has_an_answer(question: str, now_ms: int) -> None:
    """Of any question at any time; a span never ends before it begins."""
    span = span_in(question, now_ms)
    assert span is None or span[0] <= span[1]
