"""What others said, as a terminal may be given it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json

from hypothesis import given

from tests.support.samples.exported_calls import TEXTS
from voicemem.cli.common import json_shown, line_shown, lines_shown
from voicemem.cli.demo.one_call import render_message
from voicemem.exports.call import HIDDEN

CONTROLS = "a\x1b[2J\x9b31m\rb\tc\u202ed\x07\ne "


def test_control_characters_are_left_out() -> None:
    """Also those that reorder text; lines stay, or become one."""
    assert "a[2J31m\nb   cd\ne " == lines_shown(CONTROLS)
    assert "a[2J31m b   cd e " == line_shown(CONTROLS)


@given(TEXTS)
def test_json_says_the_same_with_them_escaped(text: str) -> None:
    """A program reads exactly what was said; a terminal gets nothing that commands it."""
    written = json_shown({"text": text, "list": [text]})
    assert {"text": text, "list": [text]} == json.loads(written)
    assert not HIDDEN.search(written)


@given(TEXTS, TEXTS)
def test_a_message_cannot_command_a_terminal(heard: str, rest: str) -> None:
    """Neither what was heard of it nor what was not; without styles it is one line."""
    cut = {"interrupted": True, "original": heard + rest}
    for metadata in (cut, {"open": True, "partial": True, "heard_so_far": heard}, {}):
        message = {"role": "assistant", "turn_id": 1, "content": heard, "metadata": metadata}
        for styled in (True, False):
            shown = render_message(message, styled).plain
            assert not HIDDEN.search(shown)
            assert styled or 1 == len(shown.splitlines())
