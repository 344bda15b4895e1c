"""Errors and their codes."""

from __future__ import annotations

import pytest

from tests.support.rows import every_row
from voicemem.errors import CODES, CannotStart, InvalidFrame, Refused, StoreUnavailable, VoicememError


@every_row("code", CODES)
def test_every_code_has_a_status_and_a_sentence(code: str) -> None:
    """A code is a short stable word, its status an HTTP error, its text one plain sentence."""
    status, sentence, close = CODES[code]
    assert code.replace("_", "").isalpha()
    assert code == code.lower()
    assert 400 <= status <= 599
    assert close is None or 1000 <= close <= 1015
    assert sentence.endswith(".")


@every_row(
    ("code", "close"),
    [
        ("invalid_json", 1007),
        ("too_deep", 1007),
        ("not_events", 1007),
        ("binary_frame", 1003),
        ("too_big", 1009),
        ("flood", 1008),
        ("draining", 1012),
        ("store_unavailable", 1013),
    ],
)
def test_documented_close_codes(code: str, close: int) -> None:
    """What is no frame of events, a drain and a lost store close a connection with the documented codes."""
    assert CODES[code].close == close


@every_row(
    "code", ["unknown_type", "missing_field", "invalid_field", "seq_conflict", "seq_gap", "session_ended", "superseded"]
)
def test_refused_events_close_nothing(code: str) -> None:
    """The connection lives on after an event that cannot be taken."""
    assert CODES[code].close is None


def test_error_without_detail_says_its_sentence() -> None:
    """The sentence of the code stands where nothing more exact was said."""
    assert Refused("seq_gap").detail == CODES["seq_gap"].sentence
    assert Refused("seq_gap", "Seven is missing.").detail == "Seven is missing."


def test_error_tells_its_code_and_detail() -> None:
    """The text of an error is its code and its sentence."""
    error = InvalidFrame("too_big")
    assert (error.code, str(error)) == ("too_big", "too_big: A frame may be at most 1 MiB.")


def test_errors_of_one_kind_know_their_code() -> None:
    """The store's and the start's errors have one code each."""
    assert (StoreUnavailable().code, CannotStart("No such file.").code) == ("store_unavailable", "cannot_start")
    assert StoreUnavailable("The disk is full.").detail == "The disk is full."


@pytest.mark.parametrize("error", [InvalidFrame, Refused, StoreUnavailable, CannotStart])
def test_every_error_is_voicemems(error: type[Exception]) -> None:
    """One base catches all of them."""
    assert issubclass(error, VoicememError)


def test_unknown_code_is_a_mistake() -> None:
    """A code that is not in the table cannot be raised without a detail."""
    with pytest.raises(KeyError):
        Refused("no_such_code")
