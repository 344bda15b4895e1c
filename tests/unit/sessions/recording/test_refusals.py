"""The log of refused events."""

from __future__ import annotations

import logging

import pytest

from voicemem.sessions.recording.commits import MAX_FAULTS, MAX_SESSIONS, RefusalLog


def test_each_fault_of_a_session_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand events with the same misspelt field make one line; another session gets its own."""
    log = RefusalLog()
    for _ in range(1_000):
        log.note("p", "one", "unknown_field", "There is no field `is_final`")
    log.note("p", "two", "unknown_field", "There is no field `is_final`")
    assert [(record.levelno, vars(record)["session_id"]) for record in caplog.records] == [
        (logging.WARNING, "one"),
        (logging.WARNING, "two"),
    ]


def test_a_fault_at_many_places_of_a_list_is_one(caplog: pytest.LogCaptureFixture) -> None:
    """What counts is the field, and not where in its list it stands."""
    log = RefusalLog()
    for place in range(100):
        log.note("p", "one", "invalid_field", f"Expected a whole number: `words[{place}].end_ms`")
    assert len(caplog.records) == 1


def test_a_session_cannot_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A sender that makes up field names gets a bounded number of lines, and bounded memory."""
    log = RefusalLog()
    for number in range(1_000):
        log.note("p", "one", "unknown_field", f"There is no field `f{number}`")
    assert len(caplog.records) == MAX_FAULTS
    for number in range(MAX_SESSIONS + 5):
        log.note("p", str(number), "unknown_field", "There is no field `a`")
    assert len(log.logged) == MAX_SESSIONS


def test_order_and_access_are_not_faults_of_an_event(caplog: pytest.LogCaptureFixture) -> None:
    """A gap or a late event after the end is answered, and not logged."""
    for code in ("seq_gap", "seq_conflict", "session_ended", "superseded", "forbidden"):
        RefusalLog().note("p", "one", code, "…")
    assert not caplog.records
