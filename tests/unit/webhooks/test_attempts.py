"""When an attempt is repeated, and what an answer means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from voicemem.webhooks.outbox import MAX_ATTEMPTS, RETRY_DELAYS_S, AttemptResult, next_delay_s, verdict

NOW_S = 1_778_390_400


def answer(status: int | None = 500, error: str | None = None, retry_after: str | None = None) -> AttemptResult:
    return AttemptResult(status, error, retry_after, 12, "")


@every_row(
    ("given_answer", "expected"),
    [
        (answer(200), "delivered"),
        (answer(204), "delivered"),
        (answer(299), "delivered"),
        (answer(410), "gone"),
        (answer(301, "redirect"), "retry"),
        (answer(304, "redirect"), "retry"),
        (answer(400), "retry"),
        (answer(503), "retry"),
        (answer(101), "retry"),
        (answer(None, "dns"), "retry"),
    ],
)
def test_verdict(given_answer: AttemptResult, expected: str) -> None:
    """2xx is delivered, 410 is gone, everything else is tried again."""
    assert verdict(given_answer) == expected


def test_retries_follow_the_documented_schedule_and_end() -> None:
    """At once, 5 s, 5 min … 24 h, then no more; the middle of the jitter is the schedule itself."""
    assert [next_delay_s(n, answer(), 0.5) for n in range(1, MAX_ATTEMPTS)] == list(RETRY_DELAYS_S)
    assert next_delay_s(0, answer(), 0.5) == 0
    assert next_delay_s(MAX_ATTEMPTS, answer(), 0.5) is None
    assert next_delay_s(MAX_ATTEMPTS + 1, answer(retry_after="1"), 0.5) is None


@pytest.mark.parametrize("overload", [answer(429), answer(503), answer(504), answer(None, "timeout")])
def test_an_overloaded_receiver_is_not_tried_again_at_once(overload: AttemptResult) -> None:
    """The first retry after a 429, 503 or timeout waits for at least five seconds."""
    assert [next_delay_s(1, overload, jitter) for jitter in (0.0, 0.5)] == [5, 5.5]


@every_row("status", [429, 500, 503])
@every_row(
    ("value", "seconds"),
    [
        ("1", 1),
        (" 120 ", 120),
        ("7.5", 7.5),
        ("315360000", 86_400),
        ("9" * 5000, 86_400),
        (format_datetime(datetime.fromtimestamp(NOW_S, UTC) + timedelta(minutes=2), usegmt=True), 120),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400),
        ("Fri, 31 Dec 9999 23:59:59 -0000", 86_400),
    ],
)
def test_retry_after_is_honoured_up_to_a_day(status: int, value: str, seconds: float) -> None:
    """Seconds or a date are waited for, and no promise of years is taken."""
    assert next_delay_s(1, answer(status, retry_after=value), 0.0, NOW_S) == seconds


@every_row(
    "value", ["", "soon", "-5", "nan", "inf", "1e3", "٣", "Wed, 21 Oct 2015 07:28:00 GMT", "Mon, 99 Foo 2099", "0"]
)
def test_garbage_and_past_times_in_retry_after_change_nothing(value: str) -> None:
    """What is no time to come leaves the schedule as it is."""
    assert next_delay_s(2, answer(retry_after=value), 0.5, NOW_S) == 5


def test_a_date_needs_the_time_now() -> None:
    """Without the present time a date in Retry-After is passed over."""
    assert next_delay_s(2, answer(retry_after="Fri, 31 Dec 9999 23:59:59 GMT"), 0.5) == 5


@given(
    attempts=st.integers(1, MAX_ATTEMPTS - 1),
    status=st.sampled_from([None, 429, 500, 503]),
    retry_after=st.none() | st.text() | st.integers(0, 10**9).map(str),
    jitter=st.floats(0, 1, exclude_max=True),
)
def test_delays_stay_in_their_bounds(attempts: int, status: int | None, retry_after: str | None, jitter: float) -> None:
    """A delay is never below the schedule less a fifth, nor the receiver's wish, nor above a day."""
    delay = next_delay_s(attempts, answer(status, retry_after=retry_after), jitter, NOW_S)
    assert delay is not None
    assert 0.8 * RETRY_DELAYS_S[attempts - 1] <= delay <= 86_400
    if retry_after and retry_after.isascii() and retry_after.isdigit():
        assert delay >= min(int(retry_after), 86_400)
    elif status == 500 and retry_after is None:
        assert delay <= 1.2 * RETRY_DELAYS_S[attempts - 1]
