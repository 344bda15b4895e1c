"""When a session is due to close, and when it may come back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.samples.streams import START, stream
from voicemem.config.session import apply_patch, validate_config
from voicemem.store.streams import END_GRACE_MS, SessionEnding, Stream, close_due_ms, ending_if_due, may_reopen

HOUR = 3_600_000


def idle(**changes: Any) -> Stream:
    """A session that was closed for idleness at START."""
    return stream(**{"state": "ended", "reason": "idle", "provisional": True, "ended_ms": START} | changes)


# When a session is over


def test_session_with_a_connection_lasts_72_hours() -> None:
    """No one is idle while connected; only the longest duration closes."""
    assert close_due_ms(stream()) == START + 72 * HOUR


@pytest.mark.parametrize("state", ["ended", "erased"])
def test_session_that_is_over_is_never_due(state: str) -> None:
    """What is closed is not closed again."""
    over = stream(state=state, silent_since_ms=START, ending_ms=START, ending_ts=1)
    assert (close_due_ms(over), ending_if_due(over, START + 1000 * HOUR)) == (None, None)


def test_silent_session_is_due_after_its_idle_timeout() -> None:
    """The timeout counts from when the last connection went."""
    silent = stream(silent_since_ms=START + 5)
    assert close_due_ms(silent) == START + 5 + 60_000
    assert ending_if_due(silent, START + 5 + 59_999) is None
    assert ending_if_due(silent, START + 5 + 60_000) == SessionEnding(START + 5 + 60_000, "idle", provisional=True)


@pytest.mark.parametrize(("given", "after_ms"), [({"idle_timeout": 5}, 5000), ({"idle_timeout": 0.25}, 250)])
def test_idle_timeout_is_the_sessions_own(given: dict[str, Any], after_ms: int) -> None:
    """A session may set another timeout, in seconds or parts of them."""
    assert close_due_ms(stream(silent_since_ms=START, config=given)) == START + after_ms


def test_idle_timeout_zero_is_never() -> None:
    """With 0 a silent session lives until its longest duration."""
    assert close_due_ms(stream(silent_since_ms=START, config={"idle_timeout": 0})) == START + 72 * HOUR


def test_null_timeout_is_the_default() -> None:
    """A timeout given as null is as if it were not given."""
    given = apply_patch({}, validate_config({"idle_timeout": None}).public)
    assert close_due_ms(stream(silent_since_ms=START, config=given)) == START + 60_000


def test_ending_session_is_due_after_its_grace() -> None:
    """Two seconds after the first end was committed, whoever is still connected."""
    ending = stream(ending_ms=START + 10, ending_ts=777, ending_reason="bye")
    assert (END_GRACE_MS, close_due_ms(ending)) == (2000, START + 2010)
    assert ending_if_due(ending, START + 2009) is None


def test_end_gives_time_and_reason_of_the_close() -> None:
    """The close has the first end's `ts` and reason, not the server's time."""
    ending = stream(ending_ms=START, ending_ts=777, ending_reason="bye")
    assert ending_if_due(ending, START + 2000) == SessionEnding(777, "bye")


def test_end_without_reason_has_one() -> None:
    """An end that says nothing closes all the same."""
    closing = ending_if_due(stream(ending_ms=START, ending_ts=777), START + 9000)
    assert closing is not None
    assert (closing.ts, closing.provisional) == (777, False)


def test_longest_duration_closes_for_good() -> None:
    """A session that is too old is closed even while it is connected, and not provisionally."""
    old = stream(config={"max_duration": 60})
    assert close_due_ms(old) == START + 60_000
    assert ending_if_due(old, START + 60_000) == SessionEnding(START + 60_000, "max_duration")


def test_whatever_comes_first_is_due() -> None:
    """The earliest of end, idleness and longest duration decides."""
    both = stream(silent_since_ms=START, ending_ms=START + 1, ending_ts=5, config={"max_duration": 90})
    assert close_due_ms(both) == START + 2001
    assert close_due_ms(stream(silent_since_ms=START + 50_000, config={"max_duration": 90})) == START + 90_000


# Coming back


def test_idle_session_may_come_back_for_an_hour() -> None:
    """An idle close is provisional for the reopen window."""
    assert may_reopen(idle(), START)
    assert may_reopen(idle(), START + HOUR - 1)
    assert not may_reopen(idle(), START + HOUR)


def test_reopen_window_is_the_sessions_own() -> None:
    """A session may set another window; with 0 nothing comes back."""
    assert may_reopen(idle(config={"reopen_window": 1}), START + 999)
    assert not may_reopen(idle(config={"reopen_window": 1}), START + 1000)
    assert not may_reopen(idle(config={"reopen_window": 0}), START)


@pytest.mark.parametrize("changes", [{"state": "running"}, {"state": "erased"}, {"provisional": False}])
def test_other_sessions_do_not_come_back(changes: dict[str, Any]) -> None:
    """A session that was ended by anyone, or erased, stays so, whatever its reason says."""
    assert not may_reopen(idle(**changes), START)
