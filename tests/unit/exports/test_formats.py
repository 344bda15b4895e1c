"""The formats by their names."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from voicemem.exports.formats import FORMAT_NAMES, FORMATS, file_name


def test_every_name_has_a_format_and_a_suffix_of_its_own() -> None:
    """So that files of one call in several formats stand side by side."""
    assert FORMAT_NAMES == tuple(FORMATS)
    assert len(FORMATS) == len({form.suffix for form in FORMATS.values()})


def test_no_two_sessions_share_a_file() -> None:
    """The colon, which some systems refuse, is written as in an address."""
    ids = ("a:b", "a_b", "..", ".", "a.b-c")
    assert len(ids) == len({file_name(one, "webvtt") for one in ids})
    assert ("a%3Ab.vcon.json", "...vtt") == (file_name("a:b", "vcon"), file_name("..", "webvtt"))
