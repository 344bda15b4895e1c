"""Places in live tails: what was written is read, and everything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicemem.errors import Refused
from voicemem.sessions.tails.cursor import Several, read_one, read_several, write_one, write_several

HERE = "0123456789abcdef" * 2
ELSEWHERE = "fedcba9876543210" * 2
NUMBERS = st.integers(0, 10**15)


@given(NUMBERS, NUMBERS, st.dictionaries(NUMBERS, NUMBERS, max_size=5))
def test_what_was_written_is_read(key: int, position: int, positions: dict[int, int]) -> None:
    """A place gives back what was put into it."""
    assert position == read_one(HERE, key, write_one(HERE, key, position))
    several = Several(key, positions)
    assert several == read_several(HERE, write_several(HERE, several))


@pytest.mark.parametrize(
    "place",
    ["", "1", "nil", f"{HERE}.", f"{HERE}.1-", f"{HERE}.1-2-3", f"{HERE}.1-2 ", f"{HERE}.-1-2", f"{HERE}.1-٢",
     f"{HERE}.1-{'9' * 5000}", f"{HERE}.1_2", f"{HERE}.1_2-3_", "ü.1-2"],
)  # fmt: skip
def test_what_is_no_place_is_refused(place: str) -> None:
    """Text that was never given out is no place, of one session or of several."""
    with pytest.raises(Refused, match="invalid_position"):
        read_one(HERE, 1, place)
    with pytest.raises(Refused, match="invalid_position"):
        read_several(HERE, place)


def test_places_of_elsewhere_are_told_apart() -> None:
    """Another incarnation has a code of its own; another session, or several instead of one, is no place here."""
    with pytest.raises(Refused, match="other_incarnation"):
        read_one(HERE, 1, write_one(ELSEWHERE, 1, 2))
    with pytest.raises(Refused, match="other_incarnation"):
        read_several(HERE, write_several(ELSEWHERE, Several(1, {})))
    with pytest.raises(Refused, match="another session"):
        read_one(HERE, 1, write_one(HERE, 2, 2))
    with pytest.raises(Refused, match="invalid_position"):
        read_one(HERE, 1, write_several(HERE, Several(1, {1: 2})))
    with pytest.raises(Refused, match="invalid_position"):
        read_several(HERE, write_one(HERE, 1, 2))
