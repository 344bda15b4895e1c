"""Texts that cannot reach beyond their own line."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from hypothesis import given

from tests.support.samples.exported_calls import TEXTS
from voicemem.exports.plain_text import one_line, without_hidden


@given(TEXTS)
def test_a_text_is_on_one_line(text: str) -> None:
    """Whatever counts as a line break anywhere."""
    assert 1 >= len(one_line(text).splitlines())


def test_what_reorders_text_goes_and_what_is_written_from_right_to_left_stays() -> None:
    """Overrides, embeddings and isolates are left out; letters, marks and joined emoji are not."""
    assert "abc" == one_line("a\u202eb\u2067c\u2069")
    assert "שלום\u200e 👩\u200d👧" == one_line("שלום\u200e 👩\u200d👧")


def test_control_characters_go_and_white_space_stays() -> None:
    """A terminal that shows the file is not controlled by it."""
    assert "[31mred\tx\ny" == without_hidden("\x1b[31m\x00red\tx\ny\ufeff")
