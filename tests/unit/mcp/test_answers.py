"""What is made of the service's answers without asking again."""

from __future__ import annotations

import pytest

from voicemem.mcp.answers import line_about


@pytest.mark.parametrize(("turns", "line"), [(0, "0 turns"), (1, "1 turn"), (2, "2 turns")])
def test_a_call_of_one_turn_has_one_turn(turns: int, line: str) -> None:
    """Numbers are said as people say them."""
    assert line == line_about({"name": None, "figures": {"turns": turns, "last": None}})
