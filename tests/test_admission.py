"""Which events a journal takes, and when a session is over."""

from __future__ import annotations

from typing import Any

import pytest

from voicemem.config.session import apply_patch, validate_config
from voicemem.errors import CODES
from voicemem.store.admission import Offer, Outcome, admit, sentence
from voicemem.store.streams import END_GRACE_MS, ProducerState, SessionEnding, Stream, due_ms, ending_if_due, may_reopen

START = 1_000_000
HOUR = 3_600_000
STORED = None
DUPLICATE = Outcome(duplicate=True)


def stream(**changes: Any) -> Stream:
    """A running session that began at START and has a connection."""
    fields: dict[str, Any] = {
        "key": 1,
        "project": "p",
        "kind": "session",
        "id": "s",
        "state": "running",
        "position": 0,
        "started_ms": START,
        "ended_ms": None,
        "reason": None,
        "config": {},
        "silent_since_ms": None,
        "ending_ms": None,
        "ending_ts": None,
        "ending_reason": None,
    }
    return Stream(**fields | changes)


def idle(**changes: Any) -> Stream:
    """A session that was closed for idleness at START."""
    return stream(**{"state": "ended", "reason": "idle", "provisional": True, "ended_ms": START} | changes)


def offer(seq: int | None) -> Offer:
    """An event with this seq."""
    return Offer(seq, START, b"{}")


NEW = ProducerState("main")
AT_FIVE = ProducerState("main", epoch=2, next_seq=5)
MIXING = ProducerState("main", unsequenced=True)
GONE = ProducerState("main", next_seq=5, ended=True)
GONE_UNSEQUENCED = ProducerState("main", unsequenced=True, ended=True)


@pytest.mark.parametrize(
    ("producer", "seq", "outcome"),
    [
        (NEW, 1, STORED),
        (AT_FIVE, 5, STORED),
        (NEW, None, STORED),
        (MIXING, None, STORED),
        (AT_FIVE, 4, DUPLICATE),
        (AT_FIVE, 1, DUPLICATE),
        (AT_FIVE, 6, Outcome(code="seq_gap", expected=5)),
        (NEW, 2**53, Outcome(code="seq_gap", expected=1)),
        (AT_FIVE, None, Outcome(code="seq_required")),
        (MIXING, 1, Outcome(code="seq_required")),
        (MIXING, 2, Outcome(code="seq_required")),
        (GONE, 4, DUPLICATE),
        (GONE, 5, Outcome(code="session_ended")),
        (GONE, 6, Outcome(code="session_ended")),
        (GONE, None, Outcome(code="session_ended")),
        (GONE_UNSEQUENCED, None, Outcome(code="session_ended")),
    ],
)
def test_admission_by_seq(producer: ProducerState, seq: int | None, outcome: Outcome | None) -> None:
    """A seq is stored, acknowledged again, or refused; after a producer's own end only duplicates are acknowledged."""
    assert admit(stream(), producer, None, offer(seq)) == outcome


@pytest.mark.parametrize(
    ("seq", "outcome"),
    [
        (4, DUPLICATE),
        (5, Outcome(code="session_ended")),
        (9, Outcome(code="session_ended")),
        (None, Outcome(code="session_ended")),
    ],
)
def test_ended_session_takes_duplicates_only(seq: int | None, outcome: Outcome) -> None:
    """After the close, what was stored is acknowledged again, and everything else is told that the session ended."""
    assert admit(stream(state="ended"), AT_FIVE, None, offer(seq)) == outcome


@pytest.mark.parametrize("seq", [None, 1, 4, 5, 6])
def test_erased_session_takes_nothing(seq: int | None) -> None:
    """A buffered producer cannot bring an erased session back, not even with what was stored once."""
    assert admit(stream(state="erased"), AT_FIVE, 2, offer(seq)) == Outcome(code="session_erased")


@pytest.mark.parametrize("seq", [None, 4, 5, 6])
@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_other_epoch_is_superseded(epoch: int, seq: int | None) -> None:
    """A connection of another epoch than the newest can append nothing."""
    assert admit(stream(), AT_FIVE, epoch, offer(seq)) == Outcome(code="superseded")


def test_newest_epoch_and_none_are_taken() -> None:
    """The newest connection appends; without an epoch, as over HTTP, it is not checked."""
    assert admit(stream(), AT_FIVE, 2, offer(5)) is STORED
    assert admit(stream(), AT_FIVE, None, offer(5)) is STORED


def test_sentence_of_a_gap_says_what_is_expected() -> None:
    """An outcome is told in the plain sentence of its code."""
    assert sentence(Outcome(code="seq_conflict")) == CODES["seq_conflict"].sentence
    assert sentence(Outcome(code="seq_gap", expected=7)).endswith("Expected seq 7.")


# When a session is over


def test_session_with_a_connection_lasts_72_hours() -> None:
    """Nobody is idle while connected; only the longest duration closes."""
    assert due_ms(stream()) == START + 72 * HOUR


@pytest.mark.parametrize("state", ["ended", "erased"])
def test_session_that_is_over_is_never_due(state: str) -> None:
    """What is closed is not closed again."""
    over = stream(state=state, silent_since_ms=START, ending_ms=START, ending_ts=1)
    assert (due_ms(over), ending_if_due(over, START + 1000 * HOUR)) == (None, None)


def test_silent_session_is_due_after_its_idle_timeout() -> None:
    """The timeout counts from when the last connection went."""
    silent = stream(silent_since_ms=START + 5)
    assert due_ms(silent) == START + 5 + 60_000
    assert ending_if_due(silent, START + 5 + 59_999) is None
    assert ending_if_due(silent, START + 5 + 60_000) == SessionEnding(START + 5 + 60_000, "idle", provisional=True)


@pytest.mark.parametrize(("given", "after_ms"), [({"idle_timeout": 5}, 5000), ({"idle_timeout": 0.25}, 250)])
def test_idle_timeout_is_the_sessions_own(given: dict[str, Any], after_ms: int) -> None:
    """A session may set another timeout, in seconds or parts of them."""
    assert due_ms(stream(silent_since_ms=START, config=given)) == START + after_ms


def test_idle_timeout_zero_is_never() -> None:
    """With 0 a silent session lives until its longest duration."""
    assert due_ms(stream(silent_since_ms=START, config={"idle_timeout": 0})) == START + 72 * HOUR


def test_null_timeout_is_the_default() -> None:
    """A timeout given as null is as if it were not given."""
    given = apply_patch({}, validate_config({"idle_timeout": None}).public)
    assert due_ms(stream(silent_since_ms=START, config=given)) == START + 60_000


def test_ending_session_is_due_after_its_grace() -> None:
    """Two seconds after the first end was committed, whoever is still connected."""
    ending = stream(ending_ms=START + 10, ending_ts=777, ending_reason="bye")
    assert (END_GRACE_MS, due_ms(ending)) == (2000, START + 2010)
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
    assert due_ms(old) == START + 60_000
    assert ending_if_due(old, START + 60_000) == SessionEnding(START + 60_000, "max_duration")


def test_whatever_comes_first_is_due() -> None:
    """The earliest of end, idleness and longest duration decides."""
    both = stream(silent_since_ms=START, ending_ms=START + 1, ending_ts=5, config={"max_duration": 90})
    assert due_ms(both) == START + 2001
    assert due_ms(stream(silent_since_ms=START + 50_000, config={"max_duration": 90})) == START + 90_000


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
