"""The demo shows the main job end to end."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from voicemem.cli.demo.one_call import recorded_call, render_call, render_message


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=120)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_recorded_call_is_numbered_without_holes() -> None:
    """The call in the package is one that a producer could have sent."""
    events = recorded_call()
    assert list(range(1, len(events) + 1)) == [event["seq"] for event in events]
    assert events[-1]["type"] == "session.end"


def message(**metadata: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "Why ", "turn_id": 2, "metadata": metadata}


def test_unheard_text_is_struck_out_in_a_terminal(console: Console) -> None:
    """With styles the unheard rest is struck out, without them it stands between tildes."""
    interrupted = message(interrupted=True, original="Why not?")
    styled = render_message(interrupted, True)
    assert any("strike" in str(span.style) for span in styled.spans)
    assert "Why ~~not?~~" in render_message(interrupted, False).plain


def test_an_empty_memory_is_shown_as_waiting(console: Console) -> None:
    """Before the first message the panel shows that it waits."""
    console.print(render_call([], 0, 36, False))
    assert "0 of 36" in shown(console)
