"""Cursors lead to a place in what they were made for, and nowhere else."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from voicemem.errors import Refused
from voicemem.protocol.types import format_place, parse_place, split_cursor

DIGEST, OTHER = b"8 bytes.", b"8 others"


@given(st.tuples(st.integers(-(2**53), 2**53), st.text()))
def test_a_place_is_found_again(place: tuple[int, str]) -> None:
    """Whatever it is; a cursor needs no escapes in an address."""
    cursor = format_place(DIGEST, place)
    assert re.fullmatch(r"[\w-]*", cursor, re.ASCII)
    assert place == parse_place(cursor, DIGEST, tuple[int, str])


@every_row("cursor", ["", "x", "ä", "=", "a b", format_place(OTHER, 1), format_place(DIGEST, "1")])
def test_anything_else_is_refused(cursor: str) -> None:
    """What is no cursor, one of something else, and a place of another kind."""
    with pytest.raises(Refused) as refused:
        parse_place(cursor, DIGEST, int, "Take another one.")
    assert ("invalid_cursor", "Take another one.") == (refused.value.code, refused.value.detail)


@given(st.text())
def test_a_text_that_is_no_cursor_raises_nothing_else(text: str) -> None:
    """Whatever it is made of."""
    with suppress(Refused):
        proof, _ = split_cursor(text, 8)
        assert len(proof) <= 8
