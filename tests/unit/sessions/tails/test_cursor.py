"""Places in live tails: what was written is read, and everything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cursors import format_several_cursor
from tests.support.rows import every_row
from voicemem.errors import Refused
from voicemem.sessions.tails.tail import (
    SeveralCursor,
    format_session_cursor,
    parse_session_cursor,
    parse_several_cursor,
)

HERE = "0123456789abcdef" * 2
ELSEWHERE = "fedcba9876543210" * 2
NUMBERS = st.integers(0, 10**15)


@given(NUMBERS, NUMBERS, st.dictionaries(NUMBERS, NUMBERS, max_size=5), st.lists(NUMBERS, max_size=5))
def test_what_was_written_is_read(key: int, position: int, positions: dict[int, int], seen: list[int]) -> None:
    """A place gives back what was put into it."""
    assert position == parse_session_cursor(HERE, key, format_session_cursor(HERE, key, position))
    several = SeveralCursor(key, positions, tuple(seen))
    assert several == parse_several_cursor(HERE, format_several_cursor(HERE, several))


@every_row(
    "place",
    ["", "1", "nil", f"{HERE}.", f"{HERE}.1-", f"{HERE}.1-2-3", f"{HERE}.1-2 ", f"{HERE}.-1-2", f"{HERE}.1-٢",
     f"{HERE}.1-{'9' * 5000}", f"{HERE}.1_", f"{HERE}.1__2", f"{HERE}.1_2-3_", "ü.1-2"],
)  # fmt: skip
def test_what_is_no_place_is_refused(place: str) -> None:
    """Text that was never given out is no place, of one session or of several."""
    with pytest.raises(Refused, match="invalid_position"):
        parse_session_cursor(HERE, 1, place)
    with pytest.raises(Refused, match="invalid_position"):
        parse_several_cursor(HERE, place)


def test_places_of_elsewhere_are_told_apart() -> None:
    """Another incarnation has a code of its own; another session, or several instead of one, is no place here."""
    with pytest.raises(Refused, match="other_incarnation"):
        parse_session_cursor(HERE, 1, format_session_cursor(ELSEWHERE, 1, 2))
    with pytest.raises(Refused, match="other_incarnation"):
        parse_several_cursor(HERE, format_several_cursor(ELSEWHERE, SeveralCursor(1, {})))
    with pytest.raises(Refused, match="another session"):
        parse_session_cursor(HERE, 1, format_session_cursor(HERE, 2, 2))
    with pytest.raises(Refused, match="invalid_position"):
        parse_session_cursor(HERE, 1, format_several_cursor(HERE, SeveralCursor(1, {1: 2})))
    with pytest.raises(Refused, match="invalid_position"):
        parse_several_cursor(HERE, format_session_cursor(HERE, 1, 2))
