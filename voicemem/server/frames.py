"""The frames that the ingest server sends (design, section 5)."""

from __future__ import annotations

from typing import Any

from voicemem.recorder import Line, Problem
from voicemem.store.base import Opened

GOAWAY = {"type": "goaway"}
"""The server stops: come back to the next one."""


def ready_frame(opened: Opened, producer: str, next_turn: int, incarnation: str, window: int) -> dict[str, Any]:
    """The answer to `session.open`; `window` is in bytes."""
    return {
        "type": "session.ready",
        "session_id": opened.stream.id,
        "producer": producer,
        "state": opened.stream.state,
        "epoch": opened.epoch,
        "next_seq": opened.next_seq,
        "next_turn": next_turn,
        "incarnation": incarnation,
        "window": window,
    }


def ack_frame(line: Line, seq: int) -> dict[str, Any]:
    """Everything up to `seq` is on disk."""
    return {"type": "ack", "session_id": line.session_id, "producer": line.producer, "seq": seq}


def error_frame(problem: Problem, session_id: str | None = None, producer: str | None = None) -> dict[str, Any]:
    """An `error`; what is not known of the event is left out."""
    frame = {"type": "error", "session_id": session_id, "producer": producer, **problem._asdict()}
    return {key: value for key, value in frame.items() if value is not None}
