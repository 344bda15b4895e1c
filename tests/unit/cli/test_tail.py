"""The lines of `voicemem tail`: one for each entry of the journal."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

from voicemem.cli.tail import entry_line


def test_a_frame_says_whose_it_is_and_of_which_kind() -> None:
    """Under whichever name its stack has the kind; a frame without one has its dialect."""
    frames: dict[str, dict[str, Any]] = {
        "openai-realtime": {"type": "response.done"},
        "retell": {"event": "call_ended"},
        "vapi": {"message": {"type": "end-of-call-report"}},
        "nova-sonic": {"data": 1},
    }
    for dialect, frame in frames.items():
        line = entry_line({"position": 7, "event": {"type": "frame", "dialect": dialect, "frame": frame}}).plain
        kind = next(iter(frame.get("message", frame).values()))
        assert ["7", "frame", dialect, *([kind] if isinstance(kind, str) else [])] == line.split()
    assert ["7", "frame", "openai"] == entry_line(
        {"position": 7, "event": {"type": "frame", "dialect": "openai", "frame": "x"}}
    ).plain.split()
